"""Machines that were replaced, and an upgrade that was killed: `make drills`."""

import base64
import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from busbar.hosts import scripts
from busbar.manifests.operators import MPI_OPERATOR
from lab.hosts import nspawn
from lab.paths import KNOWN_HOSTS
from lab.topology import INTERFACE, find
from tests.support.lab import PROJECT, SERVERS, Change, Lab, eventually

pytestmark = pytest.mark.drill

NEW_ADDRESS = "10.77.0.122"
NEW_HOST_KEY = "/root/new_host_key"


def _install_anew(lab: Lab, host: str, script: str, unit: str) -> None:
    """Leave the host as another machine would come: no K3s, no mark of busbar, other identities."""
    functions = scripts.text(script).rstrip().removesuffix("main")
    text = f"{functions}\nPAYLOAD='{{}}'; begin; k3s_uninstall {unit}; rm -rf /etc/rancher\n"
    encoded = base64.b64encode(text.encode()).decode()
    lab.ssh(
        host,
        f"echo {encoded} | base64 -d | bash -s"
        " && systemd-id128 new > /etc/machine-id && systemctl restart systemd-journald"
        " && test ! -e /var/lib/busbar && test ! -e /etc/rancher/node/password",
    )


def _new_host_key(lab: Lab, host: str, address: str) -> str:
    """Give the host another SSH key, which the lab then accepts too; returns the public key."""
    public = lab.ssh(host, f"ssh-keygen -q -t ed25519 -N '' -f {NEW_HOST_KEY} && cat {NEW_HOST_KEY}.pub")
    key = " ".join(public.split()[:2])
    with KNOWN_HOSTS.open("a") as known:
        known.write(f"{address} {key}\n")
    _use_host_key(lab, host, NEW_HOST_KEY)
    return key


def _use_host_key(lab: Lab, host: str, path: str) -> None:
    original = "/etc/ssh/ssh_host_ed25519_key"
    lab.ssh(
        host,
        f"test -e /root/old_host_key || cp -p {original} /root/old_host_key"
        f" && cp {path} {original} && systemctl restart ssh",
    )


def _first_address(first: str, second: str) -> str:
    """A command that puts both addresses on the host's interface, in this order; both answer all the time.

    flannel takes an interface's first address, so preflight refuses a host that is listed by another one.
    """
    return (
        f"echo 1 > /proc/sys/net/ipv4/conf/{INTERFACE}/promote_secondaries"
        f" && ip addr replace {first}/24 dev {INTERFACE} && ip addr del {second}/24 dev {INTERFACE}"
        f" && ip addr add {second}/24 dev {INTERFACE}"
    )


@pytest.fixture
def worker_2_elsewhere(lab: Lab, changed: Change) -> Iterator[None]:
    """worker-2 has NEW_ADDRESS until the usual configuration comes back (`changed` ends after this)."""
    old = find("worker-2").address
    lab.ssh("worker-2", _first_address(NEW_ADDRESS, old))
    yield
    lab.ssh("worker-2", _first_address(old, NEW_ADDRESS))


