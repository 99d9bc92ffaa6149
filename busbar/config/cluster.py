"""`busbar:cluster`: every key of a stack file.

The sections are in the order of Pulumi.h100.example.yaml, as far as one does not need another: login, hosts,
measurement, pools, network, K3s, operators. `Cluster` at the end has all of them.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from busbar import versions
from busbar.config.findings import did_you_mean
from busbar.config.types import (
    Address,
    ArchiveUrl,
    BucketFolder,
    BucketName,
    BucketRegion,
    Bytes,
    ChartName,
    ChartVersion,
    Cidr,
    CronSchedule,
    DnsLabel,
    Endpoint,
    EnvName,
    ExportedFolder,
    Float,
    HcaName,
    HcaPattern,
    HostKey,
    Image,
    ImageFolder,
    Int,
    InterfaceName,
    IpAddress,
    JsonObject,
    K3sVersion,
    LabelKey,
    LabelValue,
    Matching,
    NodeLabelKey,
    NonEmpty,
    Port,
    ProxyUrl,
    Quantity,
    ResourceName,
    RuntimeClass,
    Seconds,
    Sha256,
    Text,
    Unproxied,
    Url,
    UserName,
    invalid,
    ip_of,
    is_local_chart,
    repository_of,
)
from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.profiles import Algorithm, Profile, Transport
from busbar.models import ConfigModel

if TYPE_CHECKING:
    from busbar.judge.nccl.expected.expectation import Expectation


class Bastion(ConfigModel):
    """A jump host in front of all others; the same key or agent is used for it."""

    address: Address
    """IP address or name of the jump host."""
    user: UserName = "root"
    """Login on the jump host; sudo is not needed there."""
    port: Port = 22
    """SSH port of the jump host."""
    api_proxy_url: Url | None = None
    """HTTP proxy to the Kubernetes API (proxy-url of the kubeconfig), where this machine cannot reach the
    load balancer directly, such as http://127.0.0.1:3128."""
    host_key: HostKey
    """The jump host's ed25519 host key: `ssh-ed25519 AAAA...`."""


class Ssh(ConfigModel):
    """The login for all hosts; a host may override user and port.

    The key comes from exactly one source: `key_file`, the ssh-agent, or the secret `busbar:sshPrivateKey`.
    """

    user: UserName = "root"
    """Login on the hosts; a user other than root needs passwordless sudo."""
    port: Port = 22
    """SSH port of the hosts."""
    key_file: NonEmpty | None = None
    """File with the private key, relative to the project folder; `~` is your home."""
    agent: bool = False
    """Use the ssh-agent at SSH_AUTH_SOCK: no key is stored in the Pulumi state."""
    bastion: Bastion | None = None
    """Jump host in front of all hosts."""


class HostConfig(ConfigModel):
    """One machine that is reachable over SSH."""

    name: DnsLabel
    """Name of the host; for servers and workers also the name of the node."""
    address: Address
    """IP address or host name, for SSH and for the cluster's traffic."""
    host_key: HostKey
    """The host's ed25519 host key: `ssh-keyscan -t ed25519 ADDRESS`."""
    user: UserName | None = None
    """Login on this host; by default ssh.user."""
    port: Port | None = None
    """SSH port of this host; by default ssh.port."""


Place = Annotated[LabelValue, Field(min_length=1)]

# Keys of Topograph 1.0 (NVIDIA/topograph), which Kueue's and KAI's examples read; Kubernetes has none of its
# own (KEP-4962 was closed). The farthest level comes first.
LABELS: Mapping[str, str] = {
    "block": "fabric.topograph.run/tier-1",
    "rail_group": "fabric.topograph.run/tier-0",
    "nvlink_domain": "accelerator.topograph.run/domain",
}
# Hosts with the same place share switches; in an NVLink domain they need none.
SWITCHES = ("block", "rail_group")


