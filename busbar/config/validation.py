"""The NCCL validation: which collectives, over which sizes, and which result passes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field

from busbar import versions
from busbar.config.errors import did_you_mean
from busbar.config.kubernetes_values import Image, Memory, RuntimeClass
from busbar.config.network_values import HcaName
from busbar.config.values import Bytes, EnvName, Float, Int, NonEmpty, Offered, Text, invalid
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Profile
from busbar.models import ConfigModel

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"]
Transport = Literal["gpudirect-rdma", "rdma", "socket"]
Algorithm = Literal["auto", "ring", "tree", "nvls", "sharp"]
DEFAULT_TRANSPORT: Transport = "gpudirect-rdma"


def _known_profile(value: str) -> str:
    if value not in (names := profiles.names()):
        hint = did_you_mean(value, names) or f"; expected one of: {', '.join(names)}"
        raise invalid(f"is not a profile{hint}")
    return value


def _once(collectives: list[Collective]) -> list[Collective]:
    if len(set(collectives)) < len(collectives):
        raise invalid(f"{', '.join(collectives)} has duplicates", "list each once")
    return collectives


def _without_defaults(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        field.pop("default", None)


ProfileName = Annotated[NonEmpty, AfterValidator(_known_profile), Offered(profiles.names, only=True)]


class NcclPoolSettings(ConfigModel):
    """Settings of a measurement that depend on a pool's hardware; all others are as in `validation`."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    profile: ProfileName | None = Field(
        default=None,
        description="Profile of a known system, such as h100-ib-8x400; its settings become the defaults.",
    )
    transport: Transport | None = Field(
        default=None,
        description="Transport that NCCL must prove to use; by default the profile's, else gpudirect-rdma.",
    )
    algorithm: Algorithm = Field(
        default="auto", description="Algorithm that NCCL is told to use (NCCL_ALGO)."
    )
    expected_busbw_gbps: Annotated[Float, Field(gt=0)] | None = Field(
        default=None, description="Expected bus bandwidth in GB/s (10^9 bytes), instead of the computed one."
    )
    expected_by_collective: dict[Collective, Annotated[Float, Field(gt=0)]] = Field(
        default={},
        description="Expected bus bandwidth in GB/s by collective; expected_busbw_gbps is the first one's.",
    )
    tolerance: Annotated[Float, Field(ge=0, lt=1)] = Field(
        default=0.1,
        description="Accepted shortfall as a fraction of the expected bandwidth: 0.1 accepts 90 %.",
    )
    env: dict[EnvName, Text] = Field(
        default={}, description="Additional environment variables of the ranks, such as NCCL_DEBUG_SUBSYS."
    )
    hcas: list[HcaName] = Field(
        default=[], description="HCAs that NCCL must use (NCCL_IB_HCA); by default all rails."
    )


