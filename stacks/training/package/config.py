"""`busbar-training:training`: the whole configuration of one stack of stacks/training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from busbar.config.cluster import Chart, Removal
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
    JsonObject,
    Quantity,
    Seconds,
    StackName,
    Text,
    Url,
    own_namespace,
)
from busbar.finding import Finding
from busbar.models import ConfigModel
from stacks.training.package import versions
from stacks.training.package.networks import Network, environment
from stacks.training.package.networks import findings as network_findings
from stacks.training.package.storage import Storage
from stacks.training.package.storage import findings as storage_findings

KEY = "training"
PROJECT = "busbar-training"
OPERATOR_NAMESPACES = ("kubeflow-system", "multus", "training-operator")

# The program runs both collectives and its own Python; a smaller share leaves no time for either.
MIN_DEADLINE_SECONDS = 120


class DeepSpeed(ConfigModel):
    """A ClusterTrainingRuntime per pool whose ranks are started by mpirun, as DeepSpeed's are."""

    enabled: bool = Field(default=False, description="Make the runtimes busbar-deepspeed-<pool>.")
    image: Image = Field(
        default=versions.DEEPSPEED_IMAGE,
        description="Image with Open MPI, and an sshd that user 1000 may run by /home/mpiuser/.sshd_config.",
    )


class InstalledChart(Chart):
    """A chart that is installed if enabled."""

    enabled: bool = Field(default=False, description="Install it.")
    repository: Url | None = Field(
        default=None, description="Helm repository; not used for a local chart or an oci:// URL."
    )
    values: JsonObject = Field(
        default={}, description="Values merged over stacks/training/helm_values/; lists are replaced."
    )


class Trainer(InstalledChart):
    """Kubeflow Trainer v2 with JobSet, and a ClusterTrainingRuntime per pool, which TrainJobs refer to."""

    version: ChartVersion = Field(default=versions.TRAINER, description="Version of the chart.")
    chart: ChartName = Field(
        default=versions.TRAINER_CHART, description="Name of the chart, a local path, or an oci:// URL."
    )
    timeout_seconds: Seconds = Field(
        default=600, description="Time until the controllers must be available, in seconds."
    )
    image: Image = Field(
        default=versions.TORCH_IMAGE, description="Image of the runtimes; a TrainJob may name another."
    )
    deepspeed: DeepSpeed = Field(default=DeepSpeed(), description="Runtimes for mpirun.")


class Multus(InstalledChart):
    """Multus with whereabouts: the chart rke2-multus, which the documentation of K3s names."""

    enabled: bool = Field(
        default=True,
        description="Install it where a pool has networks; false if another tool has installed both.",
    )
    version: ChartVersion = Field(
        default=versions.MULTUS, description="Version of the chart, with a leading v."
    )
    repository: Url | None = Field(
        default=versions.RKE2_CHARTS,
        description="Helm repository; not used for a local chart or an oci:// URL.",
    )
    chart: ChartName = Field(
        default="rke2-multus", description="Name of the chart, a local path, or an oci:// URL."
    )
    timeout_seconds: Seconds = Field(
        default=300, description="Time until it must run on every node, in seconds."
    )


class TrainingOperator(ConfigModel):
    """Kubeflow Training Operator v1, from the manifests of its release."""

    enabled: bool = Field(default=False, description="Install it.")
    image: Image = Field(
        default=versions.TRAINING_OPERATOR_IMAGE, description="Image of the controller; its tags are commits."
    )
    init_image: Image = Field(
        default=versions.INIT_IMAGE,
        description="Image in which a PyTorchJob's workers wait for their master; it must have nslookup.",
    )
    timeout_seconds: Seconds = Field(
        default=300, description="Time until the controller must be available, in seconds."
    )


