"""An NCCL measurement as an MPIJob, resolved into plain values, with its topology file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from busbar.config import Cluster
from busbar.config.cluster import HCA_RESOURCE, Gpus, Taint, Validation
from busbar.judge.nccl.expected.profiles import Profile
from busbar.manifests.names import digest, sha256, short
from busbar.manifests.ncclrun import NcclRun, nccl_run
from busbar.names import VALIDATION_NAMESPACE

TOPOLOGY_FOLDER = "/etc/nccl-topology"


@dataclass(frozen=True)
class TopologyFile:
    """An NCCL topology file that is mounted into the workers of a pool."""

    pool: str
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Of its content."""
        return sha256(self.text)

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap that carries it; it depends on the content."""
        return f"nccl-topology-{self.pool}-{short(self.sha256)}"

    @property
    def manifest(self) -> dict[str, Any]:
        """The ConfigMap, without its namespace."""
        data = {"metadata": {"name": self.config_map}, "data": {self.name: self.text}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "immutable": True, **data}

    @classmethod
    def read(cls, pool: str, path: Path) -> TopologyFile:
        """The file at `path`. Raises OSError."""
        return cls(pool, path.name, path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Stage:
    """The groups of a stage of `localise`, which a job of a diagnosis runs instead of one measurement.

    `groups`: their names, by round. `hcas`: by rail, where groups use one.
    """

    groups: tuple[str, ...]
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NcclJob(NcclRun):
    """The run as an MPIJob. Quantities as Kubernetes writes them."""

    namespace: str
    image: str
    shm_size: str
    memory: str | None
    runtime_class: str
    hca_resources: Mapping[str, int]
    extra_resources: Mapping[str, str]
    taints: tuple[Taint, ...]
    topology: TopologyFile | None
    versions: Mapping[str, str]
    stage: Stage | None = None

    @property
    def request(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"taints": [taint.model_dump() for taint in self.taints]}
        if self.topology:
            parts["topology"] = {"name": self.topology.name, "sha256": self.topology.sha256}
        if self.stage:
            parts["stage"] = asdict(self.stage)
        return {**super().request, **parts, "locks_memory": self.locks_memory}

    @property
    def locks_memory(self) -> bool:
        """Whether the workers register memory with an HCA."""
        return self.transport != "socket"


def resolve(
    cluster: Cluster,
    pool_name: str,
    nodes: Sequence[str],
    *,
    validation: Validation | None = None,
    topology: TopologyFile | None = None,
) -> NcclJob:
    """The measurement of a pool, with its own or another `validation` (`nccl_job`). Raises KeyError."""
    pool = cluster.pools[pool_name]
    return nccl_job(
        pool_name,
        nodes,
        pool,
        validation or cluster.validation_of(pool_name),
        taints=pool.taints,
        hca_resources=hca_resources(cluster, pool_name),
        versions=versions_of(cluster),
        topology=topology,
    )


def hca_resources(cluster: Cluster, pool_name: str) -> Mapping[str, int] | None:
    """The HCA resource of a worker: one unit per rail from our Network Operator. None where another tool
    offers HCAs and its resource is not configured."""
    operator, rails = cluster.network_operator, cluster.pools[pool_name].rails
    if not operator.enabled and "resource" not in operator.model_fields_set:
        return None
    needs_none = cluster.validation_of(pool_name).required_transport == "socket"
    return {} if needs_none and not operator.enabled else {operator.resource: rails}


def versions_of(cluster: Cluster) -> dict[str, str]:
    """The versions that a measurement is valid for, empty for what another tool has installed.

    With digests of the values that are set of the driver, of what it loads, and of the chosen HCAs.
    """
    gpu, network = cluster.gpu_operator, cluster.network_operator
    given = {key: gpu.values.get(key) for key in ("driver", "gdrcopy", "mig") if gpu.enabled}
    if isinstance(driver := given.get("driver"), dict):
        given["driver"] = {key: driver[key] for key in driver if key not in ("env", "upgradePolicy")}
    given["network-operator selectors"] = network.selectors if network.enabled else None
    return {
        "k3s": cluster.k3s.version,
        "gpu-operator": gpu.version if gpu.enabled else "",
        "network-operator": network.version if network.enabled else "",
        **{key: short(digest(value)) for key, value in given.items() if value},
    }


def nccl_job(
    pool: str,
    nodes: Sequence[str],
    hardware: Gpus,
    validation: Validation,
    *,
    taints: Sequence[Taint] = (),
    hca_resources: Mapping[str, int] | None = None,
    versions: Mapping[str, str] | None = None,
    topology: TopologyFile | None = None,
    namespace: str = VALIDATION_NAMESPACE,
) -> NcclJob:
    """The measurement of some nodes as an MPIJob; see `nccl_run`.

    `hca_resources`: extended resources of a worker pod; None: those of the profile, else one
    nvidia.com/hostdev per rail. With other `versions` it is measured again. `topology` is the file of
    `validation.topology_file`, read by the caller.
    """
    run = nccl_run(pool, nodes, hardware, validation)
    profile = validation.system
    of_topology = {"NCCL_TOPO_FILE": f"{TOPOLOGY_FOLDER}/{topology.name}"} if topology else {}
    return NcclJob(
        **{**vars(run), "env": {**run.env, **of_topology}},
        namespace=namespace,
        image=validation.image,
        shm_size=validation.chosen("shm_size"),
        memory=validation.chosen("memory"),
        runtime_class=validation.chosen("runtime_class"),
        hca_resources=_hcas(run, profile) if hca_resources is None else hca_resources,
        extra_resources=dict(profile.extra_resources) if profile else {},
        taints=tuple(taints),
        topology=topology,
        versions=dict(versions or {}),
    )


def _hcas(run: NcclRun, profile: Profile | None) -> dict[str, int]:
    """What a tool that is not known here offers."""
    if profile and profile.hca_resource:
        return {profile.hca_resource: profile.hca_count} if profile.hca_count else {}
    return {HCA_RESOURCE: run.rails} if run.rails and run.transport != "socket" else {}
