"""What somebody changed by hand is named host by host, and converged without uninstalling anything."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.manifests.operators import MPI_OPERATOR
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, Lab
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

RELEASE = f"{MPI_OPERATOR.namespace}/{MPI_OPERATOR.release}"
# Host -> part of the row that has to name it.
NAMED = {
    "lb-1": "/etc/haproxy/haproxy.cfg was changed",
    "server-2": "k3s is not running",
    "server-3": "/etc/rancher/k3s/config.yaml was changed",
    "worker-2": "taint drill=a:NoSchedule is missing",
    "cluster": f"Helm release {RELEASE} is not installed",
}
AS_APPLIED = ("server-1", "worker-1")


@pytest.fixture
def stack(lab: Lab, tmp_path: Path) -> Iterator[OwnStack]:
    """A cluster whose workers have a taint."""

    def tainted(cluster: dict[str, Any]) -> None:
        cluster["pools"]["lab"]["taints"] = [{"key": "drill", "value": "a", "effect": "NoSchedule"}]

    made = OwnStack(PROJECT, tmp_path / "project", lab.environment)
    made.configure(tainted)
    made.up()
    yield made
    lab.as_usual()


def _change_by_hand(lab: Lab) -> None:
    lab.kubectl("taint node worker-2 drill-")
    kubeconfig = ("--kubeconfig", str(KUBECONFIG))
    removed = lab.run("helm", "uninstall", MPI_OPERATOR.release, "-n", MPI_OPERATOR.namespace, *kubeconfig)
    assert removed.returncode == 0, removed.stderr
    lab.ssh("lb-1", "echo '# by hand' >> /etc/haproxy/haproxy.cfg")
    lab.ssh("server-3", "echo '# by hand' >> /etc/rancher/k3s/config.yaml")
    lab.ssh("server-2", "systemctl stop k3s")


def _rows(stack: OwnStack) -> tuple[int, dict[str, str]]:
    """The exit code of `busbar verify`, and host -> its rows."""
    done = stack.busbar("verify", "dev")
    print(done.stdout)
    rows: dict[str, str] = {}
    for line in done.stdout.splitlines():
        host = line.partition(" ")[0]
        rows[host] = f"{rows.get(host, '')}{line}\n"
    return done.returncode, rows


def _assert_named(stack: OwnStack) -> None:
    code, rows = _rows(stack)
    assert code == 1
    assert {host: what for host, what in NAMED.items() if what not in rows[host]} == {}
    assert all("as applied" in rows[host] for host in AS_APPLIED)


def test_what_was_changed_by_hand_is_named_survives_a_refresh_and_is_converged(
    lab: Lab, stack: OwnStack
) -> None:
    assert _rows(stack)[0] == 0
    nodes = lab.uids("nodes")
    _change_by_hand(lab)
    _assert_named(stack)

    words = ("refresh", "--yes", "--skip-preview", "--suppress-progress", "--stack", "dev")
    refreshed = lab.pulumi(*words, cwd=stack.folder)
    assert refreshed.returncode == 0, refreshed.stdout + refreshed.stderr
    _assert_named(stack)

    began = time.monotonic()
    done = stack.busbar("up", "dev", "--yes", "--skip-preview", "--converge", "all")
    print(f"everything converged: {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout
    assert _rows(stack)[0] == 0
    assert lab.uids("nodes") == nodes, "no Node was deleted"
    assert lab.voters() == set(SERVERS)
    assert stack.no_changes()
