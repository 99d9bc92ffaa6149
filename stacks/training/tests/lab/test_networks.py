"""Training over a secondary network on the lab's cluster, with the real Multus, whereabouts and macvlan.

One story, in this order. What this does not prove: RoCE, InfiniBand, the Network Operator. The network is a
macvlan on the hosts' second interface, and the data are TCP.
"""

import ipaddress
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.training.tests.lab.test_training import FIRST_SECONDS, TRAINING
from tests.support.lab import Lab

pytestmark = pytest.mark.drill

STACK, NAMESPACE = "networks", "busbar-networks"
SUBNET = ipaddress.ip_network("192.168.77.0/24")
CNI = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
WORKERS = ("worker-1", "worker-2")


@dataclass
class Attached:
    """What `make up-training STACK=networks` printed, its exit code, and the namespaces before it."""

    code: int
    text: str
    before: set[str]


def _namespaces(lab: Lab) -> set[str]:
    return set(lab.kubectl("get namespaces -o name").split())


def _up(lab: Lab, *arguments: str) -> tuple[int, str]:
    done = lab.pulumi(
        "up", "--yes", "--skip-preview", "--suppress-progress", "--stack", STACK, *arguments, cwd=TRAINING
    )
    return done.returncode, done.stdout + done.stderr


def _destroy(lab: Lab) -> int:
    done = lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", STACK, cwd=TRAINING)
    print(done.stdout + done.stderr)
    return done.returncode


@pytest.fixture(scope="module")
def attached(lab: Lab) -> Iterator[Attached]:
    """`make up-training STACK=networks` on the usual cluster; its stack is destroyed afterwards."""
    usual = lab.up()
    assert usual.returncode == 0, usual.stdout + usual.stderr
    before = _namespaces(lab)
    done = lab.run(sys.executable, "-m", "lab", "bringup", "training", STACK, seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    yield Attached(done.returncode, done.stdout + done.stderr, before)
    _destroy(lab)


def test_the_run_passes_over_the_network(lab: Lab, attached: Attached) -> None:
    assert attached.code == 0, attached.text
    for pod in json.loads(lab.kubectl(f"-n {NAMESPACE} get pods -o json"))["items"]:
        env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        assert env["GLOO_SOCKET_IFNAME"] == "net1"


@pytest.mark.usefixtures("attached")
def test_each_pod_has_an_address_of_the_network_that_no_other_pod_has(lab: Lab) -> None:
    pods = json.loads(lab.kubectl(f"-n {NAMESPACE} get pods -o json"))["items"]
    assert len(pods) == len(WORKERS)
    found: list[str] = []
    for pod in pods:
        status = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        interfaces: dict[str, Any] = {each["interface"]: each for each in status}
        assert set(interfaces) == {"eth0", "net1"}
        assert interfaces["net1"]["name"] == f"{NAMESPACE}/lab-rail0"
        found += interfaces["net1"]["ips"]
    assert len(set(found)) == len(WORKERS)
    assert all(ipaddress.ip_address(address) in SUBNET for address in found)


@pytest.mark.usefixtures("attached")
def test_a_network_whose_interface_a_worker_lacks_fails_the_run_with_the_plugin_s_reason(
    lab: Lab, tmp_path: Path
) -> None:
    stack = yaml.safe_load((TRAINING / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8"))
    training = stack["config"]["busbar-training:training"]
    training["networks"]["lab"][0]["master"] = "ens9"
    training["proof"] |= {"deadline_seconds": 120, "collective_timeout_seconds": 30}
    changed = tmp_path / "Pulumi.changed.yaml"
    changed.write_text(yaml.safe_dump(stack), encoding="utf-8")
    code, text = _up(lab, f"--config-file={changed}")
    assert code != 0
    assert "lab-rail0" in text and "Link not found" in text, text


def test_a_destroy_takes_multus_from_every_host(lab: Lab, attached: Attached) -> None:
    assert _destroy(lab) == 0
    assert _namespaces(lab) == attached.before
    for host in WORKERS:
        assert "00-multus" not in lab.ssh(host, f"ls {CNI}")
