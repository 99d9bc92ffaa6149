"""`busbar adopt` on the real engine: a state that was lost is written again, and an update has nothing to do.

The first update makes the state with Commands that do nothing (tests/support/engine_plugins.py). What the
hosts would have is taken from the Commands of that state; the Kubernetes objects are on an API server.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.stack import adopters, adoption, session
from busbar.cli.stack.adopters import Adopters, Answer, CommandFailed
from busbar.cli.stack.engine import open_stack
from busbar.cli.stack.target import Target
from busbar.hosts import scripts
from busbar.hosts.script_output import result
from busbar.operations.adoption import Found, Known, Lost, Part, Secrets
from tests.support.api_server import ApiServer
from tests.support.clusters import VARIED_SECRETS, site, varied_site
from tests.support.engine_site import CORE, STACK, EngineSite, name_of, plain, resources

State = Mapping[str, Any]
COMMANDS = ("command:remote:Command", "command:local:Command")
DATA = "/var/lib/rancher/k3s/server"


class Site:
    """A stack that was made, and what its hosts know of it."""

    def __init__(self, folder: Path, server: ApiServer, cluster: Mapping[str, Any], **secrets: str) -> None:
        self.site, self.server = EngineSite(folder, server), server
        self.site.tell(cluster)
        self.site.create(CORE, {"busbar:cluster": cluster}, secrets)
        _, error = self.site.up(CORE)
        assert not error, error
        self.former = self.site.export(CORE)
        self.site.put_objects(self.former)
        self.commands = {name_of(each): each for each in resources(self.former) if each["type"] in COMMANDS}
        self.variables = self.site.variables()
        self.target = Target(self.site.project(CORE), STACK)

    def lose(self) -> None:
        self.site.pulumi(CORE, "stack", "rm", "--yes", "--force", "--preserve-config")

    def hosts(self) -> dict[str, Known]:
        parts: dict[str, dict[str, Part]] = {}
        versions: dict[str, str] = {}
        rotated: dict[str, str] = {}
        for each in self.commands.values():
            inputs = each["inputs"]
            values = scripts.values_of(inputs.get("create") or "")
            if "OWNER" not in values:
                continue
            payload = scripts.payload_of(plain(inputs["stdin"]))
            sums = frozenset(value for key, value in values.items() if key.startswith("SHA256"))
            of_host = parts.setdefault(values["NODE_NAME"], {})
            # Several steps install one part: the packages of a load balancer, and its configuration.
            payload |= of_host[values["OWNER"]].files if values["OWNER"] in of_host else {}
            of_host[values["OWNER"]] = Part(values["OWNER"], values["INSTALL_ID"], sums, payload)
            versions.setdefault(values["NODE_NAME"], values.get("VERSION", ""))
            rotated |= {key[7:].lower(): value for key, value in values.items() if key.startswith("ROTATE_")}
        facts = result(self.commands["busbar-control-plane@server-1"]["outputs"]["stdout"])
        kubeconfig = result(plain(self.commands["busbar-control-plane-kubeconfig"]["outputs"]["stdout"]))
        files = {
            f"{DATA}/token": f"K10{facts['ca_sha256']}::server:x",
            f"{DATA}/tls/server-ca.crt": facts["ca_pem"],
            "/etc/rancher/k3s/k3s.yaml": kubeconfig["kubeconfig"],
            "/var/lib/busbar/rotated": "".join(f"{kind} {number}\n" for kind, number in rotated.items()),
        }
        return {name: Known(versions[name], tuple(each.values()), files) for name, each in parts.items()}

    def printed(self, text: str, inputs: Mapping[str, Any]) -> str:
        """What a local Command has printed in the first update."""
        [found] = {
            plain(each["outputs"]["stdout"])
            for each in self.commands.values()
            if each["inputs"].get("create") == text and plain(each["inputs"]["stdin"]) == inputs["stdin"]
        }
        return str(found)

    def adopt(
        self,
        monkeypatch: pytest.MonkeyPatch,
        hosts: Mapping[str, Known] | None = None,
        run: Answer | None = None,
    ) -> int:
        for key, value in self.variables.items():
            monkeypatch.setenv(key, value)
        monkeypatch.chdir(self.target.project)
        monkeypatch.setattr(adopters, "connect", lambda _: self.server.api)
        monkeypatch.setattr(session, "operation_lock", lambda *_: nullcontext())
        secrets = {
            name_of(each): plain(each["outputs"]["result"])
            for each in resources(self.former)
            if "randomPassword" in each["type"]
        }
        nothing: Any = None
        lost = Lost(hosts=(), login=nothing, installed=frozenset(), secrets=nothing)
        found = Found("0123456789abcdef", hosts or self.hosts(), Secrets(secrets))
        self.adopters = Adopters(lost, found, self.target.project, run or self.printed)
        code = session.run(
            "adopt",
            self.target,
            lambda s: adoption.write(s, open_stack(s.engine, self.target, create=s.say), self.adopters),
        )
        monkeypatch.undo()
        return code


def shape(state: State) -> dict[str, Any]:
    """Each resource by its URN, with what does not differ between two runs."""
    return {
        each["urn"]: [
            re.sub(r"::[0-9a-f-]{36}$", "", str(each.get("provider", ""))),
            each.get("parent"),
            sorted(each.get("dependencies") or ()),
            {key: sorted(urns) for key, urns in (each.get("propertyDependencies") or {}).items() if urns},
            each.get("deletedWith"),
            plain(each.get("inputs")),
        ]
        for each in resources(state)
    }


CLUSTERS = {"new": (site(), {}), "varied": (varied_site(), VARIED_SECRETS)}


@pytest.fixture(params=["new"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, server: ApiServer) -> Site:
    cluster, secrets = CLUSTERS[request.param]
    return Site(tmp_path, server, cluster, **secrets)


@pytest.mark.parametrize("stack", ["new", "varied"], indirect=True)
def test_a_lost_state_is_written_again_and_an_update_changes_nothing(
    stack: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.lose()
    assert stack.adopt(monkeypatch) == 0
    assert (stack.adopters.differences, stack.adopters.missing) == ({}, [])
    written = stack.site.pulumi(CORE, "stack", "export")
    assert not [each for each in stack.adopters.found.secrets.values.values() if each in written]
    before, after = shape(stack.former), shape(stack.site.export(CORE))
    changed = {urn.rpartition("::")[2] for urn in {*before, *after} if before.get(urn) != after.get(urn)}
    # A host prints the CA, which load balancers have, without its last line break; the plugin with it.
    assert not {each for each in changed if "lb-" not in each}
    steps, error = stack.site.up(CORE)
    assert (error, {each.urn for each in steps if each.operation != "same"}) == ("", set())


def test_what_differs_is_updated_and_a_failure_or_an_interruption_leaves_an_empty_state(
    stack: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.lose()

    def refused(text: str, inputs: Mapping[str, Any]) -> str:
        raise CommandFailed("preflight failed on 1 of 6 hosts")

    assert stack.adopt(monkeypatch, run=refused) == 1
    assert not stack.site.export(CORE)["deployment"].get("resources")

    def interrupted(text: str, inputs: Mapping[str, Any]) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        raise CommandFailed("interrupted")

    assert stack.adopt(monkeypatch, run=interrupted) == 130
    assert not stack.site.export(CORE)["deployment"].get("resources")

    hosts = stack.hosts()
    hosts["gpu-2"] = replace(hosts["gpu-2"], parts=())
    [part] = hosts["server-3"].parts
    changed = {**part.files, "config": f"{part.files['config']}debug: true\n".replace("tls-san", "tls-sam")}
    hosts["server-3"] = replace(hosts["server-3"], parts=(replace(part, files=changed),))
    [job] = [plain(each["inputs"]) for each in resources(stack.former) if each["type"].endswith(":MPIJob")]
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    stack.server.api.delete(f"/apis/{job['apiVersion']}/namespaces/{namespace}/mpijobs/{name}")
    assert stack.adopt(monkeypatch, hosts) == 0
    assert stack.adopters.differences == {
        "busbar-worker@gpu-2": "it is not installed",
        "busbar-control-plane@server-3": "config is not as configured",
        "busbar-nccl-h100-collect": f"the job {name} is not on the cluster",
    }
    steps, error = stack.site.up(CORE)
    named = {(each.operation, each.name) for each in steps if each.operation != "same"}
    updated = {("update", each) for each in stack.adopters.differences}
    assert named == {("create", "busbar-nccl-h100-job"), *updated}
    # The plugin measures nothing, and what was not measured has not passed.
    assert "NCCL validation failed" in error
