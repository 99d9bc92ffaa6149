"""Reading the outputs of a busbar stack from another program, typed and checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import AwareDatetime, Field, FiniteFloat, StrictBool, StrictFloat, ValidationError

from busbar import __version__
from busbar.config import Cluster
from busbar.config.cluster import Taint
from busbar.config.stackfile import tidy
from busbar.exits import NoVerdict
from busbar.hosts.inventory import Host, Inventory
from busbar.judge.archive import JOB, VERDICT, Record, Settings, changes
from busbar.manifests import nccljob
from busbar.models import OutputModel, number, problems
from busbar.text import listed

# Variables only of the validation: a job has its own number of ranks, and its own way to print evidence.
_OF_THE_VALIDATION = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_RUNTIME_CONNECT", "NCCL_TOPO_FILE")


class PoolLaunch(OutputModel):
    """One pool: its workers, and the settings under which its bandwidth was measured."""

    workers: tuple[str, ...] = Field(min_length=1)
    """The names of their Nodes."""
    gpus: int = Field(ge=1)
    """GPUs of each worker."""
    rails: int = Field(ge=1)
    """HCA ports of each worker that carry NCCL traffic."""
    rail_hcas: dict[str, tuple[str, ...]] | None = None
    """Worker -> the names of its rails at its last preflight, as NCCL_IB_HCA has them (mlx5_0, or mlx5_0:2
    for port 2). Workers differ. A worker whose rails are not known is absent."""
    machines: dict[str, str] = Field(default={})
    """Worker -> the digest of its machine-id at its last preflight. Another machine is measured again."""
    rate_gbps: float
    """Rate of one rail in Gb/s."""
    link_layer: str
    """infiniband or ethernet."""
    transport: str
    """The transport that the validation requires, such as gpudirect-rdma."""
    profile: str | None = None
    """The system profile of the validation."""
    gpu_model: str | None = None
    """Text in the GPU's product name, from the pool's configuration."""
    resources: dict[str, str] = Field(default={})
    """Extended resources of a pod that uses a whole worker, without its GPUs."""
    host_paths: dict[str, str] = Field(default={})
    """Path on the worker, at which its pods mount it -> type of the hostPath, such as CharDevice."""
    taints: tuple[Taint, ...] = ()
    """Taints of the workers, which the pods tolerate."""
    runtime_class: str = ""
    """RuntimeClass of the pods; empty for none."""
    shm_size: str
    """Size of /dev/shm."""
    memory: str | None = None
    """Memory limit of a pod; absent for none."""
    env: dict[str, str] = Field(default={})
    """The NCCL settings of profile and configuration."""
    topology_file: str | None = None
    """The NCCL topology file that the validation used, by name; its content is not an output."""
    topology: tuple[str, ...] | None = None
    """The keys of the labels by which Nodes say where they are in the fabric, the farthest level first."""
    interfaces: tuple[tuple[str, ...], ...] | None = None
    """For each rail, in the order of PCI addresses, the names of its network interface: one where all workers
    agree. Absent unless they are known for all workers."""
    roce: tuple[str, ...] | None = None
    """Congestion control of the workers' RoCE rails (PFC, ECN), each state once. Absent where preflight does
    not check it."""
    without_nfs: tuple[str, ...] | None = None
    """Workers on which preflight found no NFS client."""


def launches(inventory: Inventory, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolLaunch]:
    """Every pool that has workers; `facts` of preflight by host. Raises as nccljob.resolve does."""
    cluster = inventory.cluster
    workers = {name: inventory.usable_of(name) for name in cluster.pools}
    return {name: _launch(cluster, name, hosts, facts) for name, hosts in workers.items() if hosts}


def _launch(
    cluster: Cluster, pool: str, workers: Sequence[Host], facts: Mapping[str, Mapping[str, Any]]
) -> PoolLaunch:
    job = nccljob.resolve(cluster, pool, [worker.name for worker in workers])
    configured, validation = cluster.pools[pool], cluster.validation_of(pool)
    found = {worker.name: facts.get(worker.name, {}) for worker in workers}
    given = {name: each.get("rails") for name, each in found.items()}
    rails = {name: tuple(hcas) for name, hcas in given.items() if isinstance(hcas, list)}
    # All workers of a pool have the same levels.
    levels = tuple(key for key, _ in workers[0].labels)
    return PoolLaunch(
        workers=job.nodes,
        gpus=configured.gpus,
        rails=configured.rails,
        # A worker with another number of rails was in quarantine at preflight.
        rail_hcas={name: hcas for name, hcas in rails.items() if len(hcas) == configured.rails} or None,
        machines=machines_of(job.nodes, facts),
        rate_gbps=configured.rate_gbps,
        link_layer=configured.link_layer,
        transport=job.transport,
        profile=validation.profile,
        gpu_model=configured.gpu_model,
        resources={**{name: str(n) for name, n in job.hca_resources.items()}, **job.extra_resources},
        host_paths=dict(job.host_paths),
        taints=job.taints,
        runtime_class=job.runtime_class,
        shm_size=job.shm_size,
        memory=job.memory,
        # An algorithm that only all_reduce has would fail the other collectives of a job.
        env={
            name: value
            for name, value in job.env.items()
            if not name.startswith("OMPI_") and name not in (*_OF_THE_VALIDATION, *job.all_reduce_env)
        },
        topology_file=validation.topology_file,
        topology=levels or None,
        interfaces=_interfaces([each.get("rail_interfaces") for each in found.values()]),
        roce=tuple(sorted({state for each in found.values() for state in each.get("roce", ())})) or None,
        without_nfs=tuple(name for name, each in found.items() if each.get("nfs_client") is False) or None,
    )


def machines_of(names: Iterable[str], hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Host name -> the digest of its machine-id, if it is known. `hosts`: facts by host name."""
    return {name: hosts[name]["machine"] for name in sorted(names) if "machine" in hosts.get(name, {})}