class Topology(ConfigModel):
    """Names of the site's own; all workers of a pool have the same levels, or none."""

    rail_group: Place | None = None
    """The leaf switches that its rails end at: hosts with the same ones are one hop apart on every rail (a
    scalable unit). In a fabric without rails: the leaf."""
    block: Place | None = None
    """The rail groups below the same spine switches."""
    nvlink_domain: Place | None = None
    """The hosts whose GPUs share NVLink, such as the rack of a GB200 NVL72."""

    def labels(self) -> dict[str, str]:
        """The labels of the Node, the farthest level first."""
        values = {key: getattr(self, level) for level, key in LABELS.items()}
        return {key: value for key, value in values.items() if value is not None}


Reason = Annotated[NonEmpty, Field(max_length=200)]


class Worker(HostConfig):
    """A machine with GPUs and HCAs."""

    pool: DnsLabel | None = None
    """Name of its pool; optional with a single pool."""
    topology: Topology = Topology()
    """Where it is in the fabric, for schedulers."""
    quarantine: Reason | None = None
    """Why no new job may start on it (a taint busbar/quarantine; in Slurm a drain). It is left out of
    measurements, waits for GPUs and the pools of the outputs. To end it, delete the line."""


class VirtualIp(ConfigModel):
    """The address that two load balancers, or without any the servers, share by VRRP (keepalived)."""

    address: IpAddress
    """The shared address, at which the Kubernetes API is reached."""
    interface: InterfaceName
    """Network interface of these hosts that carries it."""
    router_id: Annotated[Int, Field(ge=1, le=255)] = 51
    """VRRP router id; must be unique on the network segment."""


class ApiEndpoint(ConfigModel):
    """An endpoint of the site's own (an appliance, kube-vip, DNS), in place of load balancers."""

    address: Address
    """IP address or host name. It passes TCP port 6443 on to port 6443 of the servers, without ending TLS."""


class HostsFrom(ConfigModel):
    """A list of hosts that something else writes: a file, or the output of another stack."""

    file: NonEmpty | None = None
    """JSON file with the list, relative to the project folder."""
    stack: NonEmpty | None = None
    """Stack that exports the list, as organization/project/stack."""
    output: NonEmpty = "hosts"
    """The output of that stack with the list."""
    allow_removal: bool = False
    """Drain and remove workers that are no longer in the list; without it, the update fails."""
    quarantine: dict[DnsLabel, Reason] = Field(default={})
    """Worker -> why no new job may start on it, as hosts.workers[].quarantine."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.stack is None):
            raise invalid("is not one source", "give either file or stack")
        return self

    @property
    def source(self) -> str:
        """Where the list is, as messages name it."""
        output = "" if self.output == "hosts" else f" (output {self.output})"
        return self.file or f"stack {self.stack}{output}"


def has_list(data: Any) -> bool:
    """Return whether a configuration takes its hosts from a list elsewhere."""
    return isinstance(data, Mapping) and "hosts_from" in data


def _odd(servers: list[HostConfig]) -> list[HostConfig]:
    if (count := len(servers)) % 2 == 0:
        raise invalid(
            f"got {count}, expected an odd number: with {count - 1} etcd survives as many failures",
            "remove one or add one",
        )
    return servers


def _required_beside_list(schema: dict[str, Any]) -> None:
    # With hosts_from, `hosts` has the address that they share, and no lists.
    schema.pop("required")


class Hosts(ConfigModel):
    """All hosts of the cluster by role."""

    model_config = ConfigDict(json_schema_extra=_required_beside_list)

    load_balancers: list[HostConfig] = Field(default=[], max_length=2)
    """Hosts for HAProxy: 1, or 2 that share hosts.virtual_ip. None with api_endpoint, or if the servers share
    hosts.virtual_ip."""
    virtual_ip: VirtualIp | None = None
    """Required with two load balancers, not allowed with one. Without load balancers three servers or more
    share it."""
    servers: Annotated[list[HostConfig], Field(min_length=1), AfterValidator(_odd)]
    """K3s servers with embedded etcd: an odd number, because etcd needs a majority."""
    workers: list[Worker] = Field(min_length=1)
    """Hosts with GPUs and HCAs."""
    nfs_server: HostConfig | None = None
    """A host that is only the NFS server of the section nfs_server."""


class NfsServer(ConfigModel):
    """One folder, exported to the workers and to nobody else. busbar never deletes its data."""

    host: DnsLabel | None = None
    """Name of the load balancer or server that exports the folder; by default the host of
    hosts.nfs_server."""
    folder: ExportedFolder
    """Folder to export; created if missing. Its data stay when the stack is destroyed."""
    min_free_gb: Annotated[Int, Field(ge=1)] = 100
    """Free space in GB (10^9 bytes) that the folder's disk must have at first."""
    squash: Literal["all", "root", "none"] = "all"
    """Which users of the workers are nobody in the folder (exports(5)). all: every one, so that pods of all
    users share files. root: root, whose pods then need folders that anyone may write. none: whoever is root
    in a pod is root in the folder."""
    allow_system_disk: bool = False
    """Allow a folder on the disk of the operating system: jobs can fill it, and a worker that forges file
    handles reaches other files there (exports(5), subtree_check)."""


Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast"]
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


