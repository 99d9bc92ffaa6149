"""A server or worker that does not come back stops the update there, and the former values are a way back."""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.images import archive
from lab.mirror.artifacts import sha256
from lab.paths import ARTIFACTS
from lab.topology import MIRROR_URL
from tests.support.lab import PROJECT, SERVERS, WORKERS, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

# The kubelet refuses it when it starts, after etcd and the API of a server have answered.
REFUSED = {"kubelet-arg": ["system-reserved=cpu=640"]}
BACK_SECONDS = 120
SECOND_UPDATE_SECONDS = 300
IMAGES = "/var/lib/rancher/k3s/agent/images"
LARGE, LARGE_FILE = "drill.example/large:1", "drill-large.tar.zst"


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStack]:
    yield OwnStack(PROJECT, tmp_path_factory.mktemp("site") / "project", lab.environment)
    lab.updated()


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
    assert "busbar-control-plane@server-1: failed or interrupted in an earlier update, applied again" in said
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


@pytest.fixture
def large_archive(lab: Lab, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An entry of k3s.images for the servers: 1.2 GB that cannot be compressed."""
    block, path = tmp_path / "block", ARTIFACTS / "images" / LARGE_FILE
    block.write_bytes(os.urandom(100 << 20))
    files = {f"/data/{number}": archive.File(block) for number in range(12)}
    archive.write([archive.Image(name=LARGE, files=files)], path)
    yield {"url": f"{MIRROR_URL}/images/{LARGE_FILE}", "roles": ["server"], "sha256": sha256(path)}
    path.unlink()
    for server in SERVERS:
        lab.ssh(server, f"rm -f {IMAGES}/{LARGE_FILE}; k3s ctr images rm {LARGE} || true")


def _kubelet_began(lab: Lab, server: str) -> float:
    """In seconds since the machine of all hosts booted, as K3s logs it."""
    logged = lab.ssh(server, "journalctl -q -u k3s -o short-monotonic | grep 'Running kubelet ' | tail -n 1")
    return float(logged.lstrip("[ ").partition("]")[0])


@pytest.mark.drill(needs="a real K3s")
@pytest.mark.usefixtures("real_k3s")
def test_with_a_large_archive_each_server_restarts_when_the_kubelet_of_the_one_before_it_runs(
    lab: Lab, site: OwnStack, large_archive: dict[str, Any]
) -> None:
    # K3s tells systemd that a server is ready before it imports archives and starts the kubelet.
    _up(site)
    before = _starts(lab, SERVERS, "k3s")
    site.configure(lambda cluster: cluster["k3s"]["images"].append(large_archive))
    try:
        site.up()
    finally:
        site.configure(lambda cluster: cluster["k3s"]["images"].remove(large_archive))
    after = _starts(lab, SERVERS, "k3s")
    assert [server for server in SERVERS if after[server] != before[server]] == list(SERVERS)
    for first, second in pairwise(SERVERS):
        began = lab.ssh(second, "systemctl show -p InactiveExitTimestampMonotonic --value k3s")
        assert _kubelet_began(lab, first) < int(began) / 1e6, f"{second} restarted first"