def _interfaces(found: Sequence[Sequence[str] | None]) -> tuple[tuple[str, ...], ...] | None:
    known = [names for names in found if names]
    if len(known) != len(found) or len({len(names) for names in known}) != 1:
        return None
    return tuple(tuple(sorted(set(names))) for names in zip(*known, strict=True))


Curve = tuple[tuple[int, float], ...]
"""(message size in bytes, busbw in GB/s), the smallest size first."""

FORMAT = 4
"""Version of the printed form, from 1.0 on. Raised when a field changes; former ones must then be read."""

DIGITS = 4  # decimals of an exported number


class PoolResult(OutputModel):
    """The result of one pool. Bandwidths are in GB/s (10^9 bytes); values that were not found are absent."""

    verdict: Literal["pass", "fail", "unknown"]
    """unknown: there is no evidence."""
    reasons: tuple[str, ...] = ()
    """The reasons why it is not a pass."""
    measured_at: AwareDatetime | None = None
    """Start of the measurement, in UTC."""
    judge: int | None = None
    """The version of the judge."""
    busbar_version: str | None = None
    """The busbar that judged it."""
    nodes_measured: tuple[str, ...] | None = None
    """The Nodes that were measured. Absent where nothing was."""
    stale: tuple[str, ...] | None = None
    """Changes since the measurement, such as `k3s v1.35.6+k3s1 -> v1.35.7+k3s1`, of a verdict that stays
    because the GPUs were held (validation.when_busy: keep), or in a targeted update. Absent for any other."""
    busbw_gbps: FiniteFloat | None = None
    """busbw of the first collective at its largest size: the smaller of out-of-place and in-place."""
    expected_gbps: FiniteFloat | None = None
    """Expected busbw: computed for the hardware, or configured."""
    fraction: FiniteFloat | None = None
    """Measured / expected."""
    transport: str = "unknown"
    """Transport that NCCL used between hosts, such as gpudirect-rdma, rdma, socket."""
    gdrdma_edges: int | None = None
    """Channel edges over the network that use GPUDirect RDMA."""
    network_edges: int | None = None
    """All channel edges over the network."""
    hosts_by_rails: dict[int, int] = Field(default={})
    """Number of network devices in use on a host -> number of such hosts."""
    curve: dict[str, Curve] = Field(default={})
    """Collective -> pairs of message size in bytes and busbw, the smallest size first."""
    nccl_version: str | None = None
    """NCCL's version as NCCL printed it."""
    plugin: str | None = None
    """The network plugin of NCCL."""
    simulated: str | None = None
    """The simulated parts of the measurement; absent on real hardware."""
    verdict_file: str | None = None
    """The whole verdict on the machine that ran Pulumi, relative to the project."""
    config_map: str | None = None
    """The whole verdict in the cluster: NAMESPACE/NAME, key verdict.json."""

    @property
    def not_passed(self) -> tuple[str, ...]:
        """The reasons why this is not a pass; empty only for a pass in every respect."""
        if self.verdict != "pass":
            return self.reasons or (f"the verdict is {self.verdict!r} and gives no reason",)
        if self.busbw_gbps is None:
            return (*self.reasons, "the verdict is a pass without a bandwidth")
        return ()


