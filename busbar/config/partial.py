"""The valid parts of a configuration, for the checks across sections.

An error in one place must not hide an error elsewhere, so these checks do not need a valid `Cluster`. They
get the hosts as written, and from each section the keys that are valid on their own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from busbar.config.errors import KeyPath, path_of
from busbar.config.k3s import K3s
from busbar.config.operators import GpuOperator, NetworkOperator
from busbar.config.ssh import Ssh
from busbar.config.validation import PoolValidation, Validation

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
        """Its path as a text: hosts.workers[1]."""
        return path_of(self.path)


@dataclass(frozen=True)
class PartialConfig:
    """The parts of `busbar:cluster` that could be read."""

    hosts: list[PartialHost]
    virtual_ip: str | None
    has_virtual_ip: bool
    api_endpoint: str | None
    has_api_endpoint: bool
    pools: Mapping[str, Mapping[str, Any]]
    ssh: Ssh
    k3s: K3s
    gpu_operator: GpuOperator
    network_operator: NetworkOperator
    validation: Validation
    has_nfs_server: bool = False
    nfs_host: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> PartialConfig:
        """Read the valid parts; never raises, because the models report the rest."""
        hosts = _mapping(data.get("hosts"))
        virtual_ip = hosts.get("virtual_ip")
        return cls(
            hosts=list(_hosts(hosts)),
            virtual_ip=_address(_mapping(virtual_ip).get("address")),
            has_virtual_ip=virtual_ip is not None,
            api_endpoint=_text(_mapping(data.get("api_endpoint")).get("address")),
            has_api_endpoint=data.get("api_endpoint") is not None,
            pools={str(name): _mapping(pool) for name, pool in _mapping(data.get("pools")).items()},
            ssh=_section(Ssh, data.get("ssh")),
            k3s=_section(K3s, data.get("k3s")),
            gpu_operator=_section(GpuOperator, data.get("gpu_operator")),
            network_operator=_section(NetworkOperator, data.get("network_operator")),
            validation=_section(Validation, data.get("validation")),
            has_nfs_server=data.get("nfs_server") is not None,
            nfs_host=_text(_mapping(data.get("nfs_server")).get("host")),
        )

    @property
    def pool_validations(self) -> dict[str, PoolValidation]:
        """`pools.NAME.validation`, by pool."""
        return {name: _section(PoolValidation, pool.get("validation")) for name, pool in self.pools.items()}

    @property
    def only_pool(self) -> str | None:
        """The pool of workers that name none."""
        return next(iter(self.pools)) if len(self.pools) == 1 else None

    def group(self, name: str) -> list[PartialHost]:
        """The hosts under `hosts.<name>`."""
        return [host for host in self.hosts if host.group == name]


def _hosts(hosts: Mapping[str, Any]) -> Iterator[PartialHost]:
    if isinstance(single := hosts.get("nfs_server"), Mapping):
        name, address = _text(single.get("name")), _address(single.get("address"))
        yield PartialHost(("hosts", "nfs_server"), "nfs_server", name, address, None)
    for group in GROUPS:
        listed = hosts.get(group)
        for index, host in enumerate(listed if isinstance(listed, list) else []):
            fields = _mapping(host)
            name, pool = (_text(fields.get(key)) for key in ("name", "pool"))
            topology = _mapping(fields.get("topology"))
            yield PartialHost(
                ("hosts", group, index),
                group,
                name,
                _address(fields.get("address")),
                pool,
                {str(level): str(value) for level, value in topology.items() if value is not None},
                _text(fields.get("quarantine")),
            )


def _section(model: type[M], data: Any) -> M:
    """The section with its valid keys; the others have their defaults."""
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
    """As the models spell it: one address is one text."""
    text = _text(value)
    try:
        return str(ipaddress.ip_address(text or ""))
    except ValueError:
        return text.lower() if text else None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
