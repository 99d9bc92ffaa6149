"""HCAs that are lost, and HCAs whose driver binds late: `make drills`.

The SR-IOV device plugin looks for HCAs once, at its start. It offers what it found then, and its policy is
ready in both cases.
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab import Lab, eventually

pytestmark = pytest.mark.drill

WORKER = "worker-2"
HCAS = "/usr/local/lib/busbar-lab/hcas"
LOST, LOST_ADDRESS = "mlx5_3", "0000:23:00.0"
NAMESPACE = "nvidia-network-operator"
NO_DEVICES = "no devices in device pool"
PLUGIN_SECONDS = 60


def offered(lab: Lab) -> str:
    """How many HCAs of the worker are allocatable."""
    node: dict[str, Any] = json.loads(lab.kubectl(f"get node {WORKER} -o json"))
    return str(node["status"]["allocatable"].get("nvidia.com/hostdev", "0"))


def is_ready(lab: Lab) -> bool:
    state = "get nicclusterpolicies.mellanox.com nic-cluster-policy -o jsonpath='{.status.state}'"
    return lab.kubectl(state).strip() == "ready"


@pytest.fixture
def lost_hca(lab: Lab) -> Iterator[None]:
    """A rail of the worker is lost: its kernel does not list it, and pods get no device of it."""
    folder = "/sys/class/infiniband"
    lab.ssh(WORKER, f"cp {HCAS} /root/hcas && sed -i '/^{LOST} /d' {HCAS} && mv {folder}/{LOST} /root/")
    yield
    lab.ssh(WORKER, f"mv /root/hcas {HCAS} && mv /root/{LOST} {folder}/")
    lab.updated()


@pytest.mark.usefixtures("lost_hca")
def test_a_lost_hca_stays_allocatable_and_busbar_nodes_names_its_worker(lab: Lab) -> None:
    done = lab.run(sys.executable, "-m", "busbar", "nodes", "dev", "--json")
    assert done.returncode == 1, done.stderr
    shown = {each["name"]: each["node"] for each in json.loads(done.stdout)["nodes"]}
    assert shown == {"worker-1": "Ready", WORKER: "nvidia.com/hostdev: 2 allocatable, 1 rail on the host"}
    assert is_ready(lab)


@pytest.mark.usefixtures("lost_hca")
def test_a_measurement_without_a_lost_hca_ends_with_the_names_of_node_and_hca(lab: Lab) -> None:
    measuring = lab.config_with(lambda cluster: cluster["validation"].update(run=201))
    done = lab.up("--config-file", str(measuring))
    text = done.stdout + done.stderr
    assert done.returncode != 0, text
    reasons = lab.outputs()["nccl_reasons"]
    named = [each for each in reasons if f"node {WORKER}: 1 of 2 HCAs have a device in the pod" in each]
    assert named and LOST_ADDRESS in named[0], text


@pytest.fixture
def late_driver(lab: Lab) -> Iterator[None]:
    """The rails of the worker appear after the device plugin there has looked for them.

    Another HCA is there before: Node Feature Discovery sees them without a driver.
    """
    plugin = f"-n {NAMESPACE} -l app=sriovdp"
    restart = f"delete pod {plugin} --field-selector spec.nodeName={WORKER}"
    lab.ssh(WORKER, f"cp {HCAS} /root/hcas && sed -i '/^mlx5_0 /!d' {HCAS}")
    try:
        lab.kubectl(restart)
        found_none = lambda: NO_DEVICES in lab.kubectl(f"logs {plugin} || true")  # noqa: E731
        eventually(found_none, PLUGIN_SECONDS, "the plugin of the worker has found no HCA")
        eventually(lambda: offered(lab) == "0", PLUGIN_SECONDS, "no HCA of the worker is offered")
    finally:
        lab.ssh(WORKER, f"mv /root/hcas {HCAS}")
    eventually(lambda: is_ready(lab), PLUGIN_SECONDS, "the policy is ready without HCAs")
    yield
    lab.kubectl(restart)
    eventually(lambda: offered(lab) == "2", PLUGIN_SECONDS, "the HCAs of the worker are offered again")
    lab.updated()


@pytest.mark.usefixtures("late_driver")
def test_a_wait_for_hcas_whose_driver_was_late_names_a_command_after_which_the_next_update_succeeds(
    lab: Lab,
) -> None:
    def hurried(cluster: dict[str, Any]) -> None:
        cluster["network_operator"]["timeout_seconds"] = 20
        cluster["validation"]["enabled"] = False

    config = str(lab.config_with(hurried))
    done = lab.up("--config-file", config)
    text = done.stdout + done.stderr
    assert done.returncode != 0, text
    assert f"{WORKER}: 0 allocatable, 2 expected" in text, text
    assert "A reboot can bring the fault back" in text, text
    named = re.search(r"`(kubectl .* spec\.nodeName=)NODE`", text)
    assert named, text
    lab.ssh("server-1", f"k3s {named[1]}{WORKER}")
    lab.updated("--config-file", config)
