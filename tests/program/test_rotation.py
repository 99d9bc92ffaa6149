"""What the numbers of k3s.rotate change in the graph."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
import yaml

from tests.program.answers import TOKEN, healthy
from tests.program.harness import COMMAND, Run, run_program
from tests.support.clusters import site

K3S = {"sha256": {"amd64": "ab" * 32}}
SERVERS = ("server-1", "server-2", "server-3")


def rotated(**numbers: int) -> Run:
    cluster = site(k3s={**K3S, "rotate": numbers})
    run = run_program(cluster, healthy(cluster))
    assert run.error is None
    return run


@pytest.fixture(scope="module")
def plain() -> Run:
    return rotated()


def config_of(run: Run, name: str) -> dict[str, Any]:
    line = run.named(name).inputs["stdin"].partition("\n")[0]
    written = yaml.safe_load(base64.b64decode(json.loads(line)["config"]))
    assert isinstance(written, dict)
    return written


def texts(run: Run) -> dict[str, str]:
    return {command.name: command.inputs.get("create") or "" for command in run.of_type(COMMAND)}


def test_a_stack_that_never_rotated_has_the_commands_that_it_had_before(plain: Run) -> None:
    assert not [name for name, text in texts(plain).items() if "ROTATE_" in text]
    assert not [name for name in texts(plain) if name.startswith("control-plane-key")]


def test_rotated_certificates_change_servers_workers_and_the_kubeconfig_and_nothing_else(plain: Run) -> None:
    before, after = texts(plain), texts(rotated(certificates=2))
    changed = {name for name, text in after.items() if text != before[name]}
    workers = {"worker-gpu-1", "worker-gpu-2"}
    assert changed == {*(f"control-plane-{name}" for name in SERVERS), *workers, "control-plane-kubeconfig"}
    assert all("ROTATE_CERTIFICATES=2" in after[name] for name in changed)


def test_a_rotated_token_is_another_password_and_all_before_it_stay_in_the_state() -> None:
    run = rotated(server_token=2, agent_token=1)
    passwords = {r.name for r in run.custom if r.type.endswith("RandomPassword")}
    assert passwords == {
        "control-plane-server-token",
        "control-plane-server-token-1",
        "control-plane-server-token-2",
        "control-plane-agent-token",
        "control-plane-agent-token-1",
    }
    for server in SERVERS:
        config = config_of(run, f"control-plane-{server}")
        assert config["token"].endswith(f"{TOKEN}-control-plane-server-token-2")
        assert config["agent-token"] == f"{TOKEN}-control-plane-agent-token-1"
    assert config_of(run, "worker-gpu-1")["token"].endswith(f"{TOKEN}-control-plane-agent-token-1")


def test_hosts_know_their_cluster_again_after_its_token_was_rotated(plain: Run) -> None:
    def install_id(run: Run) -> str:
        words = texts(run)["control-plane-server-1"].split()
        return next(word for word in words if word.startswith("INSTALL_ID="))

    assert install_id(rotated(server_token=1)) == install_id(plain)


def test_the_key_is_rotated_in_three_stages_and_in_each_on_one_server_after_the_other() -> None:
    run = rotated(encryption_key=1)
    stages = ("prepare", "rotate", "reencrypt")
    steps = [run.named(f"control-plane-key-{stage}-{server}") for stage in stages for server in SERVERS]
    for earlier, later in pairwise(steps):
        assert run.waits_for(later, earlier)
    assert run.waits_for(steps[0], run.named("control-plane-server-3"))
    assert run.waits_for(run.named("worker-gpu-1"), steps[-1])
    for step in steps:
        assert "ROTATE_ENCRYPTION_KEY=1" in step.inputs["create"]
        assert "LEADER=server-1" in step.inputs["create"]
