"""Faults under a steady load on the API through the load balancer: nothing that was acknowledged is lost.

Each drill prints its account before it says whether the account is good.
"""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from lab.hosts import nspawn
from lab.topology import find
from tests.support.api_load import Account, ApiLoad
from tests.support.lab import KUBECONFIG, RECOVERY_SECONDS, SERVERS, Lab, eventually

pytestmark = pytest.mark.drill

# How long requests may fail while the load balancer and etcd notice that a server is gone.
OUTAGE_SECONDS = 60
ETCD = "/var/lib/rancher/k3s/server/db/etcd"


def _leader(lab: Lab) -> str:
    """The server that leads etcd."""
    metric = "curl -s --max-time 5 http://127.0.0.1:2381/metrics | grep -c '^etcd_server_is_leader 1' || true"
    leaders = [server for server in SERVERS if lab.ssh(server, metric).strip() == "1"]
    assert len(leaders) == 1, leaders
    return leaders[0]


@contextmanager
def _account(lab: Lab, what: str) -> Iterator[ApiLoad]:
    """A load; at the end nothing is lost, the watch has seen everything, and no request failed for long."""
    lab.await_voters()  # whatever the drill before left
    with ApiLoad(KUBECONFIG) as load:
        load.goes_on()
        yield load
        load.goes_on()
    account: Account = load.account
    print(f"{what}: {account}")
    assert not account.lost
    assert account.acknowledged <= account.watched
    assert account.outage < OUTAGE_SECONDS


@contextmanager
def killed(lab: Lab, server: str) -> Iterator[None]:
    """K3s ends at once; systemd starts it again."""
    lab.ssh(server, "systemctl kill --signal=KILL k3s")
    yield


@contextmanager
def switched_off(lab: Lab, server: str) -> Iterator[None]:
    """The machine ends at once, and boots again with its disk."""
    nspawn.clean_stale_state(find(server))
    try:
        yield
    finally:
        lab.boot()


@contextmanager
def rebooted(lab: Lab, host: str) -> Iterator[None]:
    """The machine reboots: everything on it is stopped in order. systemd-nspawn leaves the start to us."""
    lab.ssh(host, "systemctl reboot --no-block")
    try:
        eventually(lambda: nspawn.running(find(host)) is None, RECOVERY_SECONDS, f"{host} has stopped")
        yield
    finally:
        lab.boot()


@contextmanager
def _no_way_to(lab: Lab, server: str, others: Sequence[str]) -> Iterator[None]:
    """No packet of the server leaves for these hosts, and so no answer comes from one."""
    routes = [f"blackhole {find(name).address}/32" for name in others if name != server]
    lab.ssh(server, "; ".join(f"ip route replace {route}" for route in routes))
    try:
        yield
    finally:
        lab.ssh(server, "; ".join(f"ip route del {route}" for route in routes))


def cut_off(lab: Lab, server: str) -> AbstractContextManager[None]:
    """It reaches no other host."""
    return _no_way_to(lab, server, ("lb-1", *SERVERS, "worker-1", "worker-2"))


def parted(lab: Lab, server: str) -> AbstractContextManager[None]:
    """It reaches no other server; the load balancer still reaches it, and its API has no etcd to ask."""
    return _no_way_to(lab, server, SERVERS)


@contextmanager
def frozen(lab: Lab, server: str) -> Iterator[None]:
    """The API server hangs, and its port stays open."""
    listener = "ss -Hltnp 'sport = :6443' | grep -o 'pid=[0-9]*' | head -1 | cut -d= -f2"
    process = lab.ssh(server, listener).strip()
    lab.ssh(server, f"kill -STOP {process}")
    try:
        yield
    finally:
        lab.ssh(server, f"kill -CONT {process}")