class Proof(ConfigModel):
    """A short training run per pool, and the gate on its result."""

    enabled: bool = Field(default=True, description="Run it; if false, training_passed is false.")
    enforce: bool = Field(default=True, description="Let `pulumi up` fail unless the run passed.")
    run: Annotated[Int, Field(ge=1)] = Field(
        default=1, description="Number of the run: raise it to train again without another change."
    )
    image: Image = Field(default=versions.TORCH_IMAGE, description="Image with Python 3 and torch.")
    backend: Literal["nccl", "gloo"] = Field(
        default="nccl", description="torch.distributed backend; gloo trains on CPUs over TCP."
    )
    ranks_per_node: Annotated[Int, Field(ge=1)] | None = Field(
        default=None, description="Ranks per worker; by default the pool's GPUs."
    )
    gradient_bytes: Bytes | None = Field(
        default=None,
        description="Size of all gradients, such as 1G; by default the largest measured message up to 1 GiB.",
    )
    steps: Annotated[Int, Field(ge=8, le=1000)] = Field(default=30, description="Training steps.")
    iterations: Annotated[Int, Field(ge=3, le=1000)] = Field(
        default=10, description="Samples of each measured time."
    )
    min_loss_drop: Annotated[Float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="Part of the first loss that the last one must be below it: 0.5 is half."
    )
    min_busbw_fraction: Annotated[Float, Field(gt=0, le=1)] = Field(
        default=0.7,
        description="Part of the busbw of nccl-tests that the all-reduce of the gradients must reach.",
    )
    interfaces: list[InterfaceName] = Field(
        default=[],
        description="Network interfaces that every pod must have, besides those of `networks`, such as net1.",
    )
    env: dict[EnvName, Text] = Field(default={}, description="Additional environment variables of the ranks.")
    cpu: Quantity | None = Field(default=None, description="CPUs requested per pod; by default none.")
    memory: Quantity | None = Field(
        default=None, description="Memory limit per pod; by default that of the cluster's validation."
    )
    deadline_seconds: Annotated[Int, Field(ge=MIN_DEADLINE_SECONDS)] = Field(
        default=1200, description="Time limit of the job in seconds."
    )
    collective_timeout_seconds: Annotated[Int, Field(ge=10)] = Field(
        default=60, description="Time limit of one collective in seconds: then the ranks end with an error."
    )

    @property
    def is_gate(self) -> bool:
        """True if `pulumi up` fails without a pass. It does not while the proof is switched off."""
        return self.enabled and self.enforce


class Training(ConfigModel):
    """The software for training on one cluster, and the training run that proves it."""

    cluster: StackName = Field(
        description="The stack that created the cluster, as organization/busbar/STACK."
    )
    namespace: Annotated[DnsLabel, own_namespace("busbar-training", *OPERATOR_NAMESPACES)] = Field(
        default="busbar-training", description="Namespace of the training run."
    )
    pools: list[DnsLabel] = Field(default=[], description="Pools of the cluster to use; by default all.")
    proof: Proof = Field(default=Proof(), description="The training run and its gate.")
    storage: Storage = Field(default=Storage(), description="Shared storage for checkpoints.")
    trainer: Trainer = Field(default=Trainer(), description="Kubeflow Trainer v2.")
    networks: dict[DnsLabel, list[Network]] = Field(
        default={}, description="By pool: interfaces of its pods besides eth0: net1, net2, ... in this order."
    )
    multus: Multus = Field(default=Multus(), description="What attaches `networks` to pods.")
    training_operator: TrainingOperator = Field(
        default=TrainingOperator(), description="Kubeflow Training Operator v1, for PyTorchJobs."
    )
    removal: Removal = Field(default=Removal(), description="What a destroy does with running jobs.")


def _findings(training: Training) -> Iterator[Finding]:
    """The checks that no value can make on its own."""
    for index, pool in enumerate(training.pools):
        if pool in training.pools[:index]:
            yield Finding(("pools", index), "is listed twice", found=repr(pool))
    yield from storage_findings(training.storage)
    trainer, proof = training.trainer, training.proof
    charts = {"trainer": trainer, **({"multus": training.multus} if any(training.networks.values()) else {})}
    for key, chart in charts.items():
        if chart.enabled and not (chart.is_local or chart.repository_url or "://" in chart.chart):
            text = f"is a name, and {key}.repository is not set"
            yield Finding((key, "chart"), text, found=repr(chart.chart))
    if trainer.deepspeed.enabled and not trainer.enabled:
        yield Finding(("trainer", "deepspeed", "enabled"), "needs Trainer", "set trainer.enabled: true")
    if proof.collective_timeout_seconds * 2 > proof.deadline_seconds:
        yield Finding(
            ("proof", "collective_timeout_seconds"),
            f"{proof.collective_timeout_seconds} is too large: expected at most half of "
            f"proof.deadline_seconds ({proof.deadline_seconds})",
        )
    for name in proof.env:
        if name.startswith(("PET_", "TORCHELASTIC_")) or name in _SET_BY_TORCHRUN:
            yield Finding(("proof", "env", name), "is set by torchrun", "remove it")
        if name in _EVIDENCE:
            yield Finding(
                ("proof", "env", name), "the verdict needs the messages that it controls", "remove it"
            )
    yield from environment(proof.env, training.networks)
    yield from network_findings(training.networks, training.pools)


_SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_EVIDENCE = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_RUNTIME_CONNECT")

CONFIG = ProjectConfig(
    project=PROJECT,
    key=KEY,
    model=Training,
    what="the training run",
    checks=_findings,
)
read, load, stack_schema = CONFIG.read, CONFIG.load, CONFIG.schema
