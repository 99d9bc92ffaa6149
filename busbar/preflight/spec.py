"""Input of preflight: the hosts, the login, and the requirements per kind of host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from packaging.version import Version
from pydantic import Field

from busbar import versions
from busbar.config import Cluster, K3s
from busbar.config.cluster import FlowControl
from busbar.config.files import read_checksums
from busbar.finding import Finding
from busbar.hosts import nfs, scripts
from busbar.hosts.inventory import Host, Inventory, Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.manifests import nccljob
from busbar.manifests.names import digest, short
from busbar.models import StrictModel
from busbar.preflight import unchangeable
from busbar.preflight.report import Report

# Kubernetes 1.35 made failCgroupV1 the kubelet's default.
CGROUP_V2_SINCE = Version("1.35")
SERVER_MIN_DISK_GB = 10
LB_MIN_DISK_GB = 1
SHARED = "hosts.virtual_ip.address"


class HostRequirements(StrictModel):
    """Requirements for a host; `gpus` and `rails` are 0 unless it is a worker."""

    min_disk_gb: int
    plan: str = ""
    """Digest of what is going to be installed on such hosts; if it changes, they are checked again first."""
    k3s_version: str = ""
    """The version to install; empty for a load balancer."""
    rotate: dict[str, int] = Field(default={})
    """The numbers of `k3s.rotate`; empty for a load balancer."""
    unchangeable: dict[str, str] = Field(default={})
    """Key -> configured value of those that must stay as they were when the cluster was made; of servers."""
    downloads: tuple[str, ...] = ()
    """Host names that it downloads K3s and image archives from; a proxy resolves them itself."""
    proxy: str = ""
    """URL of the proxy that it must reach."""
    networks: dict[str, str] = Field(default={})
    """Setting -> network of the pods or services; on hosts with a shared address, SHARED -> that address."""
    flannel: bool = False
    """Whether flannel takes the interface that carries the node's address."""
    interface: str = ""
    """The network interface for hosts.virtual_ip, on the hosts that share it."""
    cgroup_v2: bool = False
    gpus: int = 0
    gpu_model: str | None = None
    driver_on_host: bool = True
    """Whether the host has the driver. If the GPU Operator installs it, GPUs are counted on the PCI bus."""
    rails: int = 0
    rate_gbps: float = 0
    link_layer: str = "infiniband"
    ignore_hcas: tuple[str, ...] = ()
    transport: str = "socket"
    offered: bool = False
    """Whether the SR-IOV device plugin must offer the rails, which it selects by their PCI addresses."""
    flow_control: FlowControl = "ignore"
    """The level of a finding about a RoCE rail without PFC and ECN; on other fabrics always `ignore`."""
    traffic_class: int = 0
    service_level: int = 0
    """Traffic class and service level that NCCL gives its RoCE packets."""
    pkey_index: int = 0
    """The index of the P_Key that NCCL takes on InfiniBand."""
    gid_index: int | None = None
    """The index of the GID on RoCE; None: NCCL chooses it."""


class NfsRequirements(StrictModel):
    """The NFS server `host` at `address`, and what its folder must be; `plan` as in HostRequirements."""

    host: str
    address: str
    folder: str
    min_free_gb: int
    squash: Literal["all", "root", "none"]
    allow_system_disk: bool
    plan: str = ""


