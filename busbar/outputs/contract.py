"""Reading the outputs of a busbar stack from another program, typed and checked."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from busbar.outputs.launch import PoolLaunch, parse_pools
from busbar.outputs.node import Node, parse_nodes
from busbar.outputs.pool import PoolResult, parse_pool
from busbar.outputs.values import number

CONTRACT_VERSION = 2
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""

NAMES = (
    "contract_version",
    "cluster_name",
    "api_endpoint",
    "k3s_version",
    "nodes",
    "versions",
    "nccl_busbw_gbps",
    "nccl_expected_gbps",
    "nccl_fraction",
    "nccl_passed",
    "nccl_reasons",
    "nccl",
    "pools",
    "nfs_server",
)
"""The outputs but the kubeconfig, in the order in which they are exported."""
# A number that was not measured is no output at all: Pulumi drops what is None.
_MAY_BE_ABSENT = {
    "k3s_version", "nccl_busbw_gbps", "nccl_expected_gbps", "nccl_fraction",
    "pools",  # added to contract 2: a stack that was last updated before has no such output
    "nfs_server",
}  # fmt: skip


class ContractError(ValueError):
    """The outputs are not those of a busbar stack, or have another contract version."""


class OutputDetails(Protocol):
    """What `StackReference.get_output_details` gives: one of the two is None."""

    value: Any | None
    secret_value: Any | None


class StackReference(Protocol):
    """The part of `pulumi.StackReference` that is used; busbar itself never imports pulumi."""

    def get_output_details(self, name: str) -> Awaitable[OutputDetails]:
        """The output as a plain value, whether it is a secret or not."""

    def require_output(self, key: str) -> Any:
        """The output as a pulumi.Output that keeps its secretness."""


@dataclass(frozen=True)
class NfsExport:
    """What a worker mounts: `address`:`export`, with NFSv4."""

    address: str
    export: str


@dataclass(frozen=True)
class ClusterOutputs:
    """A cluster as its stack exported it. Bandwidths are in GB/s (10^9 bytes).

    Gate on `nccl_passed` and on nothing else: a number alone says nothing about the transport behind it.
    `nccl` holds the result of each pool that was measured. `versions` are those of what runs on K3s. `pools`
    is what a pod needs on each pool; empty for a stack that was last updated before there was such an output.
    `nfs_server` is the export that busbar made for the workers, if any.
    """

    contract_version: int
    cluster_name: str
    api_endpoint: str
    k3s_version: str | None
    nodes: tuple[Node, ...]
    versions: Mapping[str, str | None]
    nccl_busbw_gbps: float | None
    nccl_expected_gbps: float | None
    nccl_fraction: float | None
    nccl_passed: bool
    nccl_reasons: tuple[str, ...]
    nccl: Mapping[str, PoolResult]
    pools: Mapping[str, PoolLaunch] = field(default_factory=dict)
    nfs_server: NfsExport | None = None
    kubeconfig: Any = field(default=None, repr=False)
    """From a stack reference: a secret pulumi.Output[str]. From a dict: what stood there."""

    @classmethod
    async def from_stack(cls, reference: StackReference) -> ClusterOutputs:
        """Read a `pulumi.StackReference`: `await ClusterOutputs.from_stack(ref)` inside `pulumi.run(main)`.

        The kubeconfig stays a secret Output. Raises ContractError as `from_dict` does.
        """
        outputs: dict[str, Any] = {}
        for key in NAMES:
            details = await reference.get_output_details(key)
            value = details.secret_value if details.value is None else details.value
            if value is not None:
                outputs[key] = value
        read = cls.from_dict(outputs)
        return cls(**{**vars(read), "kubeconfig": reference.require_output("kubeconfig")})

    @classmethod
    def from_dict(cls, outputs: Mapping[str, Any]) -> ClusterOutputs:
        """Read outputs as `pulumi stack output --json` prints them; all numbers may be floats.

        Raises ContractError for another contract version, a missing output, or one of another type.
        """
        check_version(outputs)
        missing = [key for key in NAMES if key not in outputs and key not in _MAY_BE_ABSENT]
        if missing:
            raise ContractError(
                f"missing outputs: {', '.join(missing)}. Fix: run `pulumi up` on that stack to its end"
            )
        passed = outputs["nccl_passed"]
        if not isinstance(passed, bool):
            raise ContractError(f"nccl_passed is {passed!r}, true or false is expected")
        return cls(
            contract_version=CONTRACT_VERSION,
            cluster_name=_of("cluster_name", outputs, str),
            api_endpoint=_of("api_endpoint", outputs, str),
            k3s_version=outputs.get("k3s_version"),
            nodes=_nodes(_of("nodes", outputs, Mapping)),
            versions=_of("versions", outputs, Mapping),
            nccl_busbw_gbps=_float("nccl_busbw_gbps", outputs),
            nccl_expected_gbps=_float("nccl_expected_gbps", outputs),
            nccl_fraction=_float("nccl_fraction", outputs),
            nccl_passed=passed,
            nccl_reasons=tuple(str(reason) for reason in _of("nccl_reasons", outputs, list)),
            nccl=_results(_of("nccl", outputs, Mapping)),
            pools=_pools(outputs.get("pools")),
            nfs_server=_export(outputs.get("nfs_server")),
            kubeconfig=outputs.get("kubeconfig"),
        )

    @property
    def refusal(self) -> str | None:
        """Why nothing that needs the fabric should run here, for terminal output; None where it may."""
        if self.nccl_passed:
            return None
        reasons = "".join(f"\n  - {reason}" for reason in self.nccl_reasons or ("no reason was given",))
        return (
            f"cluster {self.cluster_name} has not passed its NCCL validation (nccl_passed is false):{reasons}"
        )


def check_version(outputs: Mapping[str, Any]) -> None:
    """Raise ContractError unless the outputs are those of a stack with this contract version."""
    value = outputs.get("contract_version")
    if value is None:
        raise ContractError(
            "contract_version is missing: this is not a busbar stack, or its first `pulumi up` has not "
            "finished"
        )
    version = _int("contract_version", value)
    if version != CONTRACT_VERSION:
        fix = (
            f"run `pulumi up` on that stack with a busbar that writes contract {CONTRACT_VERSION}"
            if version < CONTRACT_VERSION
            else f"use a busbar package that reads contract {version}"
        )
        raise ContractError(
            f"unsupported contract_version {version} (supported: {CONTRACT_VERSION}). Fix: {fix}"
        )


def _of(key: str, outputs: Mapping[str, Any], kind: type) -> Any:
    value = outputs[key]
    if not isinstance(value, kind):
        raise ContractError(f"{key} is {value!r}, {kind.__name__.lower()} is expected")
    return value


def _nodes(texts: Mapping[str, Any]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for role, text in texts.items():
        try:
            nodes += parse_nodes(str(role), str(text))
        except ValueError as error:
            raise ContractError(f"nodes.{role} has {error}") from None
    return tuple(nodes)


def _pools(text: Any) -> dict[str, PoolLaunch]:
    try:
        return {} if text is None else parse_pools(text)
    except ValueError as error:
        raise ContractError(f"pools has {error}") from None


def _export(entry: Any) -> NfsExport | None:
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or not all(
        isinstance(entry.get(key), str) for key in ("address", "export")
    ):
        raise ContractError(f"nfs_server is {entry!r}, a mapping with address and export is expected")
    return NfsExport(entry["address"], entry["export"])


def _results(entries: Mapping[str, Any]) -> dict[str, PoolResult]:
    results = {}
    for pool, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise ContractError(f"nccl.{pool} is {entry!r}, a mapping is expected")
        try:
            results[str(pool)] = parse_pool(entry)
        except ValueError as error:
            raise ContractError(f"nccl.{pool}.{error}") from None
    return results


def _int(key: str, value: Any) -> int:
    found = number(value)
    if found is None or not found.is_integer():
        raise ContractError(f"{key} is {value!r}, a whole number is expected")
    return int(found)


def _float(key: str, outputs: Mapping[str, Any]) -> float | None:
    value = outputs.get(key)
    if value is None:
        return None
    found = number(value)
    if found is None:
        raise ContractError(f"{key} is {value!r}, a number is expected")
    return found
