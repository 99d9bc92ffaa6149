"""The valid parts of a configuration, for the checks across sections.

An error in one place must not hide an error elsewhere, so these checks do not need a valid `Cluster`. They
get the hosts as written, and from each section the keys that are valid on their own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from busbar.config.errors import KeyPath, path_of
from busbar.config.k3s import K3s
from busbar.config.operators import GpuOperator, NetworkOperator
from busbar.config.ssh import Ssh
from busbar.config.validation import NcclPoolSettings, NcclSettings, Validation

M = TypeVar("M", bound=BaseModel)

GROUPS = ("load_balancers", "servers", "workers")


@dataclass(frozen=True)
class PartialHost:
    """A host as written; a value that is missing or of the wrong type is None.

    `places`: level of the topology -> the name that it has there.
    """

    path: KeyPath
    group: str
    name: str | None
    address: str | None
    pool: str | None
    places: Mapping[str, str] = field(default_factory=dict)
    quarantine: str | None = None

    @property
    def where(self) -> str:
        """The path of the host as a text: hosts.workers[1]."""
        return path_of(self.path)


@dataclass(frozen=True)
class PartialCluster:
    """The parts that could be read of a configuration of K3s or Slurm; `workers`: hosts of the pools."""

    hosts: list[PartialHost]
    workers: list[PartialHost]
    pools: Mapping[str, Mapping[str, Any]]
    ssh: Ssh
    validation: NcclSettings

    @classmethod
    def of(
        cls, data: Mapping[str, Any], groups: Sequence[str], workers: str, validation: type[NcclSettings]
    ) -> PartialCluster:
        """Read the valid parts; never raises, because the models report the rest.

        `groups`: the keys of `hosts`; `workers`: that of the hosts in pools.
        """
        hosts = [host for group in groups for host in _hosts(group, _mapping(data.get("hosts")).get(group))]
        return cls(
            hosts=hosts,
            workers=[host for host in hosts if host.group == workers],
            pools={str(name): _mapping(pool) for name, pool in _mapping(data.get("pools")).items()},
            ssh=_section(Ssh, data.get("ssh")),
            validation=_section(validation, data.get("validation")),
        )

    @property
    def pool_validations(self) -> dict[str, NcclPoolSettings]:
        """Pool -> its section `pools.NAME.validation`."""
        found = {name: pool.get("validation") for name, pool in self.pools.items()}
        return {name: _section(NcclPoolSettings, own) for name, own in found.items()}

    @property
    def only_pool(self) -> str | None:
        """The pool of the workers that name none: the only one; None with several."""
        return next(iter(self.pools)) if len(self.pools) == 1 else None


@dataclass(frozen=True)
class PartialConfig(PartialCluster):
    """The parts of `busbar:cluster` that could be read."""

    validation: Validation
    virtual_ip: str | None
    has_virtual_ip: bool
    api_endpoint: str | None
    has_api_endpoint: bool
    k3s: K3s
    gpu_operator: GpuOperator
    network_operator: NetworkOperator
    has_nfs_server: bool
    nfs_host: str | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> PartialConfig:
        """Read the valid parts; never raises, because the models report the rest."""
        common = PartialCluster.of(data, ("nfs_server", *GROUPS), "workers", Validation)
        virtual_ip = _mapping(data.get("hosts")).get("virtual_ip")
        return cls(
            **vars(common),
            virtual_ip=_address(_mapping(virtual_ip).get("address")),
            has_virtual_ip=virtual_ip is not None,
            api_endpoint=_text(_mapping(data.get("api_endpoint")).get("address")),
            has_api_endpoint=data.get("api_endpoint") is not None,
            k3s=_section(K3s, data.get("k3s")),
            gpu_operator=_section(GpuOperator, data.get("gpu_operator")),
            network_operator=_section(NetworkOperator, data.get("network_operator")),
            has_nfs_server=data.get("nfs_server") is not None,
            nfs_host=_text(_mapping(data.get("nfs_server")).get("host")),
        )

    def group(self, name: str) -> list[PartialHost]:
        """The hosts under `hosts.<name>`."""
        return [host for host in self.hosts if host.group == name]


def _hosts(group: str, listed: Any) -> Iterator[PartialHost]:
    """The hosts below one key of `hosts`, which has a list or a single host."""
    single = [listed] if isinstance(listed, Mapping) else []
    for index, host in enumerate(listed if isinstance(listed, list) else single):
        fields = _mapping(host)
        topology = _mapping(fields.get("topology"))
        yield PartialHost(
            ("hosts", group) if single else ("hosts", group, index),
            group,
            _text(fields.get("name")),
            _address(fields.get("address")),
            _text(fields.get("pool")),
            {str(level): str(value) for level, value in topology.items() if value is not None},
            _text(fields.get("quarantine")),
        )


def _section(model: type[M], data: Any) -> M:
    """The section with its valid keys; invalid ones have their defaults."""
    given = _mapping(data)
    try:
        return model.model_validate(given)
    except ValidationError:
        return model.model_validate(
            {key: value for key, value in given.items() if _is_valid(model, key, value)}
        )


def _is_valid(model: type[BaseModel], key: str, value: Any) -> bool:
    try:
        model.model_validate({key: value})
    except ValidationError:
        return False
    return True


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _address(value: Any) -> str | None:
    """An address in the spelling of the models, so that equal addresses are equal texts."""
    text = _text(value)
    try:
        return str(ipaddress.ip_address(text or ""))
    except ValueError:
        return text.lower() if text else None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