def summarize(
    verdict: Mapping[str, Any],
    *,
    verdict_file: str | None = None,
    config_map: str | None = None,
    record: Record | None = None,
) -> dict[str, Any]:
    """A PoolResult as JSON values, with `format`, from the JSON object of busbar.judge.nccl.verdict.

    A RECORD is included. Any mapping is accepted; fields that a verdict lacks are missing in the result too.
    Numbers have 4 decimals, those of a curve 6 digits. Raises ValidationError for an unknown verdict.
    """
    channels: Mapping[str, int] = verdict.get("channels") or {}
    network = {label: n for label, n in channels.items() if label.startswith(("NET/", "COLLNET/"))}
    consistent = (verdict.get("passed") is True) == (verdict.get("verdict") == "pass")
    found = {
        "verdict": verdict.get("verdict") if consistent else "unknown",
        "reasons": verdict.get("reasons") or (),
        "measured_at": record.measured_at if record else None,
        "nodes_measured": record.nodes if record and verdict.get("busbw_gbps") is not None else None,
        "judge": verdict.get("judge"),
        "busbar_version": verdict.get("busbar_version"),
        **{
            key: number(verdict.get(key), digits=DIGITS)
            for key in ("busbw_gbps", "expected_gbps", "fraction")
        },
        "transport": verdict.get("transport") or "unknown",
        "hosts_by_rails": Counter((verdict.get("rails_per_host") or {}).values()),
        "curve": {
            name: sorted(points)
            for name, result in (verdict.get("collectives") or {}).items()
            if (points := list(_points(result)))
        },
        **{key: verdict.get(key) or None for key in ("nccl_version", "plugin", "simulated")},
        "verdict_file": f"{record.folder}/{VERDICT}" if record else verdict_file,
        "config_map": config_map,
    }
    if network:
        found["gdrdma_edges"] = sum(n for label, n in network.items() if "/GDRDMA" in label)
        found["network_edges"] = sum(network.values())
    result = PoolResult.model_validate(found).model_dump(mode="json", exclude_none=True)
    about = {"record": record.model_dump(mode="json")} if record else {}
    return {"format": FORMAT, **result, **about}


def read_result(stdout: str | None) -> dict[str, Any]:
    """The PoolResult that `busbar nccl collect` printed, as JSON values; any other text is `unknown`."""
    printed = printed_object(stdout)
    problem = f"unsupported format {printed.get('format')!r}, supported: {FORMAT}"
    if printed.get("format") == FORMAT:
        try:
            return PoolResult.model_validate(printed).model_dump(mode="json", exclude_none=True)
        except ValidationError as error:
            problem = problems(error)
    reason = f"the output of `busbar nccl collect` cannot be read: {problem}. Fix: raise validation.run"
    return {"verdict": "unknown", "reasons": [reason]}


def previous_result(printed: str | None) -> dict[str, Any] | None:
    """What the collector PRINTED in a former run, with its record; None if that is neither pass nor fail."""
    return None if read_result(printed)["verdict"] == "unknown" else printed_object(printed)


def current_result(printed: str | None, settings: Settings, nodes: Sequence[str]) -> dict[str, Any]:
    """The result of a pool whose collector PRINTED it, with the Nodes that were measured.

    SETTINGS and NODES are those of the measurement that is wanted now. A result that stays because the GPUs
    were held, or that a targeted update (`pulumi up --target`) has left, lists how they differ from its own.
    """
    result, found = read_result(printed), printed_object(printed)
    former = (found.get("record") or {}).get("settings") or {}
    if found.get("kept") or former.get(JOB, settings[JOB]) != settings[JOB]:
        measured = result.get("nodes_measured") or ()
        return {**result, "stale": _stale(former, settings, measured, nodes)}
    if result.get("busbw_gbps") is not None:
        return {**result, "nodes_measured": list(nodes)}
    return result


