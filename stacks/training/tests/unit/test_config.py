"""The configuration of stacks/training: what is refused, and how it is said."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from busbar.config import ConfigError
from busbar.config.types import STATE_FIRST
from busbar.manifests.operators import GPU_OPERATOR
from stacks.training.package.config import load
from stacks.training.package.networks import MULTUS
from stacks.training.package.trainer import TRAINER, TRAINING_OPERATOR
from stacks.training.tests.support import configured, training


def findings(data: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data)
    return [*map(str, caught.value.findings)]


def env(name: str) -> dict[str, Any]:
    return {"proof": {"env": {name: "0"}}}


def test_the_name_of_the_cluster_s_stack_is_all_that_must_be_configured() -> None:
    found = load({"cluster": "organization/busbar/prod"})
    assert (found.proof.is_gate, found.proof.backend, found.pools) == (True, "nccl", [])
    assert (found.storage.mode, found.storage.is_shared, found.storage.has_claim) == ("none", False, False)
    for off in ("enabled", "enforce"):
        assert not training(proof={off: False}).proof.is_gate


OF_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PET_NNODES", "TORCHELASTIC_RUN_ID"),
)
OF_VERDICT = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RUNTIME_CONNECT"
# Each text, and the configuration that gives it beside the name of the cluster's stack.
ERRORS = yaml.safe_load("""
- ["cluster: 'prod' is not a stack as ORGANIZATION/PROJECT/STACK, such as organization/busbar/dev",
   {cluster: prod}]
- ["prof: unknown key; did you mean 'proof'?", {prof: {}}]
- ["pools[1]: 'a' is listed twice", {pools: [a, a]}]
- ["proof.backend: 'mpi' is not one of 'nccl' or 'gloo'", {proof: {backend: mpi}}]
- ["proof.steps: 4 is too small: expected at least 8", {proof: {steps: 4}}]
- ["proof.collective_timeout_seconds: 61 is too large: expected at most half of proof.deadline_seconds (120)",
   {proof: {deadline_seconds: 120, collective_timeout_seconds: 61}}]
- ["trainer.deepspeed.enabled: needs Trainer. Fix: set trainer.enabled: true",
   {trainer: {deepspeed: {enabled: true}}}]

- ["storage.path: missing: storage.mode is path. Fix: name the folder that all workers share",
   {storage: {mode: path}}]
- ["storage.path: '/mnt/shared' is not used: storage.mode is none. Fix: set storage.mode: path",
   {storage: {path: /mnt/shared}}]
- ["storage.path: 'shared' is not an absolute path without spaces, such as /mnt/shared",
   {storage: {mode: path, path: shared}}]
- ["storage.size: missing: storage.mode is class. Fix: give a size such as 10Ti",
   {storage: {mode: class, class_name: weka}}]
- ["storage.class_name: missing: storage.mode is class. Fix: name a StorageClass of the cluster (kubectl get
    storageclass)", {storage: {mode: class, size: 1Ti}}]
- ["storage.nfs: missing: storage.mode is nfs. Fix: give nfs.server and nfs.export, or
    nfs.from_cluster: true", {storage: {mode: nfs}}]
- ["storage.nfs: is not used: storage.mode is path. Fix: set storage.mode: nfs",
   {storage: {mode: path, path: /mnt, nfs: {server: 10.0.0.5, export: /srv}}}]
- ["storage.size: '1Ti' is not used: storage.mode is nfs. Fix: set storage.mode: class",
   {storage: {mode: nfs, nfs: {server: 10.0.0.5, export: /srv}, size: 1Ti}}]
- ["storage.class_name: 'Weka FS' is not the name of a Kubernetes object: lower-case letters, digits, '-'
    and '.'", {storage: {mode: class, class_name: Weka FS, size: 1Ti}}]
- ["storage.nfs.server: missing. Fix: give it, or set storage.nfs.from_cluster: true",
   {storage: {mode: nfs, nfs: {export: /srv}}}]
- ["storage.nfs.export: missing. Fix: give it, or set storage.nfs.from_cluster: true",
   {storage: {mode: nfs, nfs: {server: 10.0.0.5}}}]
- ["storage.nfs.server: '10.0.0.9' is given together with from_cluster. Fix: remove one of the two",
   {storage: {mode: nfs, nfs: {from_cluster: true, server: 10.0.0.9}}}]
""")


@pytest.mark.parametrize(
    ("finding", "changes"),
    [
        *ERRORS,
        *((f"proof.env.{name}: is set by torchrun. Fix: remove it", env(name)) for name in OF_TORCHRUN),
        *(
            (f"proof.env.{name}: the verdict needs the messages that it controls. Fix: remove it", env(name))
            for name in OF_VERDICT
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_place_and_what_is_expected(
    finding: str, changes: dict[str, Any]
) -> None:
    assert findings(configured(**changes)) == [finding]


@pytest.mark.parametrize(
    ("namespace", "of"),
    [
        ("default", "Kubernetes"),
        *((each.namespace, "an operator") for each in (GPU_OPERATOR, MULTUS, TRAINER, TRAINING_OPERATOR)),
    ],
)
def test_a_namespace_of_others_is_refused_because_it_would_be_deleted(namespace: str, of: str) -> None:
    assert findings(configured(namespace=namespace)) == [
        f"namespace: '{namespace}' belongs to {of}, and this one is deleted with the stack. Fix: "
        f"busbar-training. {STATE_FIRST}"
    ]


NFS = {"server": "10.0.0.5", "export": "/srv/checkpoints"}


SOFT = "gives up a write when the server is slow: the checkpoint is corrupt. Fix: use hard"


@pytest.mark.parametrize(
    ("nfs", "finding"),
    [
        ({"options": ["soft"]}, f"options[0]: 'soft' {SOFT}"),
        ({"options": ["softerr"]}, f"options[0]: 'softerr' {SOFT}"),
        ({"options": ["hard,noatime"]}, "options[0]: 'hard,noatime' is not one mount option, such as"),
        # The host mounts it, and does not know the cluster's names.
        ({"server": "nfs.storage.svc"}, "server: 'nfs.storage.svc' is the name of a Service: the host"),
        ({"server": "x.y.svc.cluster.local"}, "server: 'x.y.svc.cluster.local' is the name of a"),
    ],
)
def test_what_loses_a_checkpoint_or_cannot_be_mounted_is_refused(nfs: dict[str, Any], finding: str) -> None:
    [found] = findings(configured(storage={"mode": "nfs", "nfs": {**NFS, **nfs}}))
    assert found.startswith(f"storage.nfs.{finding}")
