"""Pools of hosts with GPUs, under any scheduler: their hardware, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, ConfigDict, Field

from busbar.config.hosts import HostsFrom, Worker
from busbar.config.kubernetes_values import DnsLabel
from busbar.config.network_values import HcaPattern
from busbar.config.ssh import Ssh
from busbar.config.validation import NcclPoolSettings, NcclSettings
from busbar.config.values import Float, Int, NonEmpty, invalid
from busbar.models import ConfigModel

if TYPE_CHECKING:
    from busbar.judge.nccl.expected.expectation import Expectation


class Gpus(ConfigModel):
    """The GPUs of a host; used alone where its rails do not count, or come from a profile."""

    gpus: Annotated[Int, Field(ge=1, le=64)] = Field(description="GPUs per worker.")
    gpu_model: NonEmpty | None = Field(
        default=None, description="Text that the GPU's product name must contain, such as H100."
    )


class Hardware(Gpus):
    """The hardware that every host of a pool must have; preflight fails for a host that has less."""

    rails: Annotated[Int, Field(ge=1, le=64)] = Field(
        description="HCA ports per worker that carry NCCL traffic: active, and at rate_gbps."
    )
    rate_gbps: Annotated[Float, Field(gt=0, le=3200)] = Field(
        description="Rate of one rail in Gb/s: 400 for NDR."
    )
    link_layer: Literal["infiniband", "ethernet"] = Field(
        default="infiniband", description="Link layer of the rails; ethernet means RoCE."
    )
    ignore_hcas: list[HcaPattern] = Field(
        default=[],
        description="HCAs that are not rails (storage, management), such as mlx5_4; shell patterns work.",
    )

    @property
    def required(self) -> dict[str, Any]:
        """The fields of a Hardware, without those of a subclass: what preflight requires of a host."""
        return self.model_dump(include={*Hardware.model_fields})

    def expectation(self, validation: NcclSettings, nodes: int | None = None) -> Expectation:
        """The input for computing bandwidths, without configured bandwidths."""
        # This import loads half of the judge, which few configurations need.
        from busbar.judge.nccl.expected.expectation import Expectation

        return Expectation(
            profile=validation.profile,
            nodes=nodes,
            gpus_per_node=validation.slots_per_worker or self.gpus,
            gpu=self.gpu_model,
            rails=self.rails,
            rate_gbps=self.rate_gbps,
            transport=validation.required_transport,
            algorithm=validation.chosen("algorithm"),
        )


class MeasuredPool(Hardware):
    """A pool of hosts, and its own settings of the measurement."""

    validation: NcclPoolSettings | None = Field(
        default=None, description="What differs in the NCCL validation of this pool, by its hardware."
    )

    def quarantined_at_once(self, workers: int) -> int:
        """How many of the pool's workers a diagnosis may put in quarantine at once."""
        return max(1, workers // 10)


P = TypeVar("P", bound=MeasuredPool, covariant=True)
V = TypeVar("V", bound=NcclSettings, covariant=True)


def _unread(value: HostsFrom | None) -> HostsFrom | None:
    if value is not None:
        raise invalid("has not been read", "use busbar.config.stackfile, or the component Cluster")
    return value


def _hosts_or_list(schema: dict[str, Any], model: type[MeasuredCluster[Any, Any]]) -> None:
    """The hosts are either listed in the stack file or elsewhere."""
    if (hosts := model.model_fields.get("hosts")) is None or hosts.annotation is None:
        return
    schema["required"].remove("hosts")
    lists = [key for key, field in hosts.annotation.model_fields.items() if field.is_required()]
    inline = {"required": ["hosts"], "properties": {"hosts": {"required": lists}}}
    schema["oneOf"] = [inline, {"required": ["hosts_from"]}]


class MeasuredCluster(ConfigModel, Generic[P, V]):
    """The part that the configurations of K3s and Slurm share."""

    model_config = ConfigDict(json_schema_extra=_hosts_or_list)

    name: DnsLabel
    ssh: Ssh = Field(description="How to log in to the hosts.")
    pools: Annotated[dict[DnsLabel, P], Field(min_length=1)] = Field(
        description="Pools by name: groups of identical hosts with GPUs, and what each of them must have."
    )
    validation: V
    hosts_from: Annotated[HostsFrom | None, AfterValidator(_unread)] = Field(
        default=None, description="A list of hosts elsewhere, in place of the lists below hosts."
    )
    hosts: ConfigModel

    @property
    def workers(self) -> Sequence[Worker]:
        """The hosts of all pools."""
        raise NotImplementedError

    @property
    def quarantine(self) -> dict[str, str]:
        """Worker name -> the reason why it is kept away from jobs."""
        return {worker.name: worker.quarantine for worker in self.workers if worker.quarantine}

    def pool_of(self, worker: Worker) -> str | None:
        """The name of a worker's pool; a worker that names none is in the only one."""
        return worker.pool or (next(iter(self.pools)) if len(self.pools) == 1 else None)

    def workers_of(self, pool: str) -> list[Worker]:
        """The hosts of a pool, in the order of the configuration."""
        return [worker for worker in self.workers if self.pool_of(worker) == pool]

    def validation_of(self, pool: str) -> V:
        """The validation of a pool: `validation` with `pools.NAME.validation`."""
        return self.validation.of_pool(self.pools[pool].validation)


AnyCluster: TypeAlias = "MeasuredCluster[MeasuredPool, NcclSettings]"
