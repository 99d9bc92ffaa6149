"""Three servers share the address of the API, in place of the load balancer; the one that has it is lost."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.topology import INTERFACE, VIRTUAL_IP
from tests.support.api_load import ApiLoad
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

ENDPOINT = f"https://{VIRTUAL_IP}:6443"
MOVE_SECONDS = 60


def holders(lab: Lab) -> list[str]:
    """The servers that have the address."""
    return [
        server
        for server in SERVERS
        if f"inet {VIRTUAL_IP}/" in lab.ssh(server, f"ip -o addr show dev {INTERFACE}")
    ]


@pytest.fixture(scope="module")
def stack(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStack]:
    found = OwnStack(PROJECT, tmp_path_factory.mktemp("sharing") / "project", lab.environment)

    def change(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["load_balancers"] = []
        cluster["hosts"]["virtual_ip"] = {"address": VIRTUAL_IP, "interface": INTERFACE}

    found.configure(change)
    found.up()
    yield found
    lab.as_usual()
    assert holders(lab) == []
    assert [lab.ssh(each, "systemctl is-active keepalived || true").strip() for each in SERVERS] == [
        "inactive"
    ] * 3


def test_an_address_that_another_machine_answers_at_is_refused(lab: Lab, tmp_path: Path) -> None:
    site = OwnStack(PROJECT, tmp_path / "project", lab.environment)

    def change(cluster: dict[str, Any]) -> None:
        # The address of a worker that was taken out: its sshd answers there.
        taken = cluster["hosts"]["workers"].pop()["address"]
        cluster["hosts"]["load_balancers"] = []
        cluster["hosts"]["virtual_ip"] = {"address": taken, "interface": INTERFACE}

    site.configure(change)
    done = site.busbar("preflight", "dev")
    print(done.stdout)
    assert done.returncode == 1
    assert "server-1: another machine answers at hosts.virtual_ip.address 10.77.0.22" in done.stdout


def test_everything_reaches_the_api_at_the_address_that_one_server_has(lab: Lab, stack: OwnStack) -> None:
    kubeconfig = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
    assert kubeconfig["clusters"][0]["cluster"]["server"] == ENDPOINT
    assert ENDPOINT in lab.ssh("worker-1", "cat /etc/rancher/k3s/config.yaml")
    assert len(holders(lab)) == 1
    assert lab.ssh("lb-1", "ls -d /var/lib/busbar /etc/haproxy/busbar-ca.pem 2>/dev/null || true") == ""
    verified = stack.busbar("verify", "dev")
    assert verified.returncode == 0, verified.stdout
    assert stack.no_changes()


@pytest.mark.usefixtures("stack")
def test_another_server_takes_the_address_of_one_whose_api_ends_and_keeps_it(lab: Lab) -> None:
    [first] = holders(lab)
    with ApiLoad(KUBECONFIG) as load:
        load.goes_on()
        lab.ssh(first, "systemctl stop k3s")
        try:
            eventually(
                lambda: len(holders(lab)) == 1 and holders(lab) != [first], MOVE_SECONDS, "a new holder"
            )
            load.goes_on()
        finally:
            lab.ssh(first, "systemctl start --no-block k3s")
        [second] = holders(lab)
        lab.await_voters()
        load.goes_on()
    print(f"{first} to {second}: {load.account}")
    assert not load.account.lost
    with contextlib.suppress(AssertionError):
        eventually(lambda: holders(lab) == [first], 20, f"{first} takes it back")
    assert holders(lab) == [second]
