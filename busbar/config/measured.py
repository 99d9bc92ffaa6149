"""Pools of hosts under any scheduler: their hardware, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, TypeAlias, TypeVar

from pydantic import Field

from busbar.config.hardware import Hardware
from busbar.config.hosts import Worker
from busbar.config.kubernetes_values import DnsLabel
from busbar.config.ssh import Ssh
from busbar.config.validation import NcclPoolSettings, NcclSettings
from busbar.models import ConfigModel


class MeasuredPool(Hardware):
    """A pool of hosts, and what differs in its measurement."""

    validation: NcclPoolSettings | None = Field(
        default=None, description="What differs in the NCCL validation of this pool, by its hardware."
    )


P = TypeVar("P", bound=MeasuredPool, covariant=True)
V = TypeVar("V", bound=NcclSettings, covariant=True)


class MeasuredCluster(ConfigModel, Generic[P, V]):
    """What the configuration of K3s and that of Slurm have in common."""

    name: DnsLabel
    ssh: Ssh = Field(description="How to log in to the hosts.")
    pools: Annotated[dict[DnsLabel, P], Field(min_length=1)] = Field(
        description="Pools by name: groups of identical hosts with GPUs, and what each of them must have."
    )
    validation: V

    @property
    def workers(self) -> Sequence[Worker]:
        """The hosts of all pools."""
        raise NotImplementedError

    def pool_of(self, worker: Worker) -> str | None:
        """Name of its pool: a worker that names none is in the only one."""
        return worker.pool or (next(iter(self.pools)) if len(self.pools) == 1 else None)

    def workers_of(self, pool: str) -> list[Worker]:
        """The hosts of a pool, in the order of the configuration."""
        return [worker for worker in self.workers if self.pool_of(worker) == pool]

    def validation_of(self, pool: str) -> V:
        """The validation of a pool: `validation` with `pools.NAME.validation`."""
        return self.validation.of_pool(self.pools[pool].validation)


AnyCluster: TypeAlias = "MeasuredCluster[MeasuredPool, NcclSettings]"