@contextmanager
def slow_link(lab: Lab, server: str) -> Iterator[None]:
    """2 Mbit/s to the host, and a queue of 400 ms."""
    link = ("tc", "qdisc", "replace", "dev", f"vb-{server}", "root")
    subprocess.run([*link, "tbf", "rate", "2mbit", "burst", "16kb", "latency", "400ms"], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", f"vb-{server}", "root"], check=True)


@contextmanager
def no_dns(lab: Lab, server: str) -> Iterator[None]:
    """The host cannot resolve names, and K3s restarts so."""
    lab.ssh(server, "mv /etc/resolv.conf /etc/resolv.conf.kept && systemctl restart --no-block k3s")
    try:
        yield
    finally:
        lab.ssh(server, "mv /etc/resolv.conf.kept /etc/resolv.conf")


def _answers(lab: Lab, server: str) -> bool:
    """Whether the API on this server is ready."""
    return lab.ssh(server, "k3s kubectl get --raw=/readyz 2>/dev/null || true").strip() == "ok"


def _stopped_by_writes(lab: Lab, server: str) -> bool:
    """Write 20 MB to etcd, which has reserved up to 64 MB for its log; whether `server` stopped."""
    lab.ssh(
        "server-1",
        "cd /run && for i in $(seq 30); do head -c 500k /dev/urandom | base64 -w0 >filler"
        " && { k3s kubectl create configmap filler --from-file=filler -o yaml --dry-run=client"
        " | k3s kubectl replace --force -f - >/dev/null 2>&1 || true; }; done; rm filler",
    )
    return not _answers(lab, server)


@contextmanager
def full_disk(lab: Lab, server: str) -> Iterator[None]:
    """etcd's data are on a file system of their own, without space left; at the end it has some again."""
    lab.ssh(
        server,
        f"systemctl stop k3s && cp -a {ETCD} {ETCD}.kept && size=$(du -sm {ETCD} | cut -f1)"
        f" && mount -t tmpfs -o mode=700,size=$((size + 200))m tmpfs {ETCD}"
        f" && cp -a {ETCD}.kept/. {ETCD}/ && rm -r {ETCD}.kept && systemctl start --no-block k3s",
    )
    try:
        lab.await_voters()
        lab.ssh(server, f"dd if=/dev/zero of={ETCD}/filler bs=64k 2>/dev/null || true; df {ETCD} | grep 100%")
        eventually(lambda: _stopped_by_writes(lab, server), RECOVERY_SECONDS, f"{server} without its API")
        yield
    finally:
        lab.ssh("server-1", "k3s kubectl delete configmap filler --ignore-not-found")
        lab.ssh(server, f"rm -f {ETCD}/filler")
        lab.await_voters()
        lab.ssh(
            server,
            f"systemctl stop k3s && cp -a {ETCD} {ETCD}.kept && umount {ETCD}"
            f" && rm -rf {ETCD} && mv {ETCD}.kept {ETCD} && systemctl start --no-block k3s",
        )


Fault = Callable[[Lab, str], AbstractContextManager[None]]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", [killed, switched_off, rebooted])
def test_any_one_server_may_go_and_come_back(lab: Lab, fault: Fault, server: str) -> None:
    with _account(lab, f"{server} {fault.__name__}") as load:
        with fault(lab, server):
            load.goes_on()
        lab.await_voters()


@pytest.mark.parametrize("fault", [cut_off, parted, slow_link, no_dns, frozen])
def test_the_leader_of_etcd_may_lose_its_network_or_hang(lab: Lab, fault: Fault) -> None:
    leader = _leader(lab)
    with _account(lab, f"{leader}, the leader of etcd, {fault.__name__}") as load:
        with fault(lab, leader):
            load.goes_on()
        lab.await_voters()


def test_a_server_whose_disk_is_full_fails_alone_and_comes_back_when_there_is_space(lab: Lab) -> None:
    with _account(lab, "server-2, no space left for etcd") as load:
        with full_disk(lab, "server-2"):
            load.goes_on()
        lab.await_voters()


def test_a_load_balancer_and_a_worker_that_reboot_are_as_applied_again(lab: Lab) -> None:
    with _account(lab, "the only load balancer, rebooted") as load:
        with rebooted(lab, "lb-1"):
            pass
        load.goes_on()
    with rebooted(lab, "worker-2"):
        pass
    eventually(lambda: lab.conditions("worker-2")["Ready"] == "True", RECOVERY_SECONDS, "worker-2 Ready")
    lab.busbar("verify", "dev")


def test_a_load_balancer_that_restarts_loses_nothing(lab: Lab) -> None:
    with _account(lab, "HAProxy killed") as load:
        lab.ssh("lb-1", "systemctl kill --signal=KILL haproxy")
        lab.ssh("lb-1", "systemctl restart haproxy")
        load.goes_on()