@pytest.mark.usefixtures("worker_2_elsewhere")
def test_a_replaced_worker_joins_under_its_old_name_with_another_address(lab: Lab, changed: Change) -> None:
    before = lab.uids("nodes")
    _install_anew(lab, "worker-2", "k3s-agent", "k3s-agent")

    def replaced(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["workers"][1]["address"] = NEW_ADDRESS

    changed(replaced)
    after = lab.uids("nodes")
    assert {name for name in after if after[name] != before.get(name)} == {"worker-2"}
    addresses = lab.kubectl("get node worker-2 -o jsonpath='{.status.addresses[*].address}'")
    assert NEW_ADDRESS in addresses
    assert lab.conditions("worker-2")["Ready"] == "True"


def test_a_wiped_server_fails_an_update_without_changes_until_it_has_joined_again(
    lab: Lab, changed: Change
) -> None:
    changed(lambda _: None)
    _install_anew(lab, "server-3", "k3s-server", "k3s")
    assert "server-3: " in changed(lambda _: None, fails=True), "its Node still says that it is Ready"
    eventually(lambda: lab.conditions("server-3")["Ready"] != "True", 120, "server-3 is not Ready")
    assert "server-3: the Node is not Ready" in changed(lambda _: None, fails=True)

    lab.busbar("up", "dev", "--yes", "--skip-preview", "--converge", "server-3")
    assert lab.voters() == set(SERVERS)


@pytest.mark.parametrize("server", ["server-3", "server-1"])
def test_a_replaced_server_joins_under_its_old_name_and_the_data_survive(
    lab: Lab, changed: Change, server: str
) -> None:
    index = SERVERS.index(server)
    lab.kubectl("create configmap drill --from-literal=a=b")
    before = lab.uids("nodes")
    _install_anew(lab, server, "k3s-server", "k3s")
    key = _new_host_key(lab, server, f"10.77.0.{11 + index}")

    def replaced(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["servers"][index]["host_key"] = key

    try:
        changed(replaced)
        after = lab.uids("nodes")
        assert {name for name in after if after[name] != before.get(name)} == {server}
        assert lab.voters() == set(SERVERS)
        assert lab.kubectl("get configmap drill -o jsonpath='{.data.a}'").strip() == "b"
    finally:
        _use_host_key(lab, server, "/root/old_host_key")
        lab.kubectl("delete configmap drill --ignore-not-found")


def test_a_replaced_load_balancer_serves_the_api_again_and_no_agent_restarts(
    lab: Lab, changed: Change
) -> None:
    nodes, starts = lab.uids("nodes"), [lab.last_start(worker) for worker in ("worker-1", "worker-2")]
    nspawn.stop(nspawn.folder(find("lb-1")))
    lab.boot()
    assert lab.ssh("lb-1", "systemctl is-active haproxy || true").strip() == "inactive"
    key = _new_host_key(lab, "lb-1", find("lb-1").address)

    def replaced(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["load_balancers"][0]["host_key"] = key

    try:
        changed(replaced)
        readyz = "curl -sk -o /dev/null -w '%{http_code}' https://10.77.0.10:6443/readyz"
        assert lab.ssh("worker-1", readyz).strip() == "200"
        assert lab.uids("nodes") == nodes
        assert [lab.last_start(worker) for worker in ("worker-1", "worker-2")] == starts
    finally:
        _use_host_key(lab, "lb-1", "/root/old_host_key")


def _statuses(lab: Lab) -> list[str]:
    """Of Helm's revisions of the MPI Operator, the newest last."""
    labels = f"owner=helm,name={MPI_OPERATOR.release}"
    found = lab.kubectl(
        f"get secrets -n {MPI_OPERATOR.namespace} -l {labels} --sort-by=.metadata.creationTimestamp"
        " -o jsonpath='{.items[*].metadata.labels.status}'"
    )
    return found.split()


def _kill_at_once(update: subprocess.Popen[bytes]) -> None:
    """End the engine, its plugins and Helm as if their machine lost power: none of them can still note it."""
    engine = psutil.Process(update.pid)
    for process in [engine, *engine.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    update.wait(30)


def test_a_helm_upgrade_that_was_killed_is_recovered_by_the_next_update(lab: Lab, changed: Change) -> None:
    def never_available(cluster: dict[str, Any]) -> None:
        cluster["mpi_operator"]["image"] = "mpioperator/mpi-operator:missing"

    update = subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev",
         "--config-file", str(lab.config_with(never_available))],
        cwd=PROJECT, env=lab.environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: _statuses(lab)[-1:] == ["pending-upgrade"], 300, "Helm upgrades the MPI Operator")
    finally:
        _kill_at_once(update)
    assert lab.pulumi("cancel", "--yes", "--stack", "dev").returncode == 0

    def corrected(cluster: dict[str, Any]) -> None:
        cluster["mpi_operator"]["values"] = {"drill": "corrected"}

    text = changed(corrected)
    assert f"Helm release {MPI_OPERATOR.release}: found revision" in text
    assert _statuses(lab)[-1] == "deployed"
    assert "pending-upgrade" not in _statuses(lab)
