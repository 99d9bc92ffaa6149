"""The configuration of stacks/training: what is refused, and how it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from busbar.config import ConfigError
from busbar.config.types import STATE_FIRST
from busbar.manifests.operators import GPU_OPERATOR
from stacks.training.package.config import load
from stacks.training.package.networks import MULTUS
from stacks.training.package.trainer import TRAINER, TRAINING_OPERATOR
from stacks.training.tests.support import configured, training

ROOT = Path(__file__).resolve().parents[4]


def findings(data: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data)
    return [*map(str, caught.value.findings)]


def test_the_name_of_the_cluster_s_stack_is_all_that_must_be_configured() -> None:
    found = load({"cluster": "organization/busbar/prod"})
    assert found.proof.is_gate
    assert (found.proof.backend, found.pools) == ("nccl", [])


def test_a_proof_that_is_switched_off_is_no_gate() -> None:
    assert not training(proof={"enabled": False}).proof.is_gate
    assert not training(proof={"enforce": False}).proof.is_gate


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (None, "busbar-training:training: is not an object. Fix: see Pulumi.h100.example.yaml"),
        ({}, "cluster: missing: The stack that created the cluster, as organization/busbar/STACK."),
        (
            {"cluster": "prod"},
            "cluster: 'prod' is not a stack as ORGANIZATION/PROJECT/STACK, such as organization/busbar/dev",
        ),
        (configured(prof={}), "prof: unknown key; did you mean 'proof'?"),
        (
            configured(namespace="default"),
            "namespace: 'default' belongs to Kubernetes, and this one is deleted with the stack. Fix: "
            f"busbar-training. {STATE_FIRST}",
        ),
        *(
            (
                configured(namespace=operator.namespace),
                f"namespace: '{operator.namespace}' belongs to an operator, and this one is deleted with the "
                f"stack. Fix: busbar-training. {STATE_FIRST}",
            )
            for operator in (GPU_OPERATOR, MULTUS, TRAINER, TRAINING_OPERATOR)
        ),
        (configured(pools=["a", "a"]), "pools[1]: 'a' is listed twice"),
        (
            configured(storage={"mode": "path"}),
            "storage.path: missing: storage.mode is path. Fix: name the folder that all workers share",
        ),
        (
            configured(storage={"path": "/mnt/shared"}),
            "storage.path: '/mnt/shared' is not used: storage.mode is none. Fix: set storage.mode: path",
        ),
        (
            configured(storage={"mode": "path", "path": "shared"}),
            "storage.path: 'shared' is not an absolute path without spaces, such as /mnt/shared",
        ),
        (
            configured(proof={"backend": "mpi"}),
            "proof.backend: 'mpi' is not one of 'nccl' or 'gloo'",
        ),
        (configured(proof={"steps": 4}), "proof.steps: 4 is too small: expected at least 8"),
        *(
            (configured(proof={"env": {name: "0"}}), f"proof.env.{name}: is set by torchrun. Fix: remove it")
            for name in (
                *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
                *("PET_NNODES", "TORCHELASTIC_RUN_ID"),
            )
        ),
        *(
            (
                configured(proof={"env": {name: "0"}}),
                f"proof.env.{name}: the verdict needs the messages that it controls. Fix: remove it",
            )
            for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RUNTIME_CONNECT")
        ),
        (
            configured(proof={"deadline_seconds": 120, "collective_timeout_seconds": 61}),
            "proof.collective_timeout_seconds: 61 is too large: expected at most half of "
            "proof.deadline_seconds (120)",
        ),
        (
            configured(trainer={"enabled": True, "chart": "kubeflow-trainer"}),
            "trainer.chart: 'kubeflow-trainer' is a name, and trainer.repository is not set. Fix: set it, "
            "or give a local path or an oci:// URL",
        ),
        (
            configured(trainer={"deepspeed": {"enabled": True}}),
            "trainer.deepspeed.enabled: needs Trainer. Fix: set trainer.enabled: true",
        ),
        (configured(proof={"iterations": 1}), "proof.iterations: 1 is too small: expected at least 3"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_place_and_what_is_expected(data: Any, finding: str) -> None:
    assert findings(data) == [finding]


def test_all_errors_are_found_at_once() -> None:
    assert len(findings({"namespace": "A_B", "proof": {"steps": "x", "backend": 1}})) == 4