class Spec(StrictModel):
    """The stdin of `busbar preflight`; `requirements` is keyed by role, or `worker/<pool>`."""

    login: Login = Login()
    hosts: tuple[Host, ...]
    requirements: dict[str, HostRequirements]
    install_id: str | None = None
    """Identifies the cluster on its hosts: "" if it has none yet; None: unknown."""
    nfs: NfsRequirements | None = None
    quarantined: tuple[str, ...] = ()
    """Workers whose hardware may be broken: findings about it are warnings."""
    api_endpoint: str | None = None
    """The address of an endpoint of the site, in place of load balancers."""

    def data(self) -> dict[str, Any]:
        """The spec as plain data, ready for JSON, without what is known later: `login` and `install_id`."""
        return self.model_dump(mode="json", exclude={"login", "install_id"})

    def role_of(self, host: Host) -> str:
        """The role of a host, as the configuration names it."""
        return host.role

    def requirements_of(self, host: Host) -> HostRequirements:
        """The requirements for a host."""
        return self.requirements[requirements_key(host.role, host.pool)]

    def fingerprint(self, host: Host) -> str:
        """A digest that changes with the host, the way to it, its requirements, or the preflight script."""
        requirements = self.requirements_of(host)
        bastion = self.login.bastion
        way = [self.login.key_digest, self.login.uses_agent, bastion.model_dump() if bastion else None]
        content = [host.data(), way, requirements.model_dump(), scripts.digest("preflight")]
        if self.nfs and host.name == self.nfs.host:
            content.append(self.nfs.model_dump())
        if self.nfs and host.role == "worker":
            content.append(self.nfs.address)
        if host.name in self.quarantined:
            content.append("quarantine")
        return short(digest(content))

    def values(self, host: Host) -> dict[str, str]:
        """The values of `host/preflight.sh` for this host."""
        values = {"NODE_NAME": host.name, "NODE_ADDRESS": host.address, "ROLE": host.role}
        if names := self.requirements_of(host).downloads:
            values["NAMES"] = " ".join(names)
        if proxy := urlsplit(self.requirements_of(host).proxy).netloc:
            name, _, port = proxy.rpartition(":")
            values["PROXY"] = f"{name.strip('[]')}/{port}"
        if shared := self.requirements_of(host).networks.get(SHARED):
            values["SHARED_ADDRESS"] = shared
        if self.nfs and host.name == self.nfs.host:
            values["NFS_FOLDER"] = self.nfs.folder
        if self.nfs and host.role == "worker":
            values["NFS_SERVER"] = self.nfs.address
        return values


def requirements_key(role: str, pool: str | None) -> str:
    """The key into `Spec.requirements`."""
    return f"{role}/{pool}" if pool else role


def spec_of(cluster: Cluster, *, login: Login | None = None, project: Path | None = None) -> Spec:
    """The spec without `install_id`.

    `project` is the folder that `k3s.checksums_file` starts from; without it the file is ignored.
    """
    inventory = Inventory.of(cluster)
    k3s = [cluster.k3s.model_dump(mode="json"), read_checksums(cluster.k3s, project) if project else {}]
    front = [
        inventory.api_address,
        [host.address for host in inventory.load_balancers],
        [[host.address, host.name] for host in inventory.servers],
    ]
    network, gpu = cluster.network_operator, cluster.gpu_operator
    driver = gpu.values.get("driver")
    shared = cluster.hosts.virtual_ip
    of_servers = {SHARED: shared.address} if shared and not inventory.load_balancers else {}
    requirements = {
        "lb": HostRequirements(
            min_disk_gb=LB_MIN_DISK_GB,
            plan=_plan("haproxy", front),
            interface=shared.interface if shared else "",
            networks={SHARED: shared.address} if shared else {},
        ),
        **({"nfs": HostRequirements(min_disk_gb=LB_MIN_DISK_GB)} if cluster.hosts.nfs_server else {}),
        "server": HostRequirements(
            min_disk_gb=SERVER_MIN_DISK_GB,
            plan=_plan("k3s-server", k3s, front),
            unchangeable=unchangeable.values(cluster.k3s),
            interface=shared.interface if shared and of_servers else "",
            **_node(cluster.k3s, "server", of_servers),
        ),
    }
    for name, pool in cluster.pools.items():
        requirements[requirements_key("worker", name)] = HostRequirements(
            min_disk_gb=pool.min_disk_gb,
            plan=_plan(
                "k3s-agent", k3s, inventory.api_address, pool.model_dump(mode="json", exclude={"validation"})
            ),
            **_node(cluster.k3s, "worker"),
            **pool.required,
            driver_on_host=not (gpu.enabled and isinstance(driver, dict) and driver.get("enabled") is True),
            transport=cluster.validation_of(name).required_transport,
            offered=network.enabled and "pciAddresses" not in network.selectors,
            **_fabric(cluster, name),
        )
    if proxy := cluster.http_proxy:
        through = {"proxy": proxy.url, "downloads": ()}
        requirements = {key: each.model_copy(update=through) for key, each in requirements.items()}
    export = nfs.export_of(inventory)
    return Spec(
        login=login or Login(),
        hosts=inventory.hosts,
        requirements=requirements,
        nfs=nfs_requirements(export, inventory.workers) if export else None,
        quarantined=tuple(inventory.quarantine),
        api_endpoint=cluster.api_endpoint.address if cluster.api_endpoint else None,
    )