ProfileName = Annotated[
    NonEmpty,
    AfterValidator(_known_profile),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(profiles.names()))),
]


class NcclPoolSettings(ConfigModel):
    """Settings of a measurement that depend on a pool's hardware; all others are as in `validation`."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    profile: ProfileName | None = None
    """Profile of a known system, such as h100-ib-8x400; its settings become the defaults."""
    transport: Transport | None = None
    """Transport that NCCL must prove to use; by default the profile's, else gpudirect-rdma."""
    algorithm: Algorithm = "auto"
    """Algorithm that NCCL is told to use (NCCL_ALGO)."""
    expected_busbw_gbps: Annotated[Float, Field(gt=0)] | None = None
    """Expected bus bandwidth in GB/s (10^9 bytes), instead of the computed one."""
    expected_by_collective: dict[Collective, Annotated[Float, Field(gt=0)]] = Field(default={})
    """Expected bus bandwidth in GB/s by collective; expected_busbw_gbps is the first one's."""
    tolerance: Annotated[Float, Field(ge=0, lt=1)] = 0.1
    """Accepted shortfall as a fraction of the expected bandwidth: 0.1 accepts 90 %."""
    env: dict[EnvName, Text] = Field(default={})
    """Additional environment variables of the ranks, such as NCCL_DEBUG_SUBSYS."""
    hcas: list[HcaName] = Field(default=[])
    """HCAs that NCCL must use (NCCL_IB_HCA); by default all rails."""


class NcclSettings(NcclPoolSettings):
    """The collectives and sizes measured on each pool, and the results that pass, under every scheduler."""

    model_config = ConfigDict(json_schema_extra=None)

    enabled: bool = True
    """Run the NCCL validation; if false, nccl_passed is false."""
    enforce: bool = True
    """Let `pulumi up` fail unless the validation passed."""
    run: Annotated[Int, Field(ge=1)] = 1
    """Number of the run: raise it to measure again without another change, for example after a cable was
    replaced."""
    busy_deadline_seconds: Annotated[Int, Field(ge=30)] = 3600
    """How long when_busy: wait waits for the GPUs, in seconds."""
    min_nodes_fraction: Annotated[Float, Field(gt=0, le=1)] = 0.9
    """Part of a pool's workers, without those in quarantine, that must be measured; with fewer, nccl_passed
    is false."""
    collectives: Annotated[list[Collective], Field(min_length=1), AfterValidator(_once)] = Field(
        default=["all_reduce"]
    )
    """Collectives to measure; the first one is the headline result."""
    min_bytes: Bytes = 512 << 20
    """Smallest message, such as 512M (binary units)."""
    max_bytes: Bytes = 8 << 30
    """Largest message; busbw is taken at this size."""
    step_factor: Annotated[Int, Field(ge=2)] = 2
    """Factor from one size to the next."""
    iterations: Annotated[Int, Field(ge=1)] = 20
    """Timed iterations per size."""
    warmup: Annotated[Int, Field(ge=0)] = 5
    """Iterations before the timed ones."""
    accept_warnings: list[Annotated[Text, Field(min_length=8)]] = Field(default=[])
    """Parts of lines that busbar does not know and the log may have: WARN lines of NCCL, and lines that look
    like the end of a job. Known failures are never accepted."""
    slots_per_worker: Annotated[Int, Field(ge=1)] | None = None
    """Ranks per worker; by default the pool's GPUs."""
    deadline_seconds: Annotated[Int, Field(ge=30)] = 1800
    """Time limit of the job in seconds."""

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

    image: Image = versions.NCCL_TESTS_IMAGE
    """Image with nccl-tests, Open MPI and sshd."""
    topology_file: NonEmpty | None = None
    """NCCL topology XML on the machine that runs Pulumi, relative to the project folder."""


