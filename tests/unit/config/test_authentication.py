"""Issuers of tokens: what the API server would refuse at its start is refused before."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from busbar.config import ConfigError, load, warnings
from tests.support.clusters import site

PATH = "k3s.authentication.jwt"
ISSUER = {
    "issuer": {"url": "https://login.example.com/tenant", "audiences": ["kubernetes"]},
    "claimMappings": {
        "username": {"claim": "sub", "prefix": "oidc:"},
        "groups": {"claim": "groups", "prefix": "oidc:"},
    },
}


def with_issuers(*issuers: Any) -> dict[str, Any]:
    return site(k3s={"sha256": {"amd64": "0" * 64}, "authentication": {"jwt": list(issuers)}})


def issuer(path: str, value: Any) -> dict[str, Any]:
    """A valid issuer with one value put in."""
    data: Any = copy.deepcopy(ISSUER)
    *steps, last = path.split(".")
    place = data
    for step in steps:
        place = place[step]
    place[last] = value
    return dict(data)


def findings(*issuers: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(with_issuers(*issuers))
    return caught.value.findings


def test_an_issuer_with_all_that_kubernetes_knows_of_it_is_accepted() -> None:
    whole = issuer("userValidationRules", [{"expression": "!user.username.startsWith('system:')"}])
    whole["issuer"] |= {"audiences": ["a", "b"], "audienceMatchPolicy": "MatchAny"}
    whole["issuer"] |= {"discoveryURL": "https://10.0.0.9:8443/.well-known/openid-configuration"}
    whole["claimValidationRules"] = [{"claim": "hd", "requiredValue": "example.com"}]
    whole["claimMappings"] |= {"uid": {"claim": "sub"}}
    whole["claimMappings"]["extra"] = [{"key": "example.com/team", "valueExpression": "claims.team"}]
    cluster = load(with_issuers(whole))
    assert [each.to_kubernetes() for each in cluster.k3s.authentication.jwt] == [whole]
    assert not [line for line in warnings(cluster) if PATH in line]


@pytest.mark.parametrize(
    ("path", "value", "finding"),
    [
        (
            "issuer.url",
            "http://login.example.com",
            "issuer.url: 'http://login.example.com' is not an https:// URL without login, query and fragment",
        ),
        (
            "issuer.url",
            "https://me@login.example.com",
            "issuer.url: 'https://me@login.example.com' is not an",
        ),
        ("issuer.url", "https://login.example.com?a=b", "issuer.url: 'https://login.example.com?a=b' is not"),
        ("issuer.audiences", [], "issuer.audiences: got none, expected at least 1"),
        ("issuer.audiences", [""], "issuer.audiences[0]: '' is empty"),
        (
            "issuer.url",
            "https://login.example.com/a/.well-known/openid-configuration",
            "issuer.url: 'https://login.example.com/a/.well-known/openid-configuration' has the path that is "
            "added to it. Fix: https://login.example.com/a",
        ),
        ("issuer.audiences", ["a", "b"], "issuer.audienceMatchPolicy: missing: there is more than one"),
        (
            "issuer.certificateAuthority",
            "ca.pem",
            "issuer.certificateAuthority: 'ca.pem' is not a certificate",
        ),
        ("issuer.certificate_authority", "x", "issuer.certificate_authority: unknown key; did you mean"),
        ("claimMappings.username", {"claim": "sub"}, "claimMappings.username.prefix: missing: a claim needs"),
        ("claimMappings.username", {}, "claimMappings.username: has neither claim nor expression. Fix: give"),
        (
            "claimMappings.username",
            {"claim": "sub", "prefix": "", "expression": "claims.sub"},
            "claimMappings.username: has claim and expression. Fix: give one of the two",
        ),
        (
            "claimMappings.groups",
            {"expression": "claims.groups", "prefix": "a"},
            "claimMappings.groups.prefix: given with an expression. Fix: write it into the expression",
        ),
        (
            "claimMappings.groups",
            {"expression": "claims.groups", "prefix": ""},
            "claimMappings.groups.prefix: given with an expression. Fix: write it into the expression",
        ),
        ("claimMappings.uid", {}, "claimMappings.uid: has neither claim nor expression"),
        (
            "claimMappings.username",
            {"expression": "claims.email"},
            "claimMappings.username.expression: uses claims.email, but nothing asks for claims.email_v",
        ),
        (
            "claimMappings.extra",
            [{"key": "team", "valueExpression": "claims.team"}],
            "claimMappings.extra[0].key: 'team' is not DOMAIN/NAME in lower case",
        ),
        (
            "claimValidationRules",
            [{"claim": "hd"}],
            "claimValidationRules[0].requiredValue: missing. Fix: give the value that 'hd' must have",
        ),
        (
            "claimValidationRules",
            [{"expression": "true", "requiredValue": "x"}],
            "claimValidationRules[0].requiredValue: given with an expression. Fix: remove one of the two",
        ),
        (
            "claimValidationRules",
            [{"claim": "hd", "requiredValue": "x", "message": "no"}],
            "claimValidationRules[0].message: given with a claim; it is for an expression",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(path: str, value: Any, finding: str) -> None:
    [found] = findings(issuer(path, value))
    assert found.startswith(f"{PATH}[0].{finding}")


@pytest.mark.parametrize(
    "verified",
    [
        {"claimValidationRules": [{"expression": "claims.email_verified == true"}]},
        {
            "claimMappings": {
                "username": {"expression": "claims.email"},
                "extra": [{"key": "a.b/c", "valueExpression": "string(claims.email_verified)"}],
            }
        },
        {"claimMappings": {"username": {"expression": "claims.email_verified ? claims.email : ''"}}},
    ],
)
def test_a_name_from_an_email_address_is_taken_where_something_asks_whether_it_is_verified(
    verified: dict[str, Any],
) -> None:
    load(with_issuers(issuer("claimMappings.username", {"expression": "claims.email"}) | verified))


def test_an_issuer_is_listed_once() -> None:
    assert findings(ISSUER, ISSUER) == [
        f"{PATH}[1].issuer.url: 'https://login.example.com/tenant' is also that of {PATH}[0]. Fix: keep one"
    ]


def test_an_issuer_that_can_name_system_masters_is_a_warning() -> None:
    open_groups = issuer("claimMappings.groups", {"claim": "groups", "prefix": ""})
    [found] = [line for line in warnings(load(with_issuers(open_groups))) if PATH in line]
    assert found.startswith(f"{PATH}[0].claimMappings.groups: without a prefix the issuer can name the group")
    rules = [{"expression": "user.groups.all(group, !group.startsWith('system:'))"}]
    checked = warnings(load(with_issuers(open_groups | {"userValidationRules": rules})))
    assert not [line for line in checked + warnings(load(with_issuers(ISSUER))) if PATH in line]