def _node(
    k3s: K3s, role: Literal["server", "worker"], shared: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Requirements of K3s for a node and its network."""
    number = versions.release(k3s.version)
    urls = [k3s.base_url, *(image.url for image in k3s.images if role in image.roles)]
    arguments = k3s.server_args if role == "server" else k3s.agent_args
    return {
        "k3s_version": k3s.version,
        "rotate": k3s.rotate.model_dump(),
        "cgroup_v2": number is None or number >= CGROUP_V2_SINCE,
        "downloads": tuple(sorted({urlsplit(url).hostname or "" for url in urls})),
        "networks": {"k3s.cluster_cidr": k3s.cluster_cidr, "k3s.service_cidr": k3s.service_cidr, **shared},
        "flannel": k3s.flannel_backend != "none" and not {"node-ip", "flannel-iface"} & arguments.keys(),
    }


def nfs_requirements(export: nfs.Export, clients: Sequence[Host]) -> NfsRequirements:
    """The requirements for an export to these hosts."""
    config = export.config
    return NfsRequirements(
        host=export.host.name,
        address=export.host.address,
        folder=export.folder,
        min_free_gb=config.min_free_gb,
        squash=config.squash,
        allow_system_disk=config.allow_system_disk,
        plan=_plan("nfs-server", nfs.exports(export, clients), nfs.CONFIG),
    )


def _fabric(cluster: Cluster, pool: str) -> dict[str, Any]:
    """Requirements that the settings of NCCL make for the rails; empty where NCCL does not use them."""
    configured = cluster.pools[pool]
    if cluster.validation_of(pool).required_transport == "socket":
        return {}
    env = nccljob.resolve(cluster, pool, []).env
    indexes = table_indexes(configured.link_layer, env)
    if configured.link_layer != "ethernet":
        return indexes
    return {
        **indexes,
        "flow_control": configured.flow_control,
        "traffic_class": _nccl_number(env.get("NCCL_IB_TC")),
        "service_level": _nccl_number(env.get("NCCL_IB_SL")),
    }


def table_indexes(link_layer: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The entries of a port's tables that NCCL takes with these variables, as requirements."""
    gid = env.get("NCCL_IB_GID_INDEX", "")
    if link_layer != "ethernet":
        return {"pkey_index": _nccl_number(env.get("NCCL_IB_PKEY"))}
    return {"gid_index": int(gid) if gid.isdigit() else None}


def _nccl_number(text: str | None) -> int:
    """NCCL's reading of NCCL_IB_TC, _SL and _PKEY: 0 if unset, -1 or not a number (src/misc/param.cc)."""
    try:
        return max(int(text or "0", 0), 0)
    except ValueError:
        return 0


def _plan(script: str, *inputs: object) -> str:
    return short(digest([scripts.digest(script), *inputs]))


# nvidia-smi may take 2 x 60 s (host/preflight-hardware.sh), and 6 x 20 s more (host/preflight-health.sh).
SCRIPT_SECONDS = 255


@dataclass(frozen=True)
class Answer:
    """A host's report, and the local time (epoch, seconds) before and after the script ran."""

    report: Report
    clock: tuple[float, float]


async def query(
    hosts: Hosts, host: Host, values: Mapping[str, str], *, deliver: bool = False, also: str = ""
) -> Answer | Finding:
    """Run `host/preflight.sh` with `values` on one host.

    `deliver`: the host keeps the script that its Command runs later. `also`: a script that reports more.
    """
    payload = scripts.delivery(host.role) if deliver else {}
    if also:
        payload["also"] = also
    try:
        facts = await hosts.run(host, "preflight", values, payload, seconds=SCRIPT_SECONDS)
        clock = hosts.connected[host.name], time.time()
        return Answer(Report.model_validate(facts), clock)
    except (ScriptError, UnreachableError) as error:
        return error.finding
    except ValueError as error:  # pydantic's ValidationError is one
        what = f"preflight printed another report than expected: {str(error).splitlines()[0]}"
        return Finding((host.name,), what, "open an issue in busbar's repository with this line")