class PoolValidation(NcclPoolSettings, PodSettings):
    """Values of a pool that replace those of `validation`."""


class Diagnose(ConfigModel):
    """Settings of `busbar diagnose`, which finds the slow node, rail or switch of a pool."""

    when: Literal["never", "on_failure"] = "never"
    """When `busbar up` runs it. on_failure: at once after a failed gate, for each pool that did not pass."""


class Validation(NcclSettings, PodSettings):
    """An MPIJob of nccl-tests per pool, and the gate on its result."""

    when_busy: Literal["fail", "wait", "keep"] = "fail"
    """What a new measurement does while pods hold the GPUs that it needs. fail: after three minutes the
    update fails, except where a quarantine begins or ends, which keeps the former verdict. wait: it waits for
    them. keep: the former verdict stays, for the workers that it measured, and says what has changed since;
    without one, the update fails."""
    shm_size: Quantity = "64Gi"
    """Size of /dev/shm per worker pod; counts as memory."""
    memory: Quantity | None = None
    """Memory limit per worker pod; by default none."""
    runtime_class: RuntimeClass = "nvidia"
    """RuntimeClass of the worker pods; empty for none."""
    diagnose: Diagnose = Diagnose()
    """When `busbar up` runs `busbar diagnose`."""


class Gpus(ConfigModel):
    """The GPUs of a host; used alone where its rails do not count, or come from a profile."""

    gpus: Annotated[Int, Field(ge=1, le=64)]
    """GPUs per worker."""
    gpu_model: NonEmpty | None = None
    """Text that the GPU's product name must contain, such as H100."""


