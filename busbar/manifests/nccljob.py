"""One NCCL measurement, resolved from configuration and profile into plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbar.config import Cluster
from busbar.config.operators import HCA_RESOURCE
from busbar.config.pools import Pool, Taint
from busbar.config.validation import Validation
from busbar.judge.nccl.expected.profiles import Profile
from busbar.manifests.names import sha256, short

TOPOLOGY_FOLDER = "/etc/nccl-topology"

# For every run; overridden by profile, transport and configuration, in this order.
BASE_ENV: Mapping[str, str] = {
    # The verdict needs these lines as evidence; without them it is never a pass. INIT and NET show the
    # channels, ENV the topology file; GRAPH would add the whole PCI tree of every rank. INFO stays on in the
    # measured run itself: its lines appear once, before the table, and describe the measured communicator.
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    # Connect all channels at init, as before NCCL 2.22: the evidence is then printed before the table.
    "NCCL_RUNTIME_CONNECT": "0",
    # NCCL's bootstrap is TCP also where the data is RDMA; a pod's cluster interface is always eth0.
    "NCCL_SOCKET_IFNAME": "eth0",
    # MPI only starts the ranks and compares their results: TCP and shared memory are enough, and a second
    # RDMA stack (UCX, HCOLL) cannot disturb the measurement.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^openib,uct,usnic,ofi",
    # Copying from process to process needs ptrace, which a pod does not have: Open MPI 4 would warn.
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_coll_hcoll_enable": "0",
}
TRANSPORT_ENV: Mapping[str, Mapping[str, str]] = {
    "socket": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
}
# NCCL_ALGO: only all_reduce has algorithms besides the ring; other collectives fail with these set.
ALGORITHM_ENV: Mapping[str, Mapping[str, str]] = {
    "ring": {"NCCL_ALGO": "RING"},
    "tree": {"NCCL_ALGO": "TREE"},
    "nvls": {"NCCL_ALGO": "NVLS,NVLSTREE"},
    "sharp": {"NCCL_ALGO": "COLLNETCHAIN,COLLNETDIRECT", "NCCL_COLLNET_ENABLE": "1"},
}
DEFAULT_MPI_ARGS = ("--bind-to", "none", "--map-by", "slot")


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
    def path(self) -> str:
        """Where the ranks find it."""
        return f"{TOPOLOGY_FOLDER}/{self.name}"

    @property
    def manifest(self) -> dict[str, Any]:
        """The ConfigMap, without its namespace."""
        metadata = {"name": self.config_map}
        data = {self.name: self.text}
        return {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": data
        }  # fmt: skip

    @classmethod
    def read(cls, pool: str, path: Path) -> TopologyFile:
        """The file at `path`. Raises OSError."""
        return cls(pool, path.name, path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Stage:
    """The groups of a stage of `localise`, which a job of a diagnosis runs instead of one measurement.

    `groups`: their names, by round. `parallel`: how many at the same time. `hcas`: by rail, where groups use
    one.
    """

    groups: tuple[str, ...]
    parallel: int
    group_seconds: int
    hcas: tuple[str, ...] = ()


@dataclass(frozen=True)
class NcclJob:
    """One measurement over the nodes of a pool. Sizes in bytes; quantities as Kubernetes writes them."""

    pool: str
    nodes: tuple[str, ...]
    namespace: str
    image: str
    collectives: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    step_factor: int
    iterations: int
    warmup: int
    deadline_seconds: int
    transport: str
    algorithm: str
    gpus_per_node: int
    slots_per_worker: int
    shm_size: str
    memory: str | None
    runtime_class: str
    hca_resources: Mapping[str, int] = field(default_factory=dict)
    extra_resources: Mapping[str, str] = field(default_factory=dict)
    host_paths: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    all_reduce_env: tuple[str, ...] = ()
    mpi_args: tuple[str, ...] = DEFAULT_MPI_ARGS
    topology: TopologyFile | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    run: int = 1
    stage: Stage | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""
        return len(self.nodes) * self.slots_per_worker


def resolve(
    cluster: Cluster,
    pool_name: str,
    nodes: Sequence[str],
    *,
    topology: TopologyFile | None = None,
) -> NcclJob:
    """The measurement of one pool of a cluster; see `measurement`. Raises KeyError for an unknown pool."""
    return measurement(
        pool_name,
        nodes,
        hardware=cluster.pools[pool_name],
        validation=cluster.validation_of(pool_name),
        hca_resources=hca_resources(cluster, pool_name),
        versions=versions_of(cluster),
        topology=topology,
    )


def hca_resources(cluster: Cluster, pool_name: str) -> Mapping[str, int] | None:
    """The HCA resource of a worker: one unit per rail from our Network Operator. None where another tool
    offers HCAs and its resource is not configured."""
    operator, rails = cluster.network_operator, cluster.pools[pool_name].rails
    if operator.enabled:
        return {operator.resource: rails}
    if "resource" not in operator.model_fields_set:
        return None
    needs_none = cluster.validation_of(pool_name).required_transport == "socket"
    return {} if needs_none else {operator.resource: rails}


def versions_of(cluster: Cluster) -> dict[str, str]:
    """The versions that a measurement is valid for; empty for what another tool has installed."""
    gpu, network = cluster.gpu_operator, cluster.network_operator
    return {
        "k3s": cluster.k3s.version,
        "gpu-operator": gpu.version if gpu.enabled else "",
        "network-operator": network.version if network.enabled else "",
    }


def measurement(
    pool_name: str,
    nodes: Sequence[str],
    *,
    hardware: Pool,
    validation: Validation,
    hca_resources: Mapping[str, int] | None = None,
    versions: Mapping[str, str] | None = None,
    topology: TopologyFile | None = None,
) -> NcclJob:
    """The measurement of some nodes: from the validation, else its profile, else the defaults.

    `hca_resources`: extended resources of a worker pod; None: those of the profile, else one
    nvidia.com/hostdev per rail. With other `versions` it is measured again. `topology` is the file of
    `validation.topology_file`, read by the caller. Raises profiles.UnknownProfileError.
    """
    profile = validation.system
    transport = validation.required_transport
    algorithm = validation.chosen("algorithm")
    env, all_reduce_env = _env(validation, profile, transport, algorithm, topology)
    return NcclJob(
        pool=pool_name,
        nodes=tuple(nodes),
        namespace=validation.namespace,
        image=validation.image,
        collectives=tuple(validation.collectives),
        min_bytes=validation.chosen("min_bytes"),
        max_bytes=validation.chosen("max_bytes"),
        step_factor=validation.step_factor,
        iterations=validation.iterations,
        warmup=validation.warmup,
        deadline_seconds=validation.deadline_seconds,
        transport=transport,
        algorithm=algorithm,
        gpus_per_node=hardware.gpus,
        slots_per_worker=validation.slots_per_worker or hardware.gpus,
        shm_size=validation.chosen("shm_size"),
        memory=validation.chosen("memory"),
        runtime_class=validation.chosen("runtime_class"),
        hca_resources=_hcas(hardware, profile, transport) if hca_resources is None else hca_resources,
        extra_resources=dict(profile.extra_resources) if profile else {},
        host_paths={path.path: path.type for path in profile.host_paths} if profile else {},
        taints=tuple(hardware.taints),
        env=env,
        all_reduce_env=all_reduce_env,
        mpi_args=_long_options(profile.mpi_args) if profile and profile.mpi_args else DEFAULT_MPI_ARGS,
        topology=topology,
        versions=dict(versions or {}),
        run=validation.run,
    )


def _env(
    validation: Validation,
    profile: Profile | None,
    transport: str,
    algorithm: str,
    topology: TopologyFile | None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The ranks' environment, and the names in it that only all_reduce may see."""
    env = dict(BASE_ENV)
    env |= profile.env if profile else {}
    env |= TRANSPORT_ENV.get(transport, {})
    if "algorithm" in validation.model_fields_set:
        env.pop("NCCL_ALGO", None)
        env |= ALGORITHM_ENV.get(algorithm, {})
    if algorithm == "sharp":
        # Logs the algorithm of each call: the only proof that SHARP was used and not the ring.
        env["NCCL_DEBUG_SUBSYS"] += ",TUNING"
    if validation.hcas:
        # "=" matches the whole name: mlx5_1 alone would also match mlx5_10 and mlx5_11.
        env["NCCL_IB_HCA"] = "=" + ",".join(validation.hcas)
    env |= validation.env
    if topology:
        env["NCCL_TOPO_FILE"] = topology.path
    only_all_reduce = ("NCCL_ALGO",) if "NCCL_ALGO" in env and algorithm not in ("ring", "auto") else ()
    return env, only_all_reduce


def _hcas(hardware: Pool, profile: Profile | None, transport: str) -> dict[str, int]:
    """What a tool that is not known here offers."""
    if profile and profile.hca_resource:
        return {profile.hca_resource: profile.hca_count} if profile.hca_count else {}
    return {} if transport == "socket" else {HCA_RESOURCE: hardware.rails}


def _long_options(args: Sequence[str]) -> tuple[str, ...]:
    """`-bind-to` as `--bind-to`: Open MPI 4 takes both forms, 5 warns about the first."""
    return tuple(
        f"-{arg}" if arg.startswith("-") and not arg.startswith("--") and len(arg) > 2 else arg
        for arg in args
    )
