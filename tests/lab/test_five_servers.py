"""Three servers become five, and three again, under load; nothing that runs restarts."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import keys, nspawn
from lab.topology import find
from tests.support.api_load import ApiLoad
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, UP_SECONDS, Lab
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

MORE = ("server-4", "server-5")
RUNNING = {**dict.fromkeys(SERVERS, "k3s"), "worker-1": "k3s-agent", "worker-2": "k3s-agent"}
# How long requests may fail while the load balancer notices that a server is gone.
OUTAGE_SECONDS = 60
LEFT = "ls -d /var/lib/busbar /usr/local/bin/k3s /etc/rancher/k3s 2>/dev/null || true"


@pytest.fixture
def stack(lab: Lab, tmp_path: Path) -> Iterator[OwnStack]:
    lab.boot("--servers", str(len(SERVERS) + len(MORE)))
    try:
        yield OwnStack(PROJECT, tmp_path / "project", lab.environment)
    finally:
        words = (sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview")
        done = lab.run(*words, seconds=UP_SECONDS)
        for name in MORE:
            nspawn.stop(nspawn.folder(find(name)))
    assert done.returncode == 0, done.stdout + done.stderr


def _starts(lab: Lab) -> dict[str, str]:
    """When K3s began to run on each host."""
    show = "systemctl show -p ActiveEnterTimestampMonotonic --value"
    return {host: lab.ssh(host, f"{show} {unit}").strip() for host, unit in RUNNING.items()}


def _up(stack: OwnStack, what: str) -> None:
    """An update under load, of which nothing is lost."""
    with ApiLoad(KUBECONFIG) as load:
        began = time.monotonic()
        stack.up()
        seconds = time.monotonic() - began
    print(f"{what}: {seconds:.0f} s; {load.account}")
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
    assert load.account.outage < OUTAGE_SECONDS


def test_two_servers_join_three_and_leave_again_and_nothing_that_runs_restarts(
    lab: Lab, stack: OwnStack
) -> None:
    def five(cluster: dict[str, Any]) -> None:
        for name in MORE:
            key = keys.public_line(keys.host_key(name))
            cluster["hosts"]["servers"].append({"name": name, "address": find(name).address, "host_key": key})

    def three(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["servers"][len(SERVERS) :]

    before = _starts(lab)
    stack.configure(five)
    _up(stack, "three servers become five")
    assert lab.voters() == {*SERVERS, *MORE}
    assert all(find(name).address in lab.ssh("lb-1", "cat /etc/haproxy/haproxy.cfg") for name in MORE)
    assert stack.busbar("verify", "dev").returncode == 0

    stack.configure(three)
    _up(stack, "five servers become three")
    assert lab.voters() == set(SERVERS)
    assert set(lab.uids("nodes")) == set(RUNNING)
    assert [lab.ssh(name, LEFT) for name in MORE] == ["", ""]
    assert stack.busbar("verify", "dev").returncode == 0
    assert _starts(lab) == before


def test_a_server_that_is_added_and_cannot_join_holds_up_no_worker(lab: Lab, stack: OwnStack) -> None:
    lab.boot("--servers", "5", "--workers", "3")
    drop_in = "/etc/systemd/system/k3s.service.d"
    broken = f"mkdir -p {drop_in} && printf '[Service]\\nExecStartPre=/bin/false\\n' > {drop_in}/drill.conf"

    def more(cluster: dict[str, Any]) -> None:
        for kind, name in (*(("servers", name) for name in MORE), ("workers", "worker-3")):
            key = keys.public_line(keys.host_key(name))
            cluster["hosts"][kind].append({"name": name, "address": find(name).address, "host_key": key})

    try:
        before = _starts(lab)
        lab.ssh("server-4", broken)
        stack.configure(more)
        done = stack.busbar("up", "dev", "--yes", "--skip-preview")
        assert done.returncode != 0, done.stdout
        assert "server-4" in done.stdout
        assert lab.conditions("worker-3")["Ready"] == "True", done.stdout
        assert lab.voters() == set(SERVERS)

        lab.ssh("server-4", f"rm {drop_in}/drill.conf && systemctl daemon-reload")
        stack.up()
        assert lab.voters() == {*SERVERS, *MORE}
        assert stack.busbar("verify", "dev").returncode == 0
        assert _starts(lab) == before
    finally:
        lab.ssh("server-4", f"rm -rf {drop_in}; systemctl daemon-reload")
        # The fixture's update removes both hosts from the cluster; this one is not among those that it stops.
        done = lab.run(
            sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview", seconds=UP_SECONDS
        )
        nspawn.stop(nspawn.folder(find("worker-3")))
    assert done.returncode == 0, done.stdout + done.stderr
