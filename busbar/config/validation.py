"""The measurement: which collectives, over which sizes, and when the result is good enough."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from busbar import versions
from busbar.config.values import Bytes, DnsLabel, Float, Int, Model, NonEmpty, Quantity, Text

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"]
Transport = Literal["gpudirect-rdma", "rdma", "socket"]
Algorithm = Literal["auto", "ring", "tree", "nvls", "sharp"]


class Validation(Model):
    """An nccl-tests run over each pool, and the gate on its result."""

    enabled: bool = Field(default=True, description="Measure at all; without it nccl_passed is false.")
    enforce: bool = Field(
        default=True, description="Let `pulumi up` fail when the measurement is not a pass."
    )
    run: Annotated[Int, Field(ge=1)] = Field(
        default=1,
        description="Number of the measurement: raise it to measure again where nothing else has changed, as "
        "after a cable was mended.",
    )
    profile: NonEmpty | None = Field(
        default=None,
        description="A known system, such as h100-ib-8x400, whose settings are the defaults here.",
    )
    transport: Transport | None = Field(
        default=None,
        description="What NCCL must be proved to use; by default the profile's, else gpudirect-rdma.",
    )
    collectives: Annotated[list[Collective], Field(min_length=1)] = Field(
        default=["all_reduce"], description="What to measure; the first is the headline."
    )
    min_bytes: Bytes = Field(default=512 << 20, description="Smallest message, such as 512M (binary units).")
    max_bytes: Bytes = Field(default=8 << 30, description="Largest message; the result is read there.")
    step_factor: Annotated[Int, Field(ge=2)] = Field(
        default=2, description="Factor from one size to the next."
    )
    iterations: Annotated[Int, Field(ge=1)] = Field(default=20, description="Timed iterations of each size.")
    warmup: Annotated[Int, Field(ge=0)] = Field(default=5, description="Iterations before the timed ones.")
    algorithm: Algorithm = Field(
        default="auto", description="Algorithm that NCCL is told to use (NCCL_ALGO)."
    )
    expected_busbw_gbps: Annotated[Float, Field(gt=0)] | None = Field(
        default=None, description="Expected bus bandwidth in GB/s (10^9 bytes), instead of the computed one."
    )
    expected_by_collective: dict[Collective, Annotated[Float, Field(gt=0)]] = Field(
        default={}, description="The same for the others by name; expected_busbw_gbps is the first one's."
    )
    tolerance: Annotated[Float, Field(ge=0, lt=1)] = Field(
        default=0.1, description="Part of the expected bandwidth that may be missing: 0.1 accepts 90 %."
    )
    image: NonEmpty = Field(
        default=versions.NCCL_TESTS_IMAGE, description="Image with nccl-tests, Open MPI and sshd."
    )
    env: dict[NonEmpty, Text] = Field(
        default={}, description="Further environment of the ranks, such as NCCL_DEBUG_SUBSYS."
    )
    topology_file: NonEmpty | None = Field(
        default=None,
        description="NCCL topology XML on the machine that runs Pulumi, relative to the project folder.",
    )
    hcas: list[NonEmpty] = Field(
        default=[], description="HCAs that NCCL must use (NCCL_IB_HCA); by default all rails."
    )
    slots_per_worker: Annotated[Int, Field(ge=1)] | None = Field(
        default=None, description="Ranks on each worker; by default the pool's GPUs."
    )
    deadline_seconds: Annotated[Int, Field(ge=30)] = Field(
        default=1800, description="After this the job is ended."
    )
    namespace: DnsLabel = Field(default="busbar-validation", description="Namespace of the job.")
    shm_size: Quantity = Field(
        default="64Gi", description="Size of /dev/shm in each worker pod; counts as memory."
    )
    memory: Quantity | None = Field(
        default=None, description="Memory limit of each worker pod; by default none."
    )
    runtime_class: str = Field(
        default="nvidia", description="RuntimeClass of the worker pods; empty for none."
    )

    @property
    def is_gate(self) -> bool:
        """Whether `pulumi up` has to fail without a pass: not where it was decided to measure nothing."""
        return self.enabled and self.enforce
