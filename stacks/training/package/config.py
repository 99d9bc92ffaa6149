"""`busbar-training:training`: the whole configuration of one stack of stacks/training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from busbar.config.cluster import Removal
from busbar.config.project import ProjectConfig
from busbar.config.types import (
    Bytes,
    ChartName,
    ChartVersion,
    DnsLabel,
    EnvName,
    Float,
    Image,
    Int,
    InterfaceName,
    Quantity,
    Seconds,
    Text,
    Url,
    own_namespace,
)
from busbar.finding import Finding
from busbar.frame import GateConfig, InstalledChart, OnCluster
from busbar.models import ConfigModel
from stacks.training.package import versions
from stacks.training.package.networks import Network, network_findings
from stacks.training.package.storage import Storage, storage_findings

KEY = "training"
PROJECT = "busbar-training"
OPERATOR_NAMESPACES = ("kubeflow-system", "multus", "training-operator")


class DeepSpeed(ConfigModel):
    """A ClusterTrainingRuntime per pool whose ranks are started by mpirun, as DeepSpeed's are."""

    enabled: bool = False
    """Make the runtimes busbar-deepspeed-<pool>."""
    image: Image = versions.DEEPSPEED_IMAGE
    """Image with Open MPI, and an sshd that user 1000 may run by /home/mpiuser/.sshd_config."""


class Trainer(InstalledChart):
    """Kubeflow Trainer v2 with JobSet, and a ClusterTrainingRuntime per pool, which TrainJobs refer to."""

    version: ChartVersion = versions.TRAINER
    """Version of the chart."""
    chart: ChartName = versions.TRAINER_CHART
    """Name of the chart, a local path, or an oci:// URL."""
    image: Image = versions.TORCH_IMAGE
    """Image of the runtimes; a TrainJob may name another."""
    deepspeed: DeepSpeed = DeepSpeed()
    """Runtimes for mpirun."""


class Multus(InstalledChart):
    """Multus with whereabouts: the chart rke2-multus, which the documentation of K3s names."""

    enabled: bool = True
    """Install it where a pool has networks; false if another tool has installed both."""
    version: ChartVersion = versions.MULTUS
    """Version of the chart, with a leading v."""
    repository: Url | None = versions.RKE2_CHARTS
    """Helm repository; not used for a local chart or an oci:// URL."""
    chart: ChartName = "rke2-multus"
    """Name of the chart, a local path, or an oci:// URL."""


class TrainingOperator(ConfigModel):
    """Kubeflow Training Operator v1, from the manifests of its release."""

    enabled: bool = False
    """Install it."""
    image: Image = versions.TRAINING_OPERATOR_IMAGE
    """Image of the controller; its tags are commits."""
    init_image: Image = versions.INIT_IMAGE
    """Image in which a PyTorchJob's workers wait for their master; it must have nslookup."""
    timeout_seconds: Seconds = 300
    """Time until the controller must be available, in seconds."""


class Proof(GateConfig):
    """A short training run per pool, and the gate on its result."""

    enabled: bool = True
    """Run it; if false, training_passed is false."""
    image: Image = versions.TORCH_IMAGE
    """Image with Python 3 and torch."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """torch.distributed backend; gloo trains on CPUs over TCP."""
    ranks_per_node: Annotated[Int, Field(ge=1)] | None = None
    """Ranks per worker; by default the pool's GPUs."""
    gradient_bytes: Bytes | None = None
    """Size of all gradients, such as 1G; by default the largest measured message up to 1 GiB."""
    steps: Annotated[Int, Field(ge=8, le=1000)] = 30
    """Training steps."""
    iterations: Annotated[Int, Field(ge=3, le=1000)] = 10
    """Samples of each measured time."""
    min_loss_drop: Annotated[Float, Field(gt=0, lt=1)] = 0.5
    """Part of the first loss that the last one must be below it: 0.5 is half."""
    min_busbw_fraction: Annotated[Float, Field(gt=0, le=1)] = 0.7
    """Part of the busbw of nccl-tests that the all-reduce of the gradients must reach."""
    interfaces: list[InterfaceName] = Field(default=[])
    """Network interfaces that every pod must have, besides those of `networks`, such as net1."""
    env: dict[EnvName, Text] = Field(default={})
    """Additional environment variables of the ranks."""
    cpu: Quantity | None = None
    """CPUs requested per pod; by default none."""
    memory: Quantity | None = None
    """Memory limit per pod; by default that of the cluster's validation."""
    # A shorter one leaves no time for both collectives and the program's own Python.
    deadline_seconds: Annotated[Int, Field(ge=120)] = 1200
    """Time limit of the job in seconds."""
    collective_timeout_seconds: Annotated[Int, Field(ge=10)] = 60
    """Time limit of one collective in seconds: then the ranks end with an error."""

    @property
    def is_gate(self) -> bool:
        """True if `pulumi up` fails without a pass. It does not while the proof is switched off."""
        return self.enabled and self.enforce


class Training(OnCluster):
    """The software for training on one cluster, and the training run that proves it."""

    namespace: Annotated[DnsLabel, own_namespace("busbar-training", *OPERATOR_NAMESPACES)] = "busbar-training"
    """Namespace of the training run."""
    pools: list[DnsLabel] = Field(default=[])
    """Pools of the cluster to use; by default all."""
    proof: Proof = Proof()
    """The training run and its gate."""
    storage: Storage = Storage()
    """Shared storage for checkpoints."""
    trainer: Trainer = Trainer()
    """Kubeflow Trainer v2."""
    networks: dict[DnsLabel, list[Network]] = Field(default={})
    """By pool: interfaces of its pods besides eth0: net1, net2, ... in this order."""
    multus: Multus = Multus()
    """The part of a pod template that attaches `networks`."""
    training_operator: TrainingOperator = TrainingOperator()
    """Kubeflow Training Operator v1, for PyTorchJobs."""
    removal: Removal = Removal()
    """The treatment of jobs by a destroy."""


def _findings(training: Training) -> Iterator[Finding]:
    """The checks that no value can make on its own."""
    for index, pool in enumerate(training.pools):
        if pool in training.pools[:index]:
            yield Finding(("pools", index), "is listed twice", found=repr(pool))
    yield from storage_findings(training.storage)
    trainer, proof = training.trainer, training.proof
    yield from trainer.without_source("trainer", "chart")
    if any(training.networks.values()):
        yield from training.multus.without_source("multus", "chart")
    if trainer.deepspeed.enabled and not trainer.enabled:
        yield Finding(("trainer", "deepspeed", "enabled"), "needs Trainer", "set trainer.enabled: true")
    if proof.collective_timeout_seconds * 2 > proof.deadline_seconds:
        yield Finding(
            ("proof", "collective_timeout_seconds"),
            f"{proof.collective_timeout_seconds} is too large: expected at most half of "
            f"proof.deadline_seconds ({proof.deadline_seconds})",
        )
    for name in proof.env:
        where = ("proof", "env", name)
        if name.startswith(("PET_", "TORCHELASTIC_")) or name in _SET_BY_TORCHRUN:
            yield Finding(where, "is set by torchrun", "remove it")
        if name in _EVIDENCE:
            yield Finding(where, "the verdict needs the messages that it controls", "remove it")
    yield from network_findings(training.networks, training.pools, proof.env)


_SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_EVIDENCE = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RUNTIME_CONNECT")

CONFIG = ProjectConfig(project=PROJECT, key=KEY, model=Training, what="the training run", checks=_findings)
read, load = CONFIG.read, CONFIG.load
