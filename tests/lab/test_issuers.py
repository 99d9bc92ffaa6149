"""Users of an identity provider: its tokens are accepted, others are not, and no server restarts for it."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.topology import GATEWAY, find
from tests.support.lab import PROJECT, SERVERS, Lab
from tests.support.own_stack import OwnStack
from tests.support.token_issuer import Issuer, running_issuer

pytestmark = pytest.mark.drill

AUDIENCE = "kubernetes-of-the-lab"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@dataclass
class Site:
    lab: Lab
    stack: OwnStack
    issuer: Issuer
    starts: list[str]

    def authenticator(self, **mappings: Any) -> dict[str, Any]:
        return {
            "issuer": {
                "url": self.issuer.url,
                "certificateAuthority": self.issuer.certificate,
                "audiences": [AUDIENCE],
            },
            "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}, **mappings},
        }

    def configure(self, *jwt: dict[str, Any]) -> None:
        def change(cluster: dict[str, Any]) -> None:
            cluster["k3s"]["authentication"] = {"jwt": [*jwt]}

        self.stack.configure(change)

    def user(self, server: str, **claims: Any) -> dict[str, Any] | int:
        """Whom this server takes the bearer of a token for, or the status with which it refuses it."""
        request = urllib.request.Request(
            f"https://{find(server).address}:6443{REVIEW}",
            data=json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode(),
            headers={
                "Authorization": f"Bearer {self.issuer.token(**claims)}",
                "Content-Type": "application/json",
            },
        )
        ca = self.lab.ssh(server, "cat /var/lib/rancher/k3s/server/tls/server-ca.crt")
        try:
            with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=ca)) as answer:
                info = json.load(answer)["status"]["userInfo"]
        except urllib.error.HTTPError as error:
            return error.code
        return {"name": info["username"], "groups": info.get("groups", [])}


def _starts(lab: Lab) -> list[str]:
    return [lab.ssh(server, "systemctl show -p InvocationID --value k3s") for server in SERVERS]


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("issuers")
    stack = OwnStack(PROJECT, folder / "project", lab.environment)
    stack.up()
    with running_issuer(GATEWAY, folder) as issuer:
        yield Site(lab, stack, issuer, _starts(lab))
    lab.as_usual()


def test_a_token_of_the_issuer_is_accepted_and_one_for_another_audience_is_not(site: Site) -> None:
    claims = {"sub": "jane", "aud": AUDIENCE, "teams": ["training"]}
    assert [site.user(server, **claims) for server in SERVERS] == [401] * 3, "without the issuer"
    site.configure(site.authenticator(groups={"claim": "teams", "prefix": "oidc:"}))
    site.stack.up()
    jane = {"name": "oidc:jane", "groups": ["oidc:training", "system:authenticated"]}
    assert [site.user(server, **claims) for server in SERVERS] == [jane] * 3
    assert [site.user(server, **{**claims, "aud": "another"}) for server in SERVERS] == [401] * 3
    assert _starts(site.lab) == site.starts
    assert site.stack.busbar("verify", "dev").returncode == 0
    assert site.stack.no_changes()


def test_issuers_that_the_api_server_refuses_fail_the_update_and_the_former_ones_stay(site: Site) -> None:
    site.configure(site.authenticator(groups={"expression": "claims.teams +"}))
    done = site.stack.busbar("up", "dev", "--yes", "--skip-preview")
    assert done.returncode != 0
    assert "has not loaded k3s.authentication.jwt" in done.stdout
    assert "failed to validate authentication config" in done.stdout
    assert [site.user(server, sub="jane", aud=AUDIENCE) for server in SERVERS] == [
        {"name": "oidc:jane", "groups": ["system:authenticated"]}
    ] * 3
    assert _starts(site.lab) == site.starts


def test_without_the_issuer_its_tokens_are_refused(site: Site) -> None:
    site.configure()
    site.stack.up()
    assert [site.user(server, sub="jane", aud=AUDIENCE) for server in SERVERS] == [401] * 3
    assert _starts(site.lab) == site.starts
