"""What the numbers of k3s.rotate change in the graph."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.program.answers import TOKEN, performed
from tests.program.harness import COMMAND, Run
from tests.support.clusters import site
from tests.support.host_commands import files_of

K3S = {"sha256": {"amd64": "ab" * 32}}
SERVERS, PLANE = ("server-1", "server-2", "server-3"), "busbar-control-plane-"


def rotated(**numbers: int) -> Run:
    return performed(site(k3s={**K3S, "rotate": numbers}))


@pytest.fixture(scope="module")
def plain() -> Run:
    return rotated()


def config_of(run: Run, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(files_of(run.named(name).inputs["stdin"])["config"]))


def texts(run: Run) -> dict[str, str]:
    return {command.name: command.inputs.get("create") or "" for command in run.of_type(COMMAND)}


def test_a_stack_that_never_rotated_has_its_commands_and_tokens_before_preflight(plain: Run) -> None:
    assert not [name for name, text in texts(plain).items() if "ROTATE_" in text]
    tokens = [each for each in plain.custom if each.type.endswith("RandomPassword")]
    preflight = plain.named("busbar-preflight-hosts")
    assert not [token.name for token in tokens if plain.waits_for(token, preflight)]
    assert plain.waits_for(preflight, plain.named("busbar-control-plane-server-token"))


def test_rotated_certificates_change_servers_workers_and_the_kubeconfig_and_nothing_else(plain: Run) -> None:
    before, after = texts(plain), texts(rotated(certificates=2))
    changed = {name for name, text in after.items() if text != before[name]}
    servers = {f"busbar-control-plane@{name}" for name in SERVERS}
    assert changed == servers | {"busbar-worker@gpu-1", "busbar-worker@gpu-2", f"{PLANE}kubeconfig"}
    assert all("ROTATE_CERTIFICATES=2" in after[name] for name in changed)


def test_a_rotated_token_is_another_password_and_the_earlier_ones_stay_in_the_state() -> None:
    run = rotated(server_token=2, agent_token=1)
    passwords = {r.name for r in run.custom if r.type.endswith("RandomPassword")}
    names = ("server-token", "server-token-1", "server-token-2", "agent-token", "agent-token-1")
    assert passwords == {f"{PLANE}{name}" for name in names}
    for server in SERVERS:
        config = config_of(run, f"busbar-control-plane@{server}")
        assert config["token"].endswith(f"{TOKEN}-{PLANE}server-token-2")
        assert config["agent-token"] == f"{TOKEN}-{PLANE}agent-token-1"
    assert config_of(run, "busbar-worker@gpu-1")["token"].endswith(f"{TOKEN}-{PLANE}agent-token-1")


def test_preflight_is_told_the_id_that_the_hosts_are_marked_with(plain: Run) -> None:
    asked = json.loads(plain.named("busbar-preflight-hosts").inputs["stdin"])["install_id"]
    assert f"INSTALL_ID={asked}" in texts(plain)["busbar-worker@gpu-1"].split()


def test_hosts_know_their_cluster_again_after_its_token_was_rotated(plain: Run) -> None:
    def install_id(run: Run) -> str:
        words = texts(run)["busbar-control-plane@server-1"].split()
        return next(word for word in words if word.startswith("INSTALL_ID="))

    assert install_id(rotated(server_token=1)) == install_id(plain)
