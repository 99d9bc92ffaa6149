"""Issuers of tokens are passed on to the API server, which checks them."""

import copy
from typing import Any

import pytest
import yaml

from busbar.config import Cluster, load, warnings
from busbar.hosts.k3s import authenticators
from tests.support.clusters import site

PATH = "k3s.authentication.jwt"
ISSUER: dict[str, Any] = {
    "issuer": {"url": "https://login.example.com/tenant", "audiences": ["kubernetes"]},
    "claimMappings": {
        "username": {"claim": "sub", "prefix": "oidc:"},
        "groups": {"claim": "groups", "prefix": "oidc:"},
    },
}
OPEN: dict[str, Any] = copy.deepcopy(ISSUER)
OPEN["claimMappings"]["groups"]["prefix"] = ""
RULES = [{"expression": "user.groups.all(group, !group.startsWith('system:'))"}]


def with_issuers(*issuers: Any) -> Cluster:
    return load(site(k3s={"sha256": {"amd64": "0" * 64}, "authentication": {"jwt": list(issuers)}}))


def written(*issuers: Any) -> Any:
    return yaml.safe_load(authenticators(with_issuers(*issuers).k3s))


def warned(*issuers: Any) -> list[str]:
    return [line for line in map(str, warnings(with_issuers(*issuers))) if PATH in line]


def test_issuers_are_written_as_they_are_given_with_keys_that_only_the_api_server_knows() -> None:
    given = [{**ISSUER, "nextRelease": {"some": [{"key": "value"}]}}, {**OPEN, "userValidationRules": RULES}]
    assert written(*given) == {"jwt": given}
    assert authenticators(with_issuers(*given).k3s).startswith("jwt:\n- "), "as host/k3s-lib.sh looks for it"
    assert authenticators(with_issuers().k3s) == ""


def test_what_is_empty_is_left_out_and_texts_are_written_as_texts_without_the_space_around_them() -> None:
    given = copy.deepcopy(ISSUER) | {"claimValidationRules": [], "userValidationRules": None}
    given["issuer"] |= {"audiences": [1234], "certificateAuthority": "-----BEGIN\n-----END\n"}
    given["claimMappings"]["groups"]["prefix"] = ""
    expected = copy.deepcopy(OPEN)
    expected["issuer"] |= {"audiences": ["1234"], "certificateAuthority": "-----BEGIN\n-----END"}
    assert written(given) == {"jwt": [expected]}


@pytest.mark.parametrize("groups", [{"claim": "groups"}, {"expression": "claims.groups"}])
def test_an_issuer_that_can_name_system_masters_is_a_warning(groups: dict[str, str]) -> None:
    issuer = {**OPEN, "claimMappings": {**OPEN["claimMappings"], "groups": groups}}
    [found] = warned(ISSUER, issuer)
    assert found.startswith(f"{PATH}[1].claimMappings.groups: without a prefix the issuer can name the group")
    assert warned(ISSUER, {**issuer, "userValidationRules": RULES}) == []


@pytest.mark.parametrize("mappings", [None, "sub", {"groups": "teams"}, {"groups": None}])
def test_mappings_of_another_form_are_left_to_the_api_server(mappings: Any) -> None:
    assert warned({**ISSUER, "claimMappings": mappings}) == []
