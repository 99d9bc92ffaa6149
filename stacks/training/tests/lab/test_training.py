"""stacks/training on the lab's cluster: a run that passes, runs that are refused, and what a destroy leaves.

The tests are one story, in this order; `pytest stacks/training/tests/lab/test_training.py`
runs them alone. What this does not prove: NCCL and GPUs. The ranks are CPU processes that use gloo over TCP.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.outputs import ClusterOutputs
from tests.support.lab import PROJECT, Lab

TRAINING = PROJECT / "stacks" / "training"
NAMESPACE = "busbar-training"
# With the image to be built from packages.
FIRST_SECONDS = 3000


@dataclass
class Trained:
    """What `make up-training` printed, its exit code, and the cluster before it."""

    code: int
    text: str
    before: dict[str, Any]

    @property
    def rows(self) -> list[str]:
        return [" ".join(line.split()) for line in self.text.splitlines()]


def _state(lab: Lab) -> dict[str, Any]:
    """What the training stack must leave as it is: namespaces, cluster-wide objects, labels, uids of pods."""
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    kinds = "crds,clusterroles,clusterrolebindings,validatingwebhookconfigurations,storageclasses"
    return {
        "namespaces": set(lab.kubectl("get namespaces -o name").split()),
        "cluster-wide": set(lab.kubectl(f"get {kinds} -o name").split()),
        "labels": {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes},
        "deployments": lab.uids("deployments"),
    }


def _up(lab: Lab, *arguments: str) -> tuple[int, str]:
    done = lab.up(*arguments, cwd=TRAINING)
    return done.returncode, done.stdout + done.stderr


def _destroy(lab: Lab) -> int:
    done = lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", "dev", cwd=TRAINING)
    print(done.stdout + done.stderr)
    return done.returncode


def _verdict() -> dict[str, Any]:
    verdict = json.loads((TRAINING / ".busbar" / "dev" / "lab" / "verdict.json").read_text())
    assert isinstance(verdict, dict)
    return verdict


def _check(name: str) -> dict[str, Any]:
    [check] = [each for each in _verdict()["checks"] if each["name"] == name]
    assert isinstance(check, dict)
    return check


@pytest.fixture(scope="module")
def trained(lab: Lab) -> Iterator[Trained]:
    """`make up-training` on the usual cluster; the training stack is destroyed afterwards."""
    stacks = json.loads(lab.pulumi("stack", "ls", "--json", cwd=TRAINING).stdout)
    if any(stack["name"].rpartition("/")[2] == "dev" for stack in stacks):
        assert _destroy(lab) == 0
    usual = lab.up()
    assert usual.returncode == 0, usual.stdout + usual.stderr
    before = _state(lab)
    done = lab.run(sys.executable, "-m", "lab", "bringup", "training", seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    yield Trained(done.returncode, done.stdout + done.stderr, before)
    _destroy(lab)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., str]:
    """The option for an update with another `proof` than that of Pulumi.dev.yaml."""

    def config_file(**proof: Any) -> str:
        stack = yaml.safe_load((TRAINING / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
        stack["config"]["busbar-training:training"]["proof"].update(proof)
        path = tmp_path / "Pulumi.changed.yaml"
        path.write_text(yaml.safe_dump(stack), encoding="utf-8")
        return f"--config-file={path}"

    return config_file


def test_make_up_training_ends_with_the_table_of_a_run_that_passed(trained: Trained) -> None:
    assert trained.code == 0, trained.text
    assert any(row.startswith("PASS lab: all-reduce of the gradients ") for row in trained.rows)
    for row in ("verdict pass", "workers 2", "ranks 2"):
        assert row in trained.rows
    assert any(row.startswith("lab recovery pass ") for row in trained.rows)


@pytest.mark.usefixtures("trained")
def test_its_outputs_are_typed(lab: Lab) -> None:
    outputs = lab.outputs(TRAINING)
    assert outputs["training_passed"] is True and outputs["training_reasons"] == []
    assert (outputs["training_contract_version"], outputs["cluster_name"]) == (1, "dev")
    assert (outputs["namespace"], outputs["runtimes"]) == (NAMESPACE, [])
    run = outputs["training"]["lab"]
    assert (run["verdict"], run["backend"], run["ranks"], run["nodes"]) == ("pass", "gloo", 2, 2)
    assert 0 <= run["last_loss"] < run["first_loss"] / 2
    assert run["checkpoint_bytes"] > 2 * run["gradient_bytes"] > 0
    for name in ("step_seconds", "allreduce_seconds", "expected_allreduce_seconds", "busbw_gbps"):
        assert isinstance(run[name], float) and run[name] > 0, name
    measured = ClusterOutputs.from_dict(lab.outputs()).nccl["lab"].curve["all_reduce"]
    assert 0 < run["measured_busbw_gbps"] <= max(busbw for _, busbw in measured)
    assert run["simulated"], "a simulated number must say so"
    assert (TRAINING / run["verdict_file"]).is_file()


@pytest.mark.usefixtures("trained")
def test_the_pods_ran_on_both_workers(lab: Lab) -> None:
    pods = json.loads(lab.kubectl(f"-n {NAMESPACE} get pods -o json"))["items"]
    assert {pod["spec"]["nodeName"]: pod["status"]["phase"] for pod in pods} == {
        "worker-1": "Succeeded", "worker-2": "Succeeded",
    }  # fmt: skip


@pytest.mark.usefixtures("trained")
def test_a_second_update_trains_nothing(lab: Lab) -> None:
    code, text = _up(lab, "--expect-no-changes")
    assert code == 0, text


@pytest.mark.drill
@pytest.mark.usefixtures("trained")
def test_a_run_that_misses_what_is_expected_fails_the_update_and_keeps_its_outputs(
    lab: Lab, changed: Callable[..., str]
) -> None:
    jobs = lab.uids("jobs")
    code, text = _up(lab, changed(min_loss_drop=0.9999999))
    assert code != 0 and "training run failed for cluster dev" in text, text
    assert "loss: " in text and lab.outputs(TRAINING)["training_passed"] is False
    assert lab.uids("jobs") == jobs, "the same log is judged again"
    code, text = _up(lab)
    assert code == 0, text
    assert lab.outputs(TRAINING)["training_passed"] is True


@pytest.mark.drill
@pytest.mark.usefixtures("trained")
def test_storage_that_one_worker_lacks_fails_the_run(lab: Lab, changed: Callable[..., str]) -> None:
    lab.ssh("worker-2", "mount -t tmpfs tmpfs /mnt/shared")  # a folder of its own in place of the shared one
    try:
        code, text = _up(lab, changed(run=3))
    finally:
        lab.ssh("worker-2", "umount /mnt/shared")
    assert code != 0
    assert "recovery: 1 of 2 workers see the checkpoint's file: the storage is not shared" in text, text
    assert _check("recovery")["code"] == "recovery.not_shared"


def test_a_destroy_leaves_the_cluster_as_it_was(lab: Lab, trained: Trained) -> None:
    assert _destroy(lab) == 0
    assert _state(lab) == trained.before
