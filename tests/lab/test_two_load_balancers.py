"""A second load balancer is added, the first is lost, they lose each other, and the second is taken out.

Each drill prints its account before it says whether the account is good.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.hosts import keys, nspawn
from lab.topology import INTERFACE, VIRTUAL_IP, find
from tests.support.api_load import Account, ApiLoad
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, UP_SECONDS, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

# Of the two, the first one has the higher priority.
FIRST, SECOND = "lb-1", "lb-2"
# How long requests may fail until the address has moved and the clients have connected again.
OUTAGE_SECONDS = 60
MOVE_SECONDS = 60
TWO = ("--load-balancers", "2")


def _endpoint() -> str:
    server: str = yaml.safe_load(KUBECONFIG.read_text())["clusters"][0]["cluster"]["server"]
    return server


def _print(what: str, began: float, account: Account) -> None:
    print(f"{what}: {time.monotonic() - began:.0f} s; {account}")


@dataclass
class Pair:
    """Two load balancers that share an address, and the account of requests while the second was added."""

    lab: Lab
    stack: OwnStack
    added: Account

    def holders(self) -> set[str]:
        """Those that have the virtual IP; one that is off has nothing."""
        found = set()
        for name in (FIRST, SECOND):
            with contextlib.suppress(AssertionError):
                if f"inet {VIRTUAL_IP}/" in self.lab.ssh(name, f"ip -o addr show dev {INTERFACE}"):
                    found.add(name)
        return found

    def held_by(self, *names: str) -> None:
        """Wait until exactly these have the virtual IP."""
        eventually(lambda: self.holders() == set(names), MOVE_SECONDS, f"the virtual IP on {names}")


@pytest.fixture(scope="module")
def pair(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    lab.boot(*TWO)
    stack = OwnStack(PROJECT, tmp_path_factory.mktemp("pair") / "project", lab.environment)

    def second(cluster: dict[str, Any]) -> None:
        key = keys.public_line(keys.host_key(SECOND))
        host = {"name": SECOND, "address": find(SECOND).address, "host_key": key}
        cluster["hosts"]["load_balancers"].append(host)
        cluster["hosts"]["virtual_ip"] = {"address": VIRTUAL_IP, "interface": INTERFACE}

    stack.configure(second)
    began = time.monotonic()
    try:
        with ApiLoad(KUBECONFIG) as load:  # through the address of the only one so far
            text = stack.up()
        _print("a second load balancer", began, load.account)
        print(text)
        yield Pair(lab, stack, load.account)
    finally:
        done = lab.run(
            sys.executable, "-m", "busbar", "up", "dev", "--yes", "--skip-preview", seconds=UP_SECONDS
        )
        nspawn.stop(nspawn.folder(find(SECOND)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_load_balancer_is_added_under_load(pair: Pair) -> None:
    assert _endpoint() == f"https://{VIRTUAL_IP}:6443"
    pair.held_by(FIRST)
    verified = pair.stack.busbar("verify", "dev")
    assert verified.returncode == 0, verified.stdout
    assert not pair.added.lost
    assert pair.added.acknowledged <= pair.added.watched
    assert pair.added.outage < OUTAGE_SECONDS


@contextmanager
def switched_off(pair: Pair) -> Iterator[None]:
    """The one that has the address ends at once, and boots again with its disk."""
    nspawn.clean_stale_state(find(FIRST))
    try:
        pair.held_by(SECOND)
        yield
    finally:
        pair.lab.boot(*TWO)


@contextmanager
def haproxy_stopped(pair: Pair) -> Iterator[None]:
    """The machine of the one that has the address runs on, without HAProxy."""
    pair.lab.ssh(FIRST, "systemctl stop haproxy")
    try:
        pair.held_by(SECOND)
        yield
    finally:
        pair.lab.ssh(FIRST, "systemctl start haproxy")


@contextmanager
def partitioned(pair: Pair) -> Iterator[None]:
    """Nothing of one arrives at the other, so both have the address."""
    rules = [
        (name, f"INPUT -s {find(peer).address} -j DROP") for name, peer in ((FIRST, SECOND), (SECOND, FIRST))
    ]
    for name, rule in rules:
        pair.lab.ssh(name, f"iptables -w -I {rule}")
    try:
        pair.held_by(FIRST, SECOND)
        yield
    finally:
        for name, rule in rules:
            pair.lab.ssh(name, f"iptables -w -D {rule}")


Fault = Callable[[Pair], AbstractContextManager[None]]


@pytest.mark.parametrize("fault", [haproxy_stopped, switched_off, partitioned])
def test_the_address_is_held_by_one_again_after_a_fault_and_nothing_is_lost(pair: Pair, fault: Fault) -> None:
    pair.held_by(FIRST)
    began = time.monotonic()
    with ApiLoad(KUBECONFIG) as load:
        load.goes_on()
        with fault(pair):
            load.goes_on()
            print(f"with the fault for {time.monotonic() - began:.0f} s: {load.account}")
        pair.held_by(FIRST)
        load.goes_on()
    _print(fault.__name__, began, load.account)
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
    assert load.account.outage < OUTAGE_SECONDS


def test_the_second_load_balancer_is_taken_out_and_nobody_has_the_shared_address(
    pair: Pair, tmp_path: Path
) -> None:
    before = {server: pair.lab.ssh(server, "cat /etc/rancher/k3s/config.yaml") for server in SERVERS}
    usual = OwnStack(PROJECT, tmp_path / "project", pair.lab.environment)
    began = time.monotonic()
    usual.up()
    print(f"the second load balancer taken out: {time.monotonic() - began:.0f} s")
    assert all(VIRTUAL_IP in text for text in before.values())
    pair.held_by()
    assert pair.lab.ssh(FIRST, "systemctl is-active keepalived || true").strip() == "inactive"
    assert pair.lab.ssh(SECOND, "ls -d /var/lib/busbar /etc/haproxy/busbar-ca.pem 2>/dev/null || true") == ""
    ready = json.loads(pair.lab.kubectl("get nodes -o json"))["items"]
    assert all(pair.lab.conditions(each["metadata"]["name"])["Ready"] == "True" for each in ready)
    verified = usual.busbar("verify", "dev")
    assert verified.returncode == 0, verified.stdout
