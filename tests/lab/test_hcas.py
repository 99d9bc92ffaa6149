"""HCAs that are lost: `make drills`.

The SR-IOV device plugin looks for HCAs once, at its start. It offers what it found then, and its policy is
ready.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.support.lab import Lab

pytestmark = pytest.mark.drill

WORKER = "worker-2"
HCAS = "/usr/local/lib/busbar-lab/hcas"
LOST, LOST_ADDRESS = "mlx5_3", "0000:23:00.0"


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
    done = lab.up()
    assert done.returncode == 0, done.stdout + done.stderr


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