class NcclSettings(NcclPoolSettings):
    """The collectives and sizes measured on each pool, and the results that pass, under every scheduler."""

    model_config = ConfigDict(json_schema_extra=None)

    enabled: bool = Field(
        default=True, description="Run the NCCL validation; if false, nccl_passed is false."
    )
    enforce: bool = Field(default=True, description="Let `pulumi up` fail unless the validation passed.")
    run: Annotated[Int, Field(ge=1)] = Field(
        default=1,
        description="Number of the run: raise it to measure again without another change, for example "
        "after a cable was replaced.",
    )
    busy_deadline_seconds: Annotated[Int, Field(ge=30)] = Field(
        default=3600, description="How long when_busy: wait waits for the GPUs, in seconds."
    )
    min_nodes_fraction: Annotated[Float, Field(gt=0, le=1)] = Field(
        default=0.9,
        description="Part of a pool's workers, without those in quarantine, that must be measured; with "
        "fewer, nccl_passed is false.",
    )
    collectives: Annotated[list[Collective], Field(min_length=1), AfterValidator(_once)] = Field(
        default=["all_reduce"], description="Collectives to measure; the first one is the headline result."
    )
    min_bytes: Bytes = Field(default=512 << 20, description="Smallest message, such as 512M (binary units).")
    max_bytes: Bytes = Field(default=8 << 30, description="Largest message; busbw is taken at this size.")
    step_factor: Annotated[Int, Field(ge=2)] = Field(
        default=2, description="Factor from one size to the next."
    )
    iterations: Annotated[Int, Field(ge=1)] = Field(default=20, description="Timed iterations per size.")
    warmup: Annotated[Int, Field(ge=0)] = Field(default=5, description="Iterations before the timed ones.")
    accept_warnings: list[Annotated[Text, Field(min_length=8)]] = Field(
        default=[],
        description="Parts of lines that busbar does not know and the log may have: WARN lines of NCCL, and "
        "lines that look like the end of a job. Known failures are never accepted.",
    )
    slots_per_worker: Annotated[Int, Field(ge=1)] | None = Field(
        default=None, description="Ranks per worker; by default the pool's GPUs."
    )
    deadline_seconds: Annotated[Int, Field(ge=30)] = Field(
        default=1800, description="Time limit of the job in seconds."
    )

    def of_pool(self, own: NcclPoolSettings | None) -> Self:
        """The validation of a pool: its OWN values, else these. Its `env` is merged over this one."""
        given = {key: getattr(own, key) for key in own.model_fields_set} if own else {}
        if "env" in given:
            given["env"] = {**self.env, **given["env"]}
        return self.model_copy(update=given)

    @property
    def is_gate(self) -> bool:
        """True if `pulumi up` fails without a pass. It does not while the validation is switched off."""
        return self.enabled and self.enforce

    @property
    def required_transport(self) -> Transport:
        """The transport required between hosts: the configured one, else the profile's, else the default."""
        if self.transport is not None:
            return self.transport
        return self.system.transport if self.system else DEFAULT_TRANSPORT

    @property
    def system(self) -> Profile | None:
        """The profile, where one is named."""
        return profiles.load(self.profile) if self.profile else None

    def chosen(self, name: str) -> Any:
        """The configured value of a field, else the profile's if it has one."""
        of_profile = getattr(self.system, name, None)
        return getattr(self, name) if name in self.model_fields_set or of_profile is None else of_profile


class PodSettings(ConfigModel):
    """Settings of the pods of a measurement."""

    image: Image = Field(
        default=versions.NCCL_TESTS_IMAGE, description="Image with nccl-tests, Open MPI and sshd."
    )
    topology_file: NonEmpty | None = Field(
        default=None,
        description="NCCL topology XML on the machine that runs Pulumi, relative to the project folder.",
    )


class PoolValidation(NcclPoolSettings, PodSettings):
    """Values of a pool that replace those of `validation`."""


class Diagnose(ConfigModel):
    """Settings of `busbar diagnose`, which finds the slow node, rail or switch of a pool."""

    when: Literal["never", "on_failure"] = Field(
        default="never",
        description="When `busbar up` runs it. on_failure: at once after a failed gate, for each pool that "
        "did not pass.",
    )


class Validation(NcclSettings, PodSettings):
    """An MPIJob of nccl-tests per pool, and the gate on its result."""

    when_busy: Literal["fail", "wait", "keep"] = Field(
        default="fail",
        description="What a new measurement does while pods hold the GPUs that it needs. fail: after three "
        "minutes the update fails, except where a quarantine begins or ends, which keeps the former verdict. "
        "wait: it waits for them. keep: the former verdict stays, for the workers that it measured, and says "
        "what has changed since; without one, the update fails.",
    )
    shm_size: Memory = Field(default="64Gi", description="Size of /dev/shm per worker pod; counts as memory.")
    memory: Memory | None = Field(default=None, description="Memory limit per worker pod; by default none.")
    runtime_class: RuntimeClass = Field(
        default="nvidia", description="RuntimeClass of the worker pods; empty for none."
    )
    diagnose: Diagnose = Field(default=Diagnose(), description="When `busbar up` runs `busbar diagnose`.")