def _stale(
    former: Settings, wanted: Settings, measured: Collection[str], nodes: Collection[str]
) -> list[str]:
    texts = changes(former, wanted)
    for text, names in (
        ("not measured", [node for node in nodes if node not in measured]),
        ("no longer in the pool", [node for node in measured if node not in nodes]),
    ):
        if names:
            texts[text] = f"{text}: {listed(names)}"
    # The job's name depends on all other settings, so it is reported only if none of these has changed.
    return [text for key, text in texts.items() if key != JOB] or list(texts.values())


def printed_object(text: str | None) -> dict[str, Any]:
    """The JSON object that a step printed; empty for any other text."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _points(result: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Message size and busbw of each row: the smaller of out-of-place and in-place, as in the headline."""
    for row in result.get("curve") or []:
        halves = [number((row.get(half) or {}).get("busbw_gbps")) for half in ("out_of_place", "in_place")]
        known = [busbw for busbw in halves if busbw is not None]
        if known:
            yield int(row["size_bytes"]), float(f"{min(known):g}")


class Node(OutputModel):
    """A host of the cluster."""

    name: str
    """Name of the host in the configuration, and of its Kubernetes Node if it has one."""
    role: Literal["lb", "server", "worker", "nfs"]
    """Role of the host in the cluster."""
    address: str
    """Address by which the other hosts reach it."""
    gpus: int
    """GPUs that preflight found."""
    rails: int
    """HCA ports that preflight found and chose for NCCL."""


class Details(OutputModel):
    """Values per host, pool and message size."""

    busbar_version: str | None = None
    """The busbar that wrote the outputs."""
    nodes: tuple[Node, ...]
    """All hosts, in the order of the configuration."""
    nccl: dict[str, PoolResult]
    """Pool -> its result; a pool that was not measured is absent."""
    pools: dict[str, PoolLaunch] = Field(default={})
    """Pool -> what a pod needs on its workers; a pool without workers is absent."""


def pack_details(nodes: list[Node], nccl: dict[str, PoolResult], pools: dict[str, PoolLaunch]) -> str:
    """The text of the output `details`."""
    details = Details(busbar_version=__version__, nodes=tuple(nodes), nccl=nccl, pools=pools)
    return json.dumps(details.model_dump_json(exclude_none=True))


def unpack_details(text: Any) -> dict[str, Any]:
    """The object that `Details` validates, from the text of the output. Raises ValueError."""
    try:
        return {**json.loads(json.loads(text))}
    except (TypeError, ValueError) as error:
        raise ValueError(f"details is not a JSON object in a JSON string: {error}") from None


