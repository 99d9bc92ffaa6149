"""A server or worker that does not come back stops the update there, and the former values are a way back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab import PROJECT, SERVERS, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

WORKERS = ("worker-1", "worker-2")
# The kubelet refuses it when it starts, after etcd and the API of a server have answered.
REFUSED = {"kubelet-arg": ["system-reserved=cpu=640"]}
BACK_SECONDS = 120
SECOND_UPDATE_SECONDS = 300


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStack]:
    yield OwnStack(PROJECT, tmp_path_factory.mktemp("site") / "project", lab.environment)
    done = lab.up()
    assert done.returncode == 0, done.stdout + done.stderr


def _starts(lab: Lab, hosts: tuple[str, ...], unit: str) -> dict[str, str]:
    return {host: lab.ssh(host, f"systemctl show -p InvocationID --value {unit}") for host in hosts}


def _up(site: OwnStack, *, fails: bool = False, **arguments: dict[str, Any]) -> str:
    def change(cluster: dict[str, Any]) -> None:
        cluster["pools"]["lab"]["max_unavailable"] = 1
        for key in ("server_args", "agent_args"):
            cluster["k3s"].pop(key, None)
        cluster["k3s"] |= arguments

    site.configure(change)
    done = site.busbar("up", "dev", "--yes", "--skip-preview")
    assert (done.returncode != 0) is fails, done.stdout
    return done.stdout


def _are_ready(lab: Lab) -> bool:
    return all(lab.conditions(host)["Ready"] == "True" for host in (*SERVERS, *WORKERS))


def test_a_server_whose_kubelet_does_not_start_keeps_the_others_from_restarting(
    lab: Lab, site: OwnStack
) -> None:
    _up(site)
    before = _starts(lab, SERVERS, "k3s")
    said = _up(site, fails=True, server_args=REFUSED)
    assert "k3s crashed" in said and "invalid Node Allocatable configuration" in said
    after = _starts(lab, SERVERS, "k3s")
    assert [host for host in SERVERS if after[host] != before[host]] == ["server-1"]

    said = _up(site)
    assert "control-plane-server-1: failed or interrupted in an earlier update, applied again" in said
    eventually(lambda: _are_ready(lab), BACK_SECONDS, "all Nodes are Ready")
    assert lab.voters() == set(SERVERS)


def test_a_worker_whose_kubelet_does_not_start_is_repaired_by_the_former_values(
    lab: Lab, site: OwnStack
) -> None:
    _up(site)
    before = _starts(lab, WORKERS, "k3s-agent")
    assert "k3s-agent crashed" in _up(site, fails=True, agent_args=REFUSED)
    began = time.monotonic()
    assert "k3s-agent crashed" in _up(site, fails=True, agent_args=REFUSED)
    assert time.monotonic() - began < SECOND_UPDATE_SECONDS, "nothing waits for the worker that is down"
    after = _starts(lab, WORKERS, "k3s-agent")
    assert [host for host in WORKERS if after[host] != before[host]] == ["worker-1"]

    assert "worker-1: failed or interrupted in an earlier update, applied again" in _up(site)
    eventually(lambda: _are_ready(lab), BACK_SECONDS, "all Nodes are Ready")


def test_an_agent_that_is_down_fails_an_update_that_changes_nothing(lab: Lab, site: OwnStack) -> None:
    _up(site)
    lab.ssh("worker-2", "systemctl stop k3s-agent")
    eventually(lambda: lab.conditions("worker-2")["Ready"] != "True", BACK_SECONDS, "worker-2 is not Ready")
    try:
        assert "worker-2: the Node is not Ready" in _up(site, fails=True)
    finally:
        lab.ssh("worker-2", "systemctl start k3s-agent")
    eventually(lambda: _are_ready(lab), BACK_SECONDS, "all Nodes are Ready")
    assert "nothing to do" in _up(site)