class Hardware(Gpus):
    """The hardware that every host of a pool must have; preflight fails for a host that has less."""

    rails: Annotated[Int, Field(ge=1, le=64)]
    """HCA ports per worker that carry NCCL traffic: active, and at rate_gbps."""
    rate_gbps: Annotated[Float, Field(gt=0, le=3200)]
    """Rate of one rail in Gb/s: 400 for NDR."""
    link_layer: Literal["infiniband", "ethernet"] = "infiniband"
    """Link layer of the rails; ethernet means RoCE."""
    ignore_hcas: list[HcaPattern] = Field(default=[])
    """HCAs that are not rails (storage, management), such as mlx5_4; shell patterns work."""

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

    validation: NcclPoolSettings | None = None
    """What differs in the NCCL validation of this pool, by its hardware."""

    def quarantined_at_once(self, workers: int) -> int:
        """How many of the pool's workers a diagnosis may put in quarantine at once."""
        return max(1, workers // 10)


CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MaxUnavailable = Annotated[
    str,
    Matching(
        r"[1-9][0-9]{0,3}|(?:[1-9][0-9]?|100)%", "a number of workers or a percentage, such as 4 or 10%"
    ),
    WithJsonSchema({"type": ["integer", "string"]}),
]


FlowControl = Literal["warn", "require", "ignore"]


class Taint(ConfigModel):
    """A taint of a pool's workers."""

    key: LabelKey
    """Key of the taint."""
    value: LabelValue = ""
    """Value of the taint; may be empty."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect of the taint."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


def _distinct(taints: list[Taint]) -> list[Taint]:
    """Refuse a pair of key and effect that is listed twice, as the API server does (core/validation)."""
    seen: set[tuple[str, str]] = set()
    for taint in taints:
        if (taint.key, taint.effect) in seen:
            raise invalid(f"key {taint.key!r} with effect {taint.effect!r} is listed twice", "keep one")
        seen.add((taint.key, taint.effect))
    return taints


class Pool(MeasuredPool):
    """Requirements for every worker of the pool, and how K3s is updated on it."""

    labels: dict[NodeLabelKey, LabelValue] = Field(default={})
    """Labels of the workers; a change is applied to running ones too."""
    taints: Annotated[list[Taint], AfterValidator(_distinct)] = Field(default=[])
    """Taints of the workers; a change is applied to running ones too."""
    min_disk_gb: Annotated[Int, Field(ge=1)] = 50
    """Free space per worker in GB (10^9 bytes) where K3s keeps images."""
    flow_control: FlowControl = "warn"
    """RoCE rails: what preflight reports where the priority of NCCL's traffic class has neither PFC nor ECN
    on the host, or where this cannot be read. warn: a warning. require: an error. ignore: nothing."""
    max_unavailable: MaxUnavailable = "10%"
    """How many running agents of the pool may restart at the same time when their version or configuration
    changes: a number, or a percentage of the pool, rounded up."""
    pause_seconds: Annotated[Int, Field(ge=0, le=3600)] | None = None
    """How long a worker must have been Ready after a restart of its agent before the next ones restart.
    Without it: 60 where more than one may restart at the same time, else 0."""
    drain: Literal["never", "upgrade", "always"] = "upgrade"
    """When a worker is drained before its agent restarts: never, for another version of K3s, or always.
    Disruption budgets are honoured. Pods of jobs, of DaemonSets and without a controller stay, and keep
    running."""
    drain_timeout_seconds: Annotated[Int, Field(ge=10, le=3600)] = 600
    """How long a drain may take. A worker that is not drained by then is uncordoned, its agent does not
    restart, and the update fails."""
    running_jobs: Literal["keep", "wait", "refuse"] = "keep"
    """What an agent that has to restart does while pods of a job (Job, MPIJob) run on its worker. keep: it
    restarts, and they keep running; no drain evicts them. wait: it waits for their end, an hour at most.
    refuse: the update fails at this worker."""
    quarantine_cordon: bool = False
    """Also cordon the Nodes of workers in quarantine, for schedulers that heed no taint of Kubernetes, such
    as that of Slinky."""
    quarantine_limit: MaxUnavailable = "10%"
    """How many workers of the pool `busbar diagnose --quarantine` may put in quarantine at once: a number, or
    a percentage of the pool, rounded down, at least 1."""
    validation: PoolValidation | None = None
    """What differs in the NCCL validation of this pool, by its hardware."""

    def restarts_at_once(self, workers: int) -> int:
        """`max_unavailable` as a number, for a pool with this number of workers."""
        if self.max_unavailable.endswith("%"):
            return math.ceil(workers * int(self.max_unavailable[:-1]) / 100)
        return int(self.max_unavailable)

    def quarantined_at_once(self, workers: int) -> int:
        """`quarantine_limit` as a number, for a pool with this number of workers."""
        if self.quarantine_limit.endswith("%"):
            return max(1, workers * int(self.quarantine_limit[:-1]) // 100)
        return int(self.quarantine_limit)

    def pause_after_restart(self, workers: int) -> int:
        """`pause_seconds`, or its default for a pool of so many workers: a Node stays Ready for 40 to 50 s
        after its kubelet has failed."""
        if self.pause_seconds is not None:
            return self.pause_seconds
        return 60 if self.restarts_at_once(workers) > 1 else 0


class HttpProxy(ConfigModel):
    """The proxy for K3s, its containerd, and the downloads and packages of the host scripts."""

    url: ProxyUrl
    """URL of the proxy for http and https, with its port and without login."""
    no_proxy: list[Unproxied] = Field(default=[])
    """What is reached directly beside hosts, API, pods and services: names, domains (.example.com), addresses
    and networks. The network of the hosts stands for their addresses."""

    def outside_no_proxy(self, addresses: Iterable[str]) -> Iterator[str]:
        """The addresses (or names) that no network and no domain of `no_proxy` contains."""
        networks = [ipaddress.ip_network(each) for each in self.no_proxy if "/" in each]
        domains = tuple(each for each in self.no_proxy if each.startswith("."))
        for address in addresses:
            ip = ip_of(address)
            if not (any(ip in network for network in networks) if ip else address.endswith(domains)):
                yield address


class Checksums(ConfigModel):
    """sha256 of the K3s binary for each architecture."""

    amd64: Sha256 | None = None
    """sha256 of the file `k3s`."""
    arm64: Sha256 | None = None
    """sha256 of the file `k3s-arm64`."""


class ImageArchive(ConfigModel):
    """An archive of container images for hosts without access to a registry."""

    url: ArchiveUrl
    """URL of the archive (.tar, .tar.gz, .tgz or .tar.zst); each host fetches it."""
    roles: list[Literal["server", "worker"]] = Field(default=["server", "worker"], min_length=1)
    """Which hosts get it."""
    sha256: Sha256 | None = None
    """Its checksum; by default looked up in k3s.checksums_file by file name."""


def _own_names(images: list[ImageArchive]) -> list[ImageArchive]:
    names = [image.url.rpartition("/")[2] for image in images]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"the file name {name!r} is there twice; hosts store archives by it", "rename one")
    return images


def _registries(value: JsonObject) -> JsonObject:
    """K3s ignores unknown keys of registries.yaml, and a mirror of a URL (rancher/wharfie pkg/registries)."""
    known = ("mirrors", "configs", "auths")
    for key in value:
        if key not in known:
            raise invalid(f"unknown key {key!r}{did_you_mean(key, known)}")
    for name in value.get("mirrors") or {}:
        if "://" in name:
            raise invalid(f"mirrors has the URL {name!r}", name.partition("://")[2].rstrip("/"))
    return value


class S3(ConfigModel):
    """A bucket for etcd snapshots. The keys are the secrets busbar:s3AccessKey and busbar:s3SecretKey."""

    endpoint: Endpoint = "s3.amazonaws.com"
    """HOST or HOST:PORT of the S3 service."""
    bucket: BucketName
    """Name of the bucket."""
    region: BucketRegion = "us-east-1"
    """Region of the bucket."""
    folder: BucketFolder | None = None
    """Folder inside the bucket, for this cluster alone: K3s deletes the oldest snapshots there."""


class Snapshots(ConfigModel):
    """Scheduled snapshots of etcd."""

    schedule: CronSchedule = "0 */12 * * *"
    """Cron schedule with five fields."""
    retention: Annotated[Int, Field(ge=1)] = 5
    """Number of snapshots that each server keeps."""
    s3: S3 | None = None
    """Also copy each snapshot to a bucket."""


Rotation = Annotated[Int, Field(ge=0)]


class Rotate(ConfigModel):
    """Rotations in a running cluster: raise a number by one, and run an update (docs/hosts.md)."""

    certificates: Rotation = 0
    """Certificates of all servers and workers; the authorities (CA) stay."""
    server_token: Rotation = 0
    """Token that servers join with. Earlier snapshots of etcd need the earlier token."""
    agent_token: Rotation = 0
    """Token that workers join with."""


def _as_texts(value: Any) -> Any:
    """VALUE without empty parts. All values there are texts; `pulumi config set` may have stored a number."""
    if isinstance(value, dict):
        found = {key: _as_texts(each) for key, each in value.items()}
        return {key: each for key, each in found.items() if each is not None and each != []}
    if isinstance(value, list):
        return [_as_texts(each) for each in value]
    if isinstance(value, str):
        return value.strip()
    return value if value is None or isinstance(value, bool) else str(value)


class Authentication(ConfigModel):
    """Users of the Kubernetes API. Their permissions come from the site's ClusterRoleBindings (RBAC)."""

    jwt: list[Annotated[JsonObject, AfterValidator(_as_texts)]] = Field(default=[])
    """Issuers of tokens (OIDC): JWTAuthenticators of apiserver.config.k8s.io, passed on as given. Servers
    load them without a restart; those that the API server refuses fail the update."""


class K3s(ConfigModel):
    """The Kubernetes distribution on servers and workers."""

    version: K3sVersion = versions.K3S
    """Release of K3s, such as v1.35.6+k3s1."""
    base_url: Url = versions.K3S_BASE_URL
    """Base URL of the releases; a mirror keeps the layout <base>/<version>/k3s."""
    sha256: Checksums | None = None
    """Checksums of the binary, in place of those in checksums_file."""
    checksums_file: NonEmpty | None = None
    """sha256sum file with the binary and the image archives, relative to the project folder."""
    cluster_cidr: Cidr = "10.44.0.0/14"
    """Network of the pods: a /24 per server and worker. Cannot be changed later."""
    service_cidr: Cidr = "10.43.0.0/16"
    """Network of the services."""
    flannel_backend: Literal["vxlan", "host-gw", "wireguard-native", "none"] = "vxlan"
    """How pods of different hosts reach each other."""
    tls_san: list[Address] = Field(default=[])
    """Further names and addresses of the API in its certificate, such as a name in DNS. Those of the load
    balancers are in it."""
    disable: list[DnsLabel] = Field(default=["traefik", "servicelb"])
    """Packaged components of K3s that are not installed."""
    images: Annotated[list[ImageArchive], AfterValidator(_own_names)] = Field(default=[])
    """Image archives for hosts without access to a registry (air gap)."""
    server_args: JsonObject = Field(default={})
    """Additional keys of config.yaml on the servers; lists are appended."""
    agent_args: JsonObject = Field(default={})
    """Additional keys of config.yaml on the workers; lists are appended."""
    registries: Annotated[JsonObject, AfterValidator(_registries)] = Field(default={})
    """registries.yaml: mirrors and TLS; logins are the secret busbar:registryCredentials."""
    authentication: Authentication = Authentication()
    """Users of the Kubernetes API from issuers of the site (OIDC)."""
    snapshots: Snapshots = Snapshots()
    """Snapshots of etcd."""
    rotate: Rotate = Rotate()
    """Rotation of certificates and tokens, by numbers that only rise."""


def arguments_of(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [config[name] for name in (key, f"{key}+") if config.get(name) is not None]
    return [str(each) for value in values for each in (value if isinstance(value, list) else [value])]


def parsed(argument: str) -> tuple[str, str]:
    """Name and value of an argument of such a list."""
    name, _, value = argument.removeprefix("--").partition("=")
    return name, value


HCA_RESOURCE = "nvidia.com/hostdev"


class Chart(ConfigModel):
    """A Helm chart: by name from a repository, as an oci:// URL, or as a local folder or archive."""

    # A folder or an archive has one version, which is not configured.
    version: ChartVersion = ""
    repository: Url | None = versions.NVIDIA_CHARTS
    """Helm repository; not used for a local chart or an oci:// URL."""
    chart: ChartName
    values: JsonObject = Field(default={})
    """Values merged over helm_values/; lists are replaced."""
    enabled: bool = True
    """Install it; false if another tool has installed it."""

    @property
    def is_local(self) -> bool:
        """True if `chart` is a path on the machine that runs Pulumi."""
        return is_local_chart(self.chart)

    @property
    def repository_url(self) -> str | None:
        """The repository of the chart, or None if `chart` is a path or a URL itself."""
        return repository_of(self.chart, self.repository)


class GpuOperator(Chart):
    """NVIDIA GPU Operator: driver, container toolkit, device plugin -> `nvidia.com/gpu`."""

    version: ChartVersion = versions.GPU_OPERATOR
    """Version of the chart, with a leading v."""
    chart: ChartName = "gpu-operator"
    """Name of the chart, a local path, or an oci:// URL."""
    timeout_seconds: Seconds = 1800
    """Time until every GPU must be allocatable, in seconds; 5 s per worker are added."""


class NetworkOperator(Chart):
    """NVIDIA Network Operator: SR-IOV device plugin -> allocatable HCAs."""

    version: ChartVersion = versions.NETWORK_OPERATOR
    """Version of the chart, without a leading v."""
    chart: ChartName = "network-operator"
    """Name of the chart, a local path, or an oci:// URL."""
    timeout_seconds: Seconds = 900
    """Time until every HCA must be allocatable, in seconds; 20 s per worker are added: device plugins are
    replaced one node at a time."""
    resource: ResourceName = HCA_RESOURCE
    """Name of the extended resource for the HCAs."""
    selectors: JsonObject = Field(default={})
    """Selectors of the SR-IOV device plugin merged over the defaults: vendor 15b3, RDMA, and pciAddresses
    with the rails that preflight has found."""
    image_repository: ImageFolder = versions.NETWORK_OPERATOR_IMAGES
    """Registry folder of the operands' images."""


class MpiOperator(ConfigModel):
    """Kubeflow MPI Operator, from charts/mpi-operator of this project."""

    enabled: bool = True
    """Install it; false if another tool has installed it."""
    image: Image = versions.MPI_OPERATOR_IMAGE
    """Image of the controller."""
    values: JsonObject = Field(default={})
    """Values merged over helm_values/; lists are replaced."""
    timeout_seconds: Seconds = 300
    """Time until the controller must be available, in seconds."""


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
    ssh: Ssh
    """How to log in to the hosts."""
    pools: Annotated[dict[DnsLabel, P], Field(min_length=1)]
    """Pools by name: groups of identical hosts with GPUs, and what each of them must have."""
    validation: V
    hosts_from: Annotated[HostsFrom | None, AfterValidator(_unread)] = None
    """A list of hosts elsewhere, in place of the lists below hosts."""
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


class Removal(ConfigModel):
    """The treatment of running jobs by a destroy."""

    cancel_jobs: bool = False
    """End jobs that run or wait, and go on when they have ended; by default a destroy names them and
    refuses."""


class Cluster(MeasuredCluster[Pool, Validation]):
    """One cluster: hosts, software, and the bandwidth that it must reach. Loaded by `busbar.config.load`,
    which also checks what no value can say alone, such as that each address is listed once."""

    name: DnsLabel
    """Name of the cluster."""
    hosts: Hosts
    """The hosts by role."""
    http_proxy: HttpProxy | None = None
    """The proxy by which the hosts reach what is outside; by default none."""
    api_endpoint: ApiEndpoint | None = None
    """An endpoint of the Kubernetes API that the site has, in place of load balancers."""
    k3s: K3s = K3s()
    """The Kubernetes distribution."""
    gpu_operator: GpuOperator = GpuOperator()
    """NVIDIA GPU Operator."""
    network_operator: NetworkOperator = NetworkOperator()
    """NVIDIA Network Operator."""
    mpi_operator: MpiOperator = MpiOperator()
    """Kubeflow MPI Operator."""
    nfs_server: NfsServer | None = None
    """An NFS server for the workers, set up on a host; by default none."""
    validation: Validation = Validation()
    """The NCCL validation and its gate."""
    removal: Removal = Removal()
    """What a destroy does with running jobs."""

    @property
    def workers(self) -> Sequence[Worker]:
        return self.hosts.workers
