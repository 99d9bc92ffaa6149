"""The configuration of stacks/training: what is refused, and how it is said."""

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
from stacks.training.tests.unit.test_networks import hostdev, rail


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


OF_OTHERS = {"default": "Kubernetes"}
OF_OTHERS |= {each.namespace: "an operator" for each in (GPU_OPERATOR, MULTUS, TRAINER, TRAINING_OPERATOR)}
NAMESPACES: list[tuple[str, dict[str, Any]]] = [
    (f"namespace: '{name}' belongs to {of}, and this is deleted with the stack. Fix: busbar-training. "
     f"{STATE_FIRST}", {"namespace": name})
    for name, of in OF_OTHERS.items()
]  # fmt: skip
ENVIRONMENT: list[tuple[str, dict[str, Any]]] = [
    (f"proof.env.{name}: {why}. Fix: remove it", {"proof": {"env": {name: "0"}}})
    for why, names in (
        ("is set by torchrun", OF_TORCHRUN),
        ("the verdict needs the messages that it controls", OF_VERDICT),
    )
    for name in names
]


def on_nfs(**nfs: Any) -> dict[str, Any]:
    return {"storage": {"mode": "nfs", "nfs": {"server": "10.0.0.5", "export": "/srv/checkpoints", **nfs}}}


SOFT = "gives up a write when the server is slow: the checkpoint is corrupt. Fix: use hard"
EXPORTS: list[tuple[str, dict[str, Any]]] = [
    (f"storage.nfs.options[0]: 'soft' {SOFT}", on_nfs(options=["soft"])),
    (f"storage.nfs.options[0]: 'softerr' {SOFT}", on_nfs(options=["softerr"])),
    ("storage.nfs.options[0]: 'hard,noatime' is not one mount option, such as",
     on_nfs(options=["hard,noatime"])),
    # The host mounts it, and does not know the cluster's names.
    ("storage.nfs.server: 'nfs.storage.svc' is the name of a Service: the host",
     on_nfs(server="nfs.storage.svc")),
    ("storage.nfs.server: 'x.y.svc.cluster.local' is the name of a", on_nfs(server="x.y.svc.cluster.local")),
]  # fmt: skip


def on(*networks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The configuration of networks of the pool h100."""
    return {"networks": {"h100": list(networks)}, **more}


GID = {"env": {"NCCL_IB_GID_INDEX": "3"}}
NOWHERE = {"repository": None}
NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("networks.h100[0].master: 'mlx5_0' is the name of an RDMA device, expected that of its network "
     "interface. Fix: `ls /sys/class/infiniband/mlx5_0/device/net` on a worker",
     on({**rail(0), "master": "mlx5_0"})),
    ("networks.h100[0].master: 'eth0' is the first interface of a host, expected that of a rail",
     on({**rail(0), "master": "eth0"})),
    ("networks.h100[0].master: missing: type is macvlan", on({**rail(0), "master": None})),
    ("networks.h100[0].resource: missing: type is host-device", on(hostdev(resource=None))),
    ("networks.h100[0].mtu: is not used: type is host-device. Fix: remove it", on(hostdev(mtu=9000))),
    ("networks.h100[0].count: is not used: type is macvlan. Fix: remove it", on({**rail(0), "count": 2})),
    ("networks.h100[1].name: 'rail0' is used twice in the pool", on(rail(0), {**rail(1), "name": "rail0"})),
    (f"networks.h100[0].name: '{'r' * 60}' is too long: expected at m", on({**rail(0), "name": "r" * 60})),
    ("networks.h100[1].subnet: '192.168.10.128/25' overlaps 192.168.10.0/24, expected a subnet of its own",
     on(rail(0), rail(1, "192.168.10.128/25"))),
    ("networks.h100[0].exclude[0]: '10.1.1.0/28' is not a part of the subnet 10.1.0.0/24",
     on(rail(0, "10.1.0.0/24", exclude=["10.1.1.0/28"]))),
    ("networks.h100[0].exclude[1]: '10.1.0.0/16' is not a part of the subnet 10.1.0.0/24",
     on(rail(0, "10.1.0.0/24", exclude=["10.1.0.0/24", "10.1.0.0/16"]))),
    ("networks.h100: is not listed in pools: a100. Fix: list it", on(rail(0), pools=["a100"])),
    ("multus.chart: 'rke2-multus' is a name, and multus.repository is not", on(rail(0), multus=NOWHERE)),
    # Each pod with interfaces of its own has another table of GIDs.
    ("proof.env.NCCL_IB_GID_INDEX: '3' is another entry in each pod", on(rail(0), proof=GID)),
]  # fmt: skip


@pytest.mark.parametrize(("finding", "changes"), [*ERRORS, *NAMESPACES, *ENVIRONMENT, *EXPORTS, *NETWORKS])
def test_what_cannot_work_is_refused_with_its_place_and_what_is_expected(
    finding: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(configured(**changes))
    [found] = map(str, caught.value.findings)
    assert found.startswith(finding)


@pytest.mark.parametrize(
    "given",
    [
        on(rail(0), rail(1)),
        on(rail(0), multus={**NOWHERE, "enabled": False}),
        {"multus": NOWHERE},
        {"proof": GID},
    ],
    ids=["rails", "a Multus of another tool", "none installed", "no interfaces of their own"],
)
def test_what_works_is_accepted(given: dict[str, Any]) -> None:
    assert load(configured(**given)).cluster