def details_schema() -> dict[str, Any]:
    """The JSON Schema of the object in `details`."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Details"}
    return {**head, **tidy(Details.model_json_schema())}


CONTRACT_VERSION = 3
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""


MEASURED_ONLY = "this stack only measured its cluster, and has no hosts, endpoint and kubeconfig"


class ContractError(NoVerdict, ValueError):
    """The outputs are not those of a busbar stack, or have another contract version."""


class StackReference(Protocol):
    """The part of `pulumi.StackReference` that is used; busbar itself never imports pulumi."""

    def get_output_details(self, name: str) -> Awaitable[Any]:
        """The output as `value`, or as `secret_value` if it is a secret; the other one is None."""

    def require_output(self, key: str) -> Any:
        """The output as a pulumi.Output that keeps its secretness."""


class NfsExport(OutputModel):
    """The NFSv4 export that a worker mounts: `address`:`export`."""

    address: str
    export: str


class ClusterOutputs(Details):
    """A cluster as its stack exported it: the outputs, and what is in `details`.

    Gate on `nccl_passed` and on nothing else: a number alone says nothing about the transport behind it.
    Bandwidths are in GB/s (10^9 bytes). `versions` are those of the software that runs on K3s. `nfs_server`
    is the export that busbar created for the workers, if any. A stack that only measured a foreign cluster
    (`measured_only`) has no hosts, endpoint and kubeconfig.
    """

    contract_version: int
    cluster_name: str
    cluster_id: str | None = None
    """Identifies the cluster as long as it exists, whatever is renamed. Absent if `measured_only`."""
    api_endpoint: str | None = None
    k3s_version: str | None = None
    versions: dict[str, str]
    nccl_busbw_gbps: StrictFloat | None = None
    nccl_expected_gbps: StrictFloat | None = None
    nccl_fraction: StrictFloat | None = None
    nccl_passed: StrictBool
    nccl_reasons: tuple[str, ...]
    nfs_server: NfsExport | None = None
    kubeconfig: Any = Field(default=None, repr=False)
    """A secret pulumi.Output[str] from a stack reference; the value as it is from a dict."""

    @classmethod
    async def from_stack(
        cls, reference: StackReference, *, accept_measured_only: bool = False
    ) -> ClusterOutputs:
        """Read a `pulumi.StackReference`: `await ClusterOutputs.from_stack(ref)` inside `pulumi.run(main)`.

        The kubeconfig stays a secret Output. Raises ContractError as `from_dict` does, and for a stack that
        only measured, unless that is accepted: a provider without a kubeconfig would use another cluster.
        """
        outputs: dict[str, Any] = {}
        for key in NAMES:
            details = await reference.get_output_details(key)
            value = details.secret_value if details.value is None else details.value
            if value is not None:
                outputs[key] = value
        read = cls.from_dict(outputs)
        if read.measured_only:
            if not accept_measured_only:
                raise ContractError(f"{MEASURED_ONLY}. Fix: name a stack that created its cluster")
            return read
        return read.model_copy(update={"kubeconfig": reference.require_output("kubeconfig")})

    @classmethod
    def from_dict(cls, outputs: Mapping[str, Any]) -> ClusterOutputs:
        """Read outputs as `pulumi stack output --json` prints them. Raises ContractError."""
        check_version(outputs)
        missing = [key for key in NAMES if key not in outputs and key not in _OPTIONAL]
        if missing:
            raise ContractError(f"missing outputs: {', '.join(missing)}. Fix: update that stack to its end")
        try:
            return cls.model_validate({**outputs, **unpack_details(outputs["details"])})
        except ValidationError as error:
            raise ContractError(problems(error)) from None
        except ValueError as error:
            raise ContractError(str(error)) from None

    @property
    def identifier(self) -> str:
        """`cluster_identifier` of a Kubernetes provider: the id, else the name."""
        return self.cluster_id or f"busbar/{self.cluster_name}"

    @property
    def measured_only(self) -> bool:
        """True if the stack only measured a cluster, and so has no hosts, endpoint and kubeconfig."""
        return self.api_endpoint is None

    @property
    def refusal(self) -> str | None:
        """Why jobs that need the fabric should not run here, for terminal output; None where they may."""
        if self.nccl_passed:
            return None
        reasons = "".join(f"\n  - {reason}" for reason in self.nccl_reasons or ("no reason was given",))
        return (
            f"cluster {self.cluster_name} has not passed its NCCL validation (nccl_passed is false):{reasons}"
        )


_SCALARS = {
    name: field for name, field in ClusterOutputs.model_fields.items() if name not in Details.model_fields
}
# Outputs that are absent if their value was not measured or found: Pulumi drops None.
_OPTIONAL = {name for name, field in _SCALARS.items() if not field.is_required()}
NAMES = (*(name for name in _SCALARS if name != "kubeconfig"), "details")
"""The outputs except the kubeconfig, in the order of their export."""


def check_version(outputs: Mapping[str, Any]) -> None:
    """Raise ContractError, with the fix, where the outputs have another contract."""
    version = outputs.get("contract_version")
    if version == CONTRACT_VERSION:
        return
    if not isinstance(version, int | float):
        found = "missing" if version is None else repr(version)
        raise ContractError(
            f"contract_version is {found}: this is not a busbar stack, or its first `pulumi up` has not ended"
        )
    older = f"run `pulumi up` on that stack with a busbar that writes contract {CONTRACT_VERSION}"
    fix = older if version < CONTRACT_VERSION else f"use a busbar package that reads contract {version:g}"
    raise ContractError(
        f"unsupported contract_version {version:g} (supported: {CONTRACT_VERSION}). Fix: {fix}"
    )
