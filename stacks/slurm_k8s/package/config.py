"""`busbar-slurm_k8s:slurm_k8s`: the whole configuration of one stack of stacks/slurm_k8s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from busbar.config.checks import floating
from busbar.config.cluster import Removal, Taint
from busbar.config.findings import did_you_mean
from busbar.config.project import ProjectConfig
from busbar.config.types import (
    ChartVersion,
    DnsLabel,
    DnsSubdomain,
    Image,
    ImageFolder,
    ImageTag,
    Int,
    JsonObject,
    Matching,
    NonEmpty,
    Port,
    Quantity,
    Seconds,
    SshKey,
    Text,
    is_floating,
    own_namespace,
)
from busbar.finding import Finding
from busbar.frame import GateConfig, OnCluster
from busbar.models import ConfigModel
from stacks.slurm_k8s.package import versions

PROJECT = "busbar-slurm_k8s"
OPERATOR_NAMESPACES = ("slinky", "slinky-crds")
SSH_PORT = 22
PASSWORD = "databasePassword"

Charts = Annotated[str, Matching(r"[./~].*|oci://[A-Za-z0-9][A-Za-z0-9._:/-]*", "a folder or an oci:// URL")]
# Earlier charts have other values.
Version = Annotated[ChartVersion, Matching(r"v?1\.2\..*", "a version 1.2.x of the charts")]
Parameter = Annotated[str, Matching(r"[A-Za-z][A-Za-z0-9]*", "a parameter of slurm.conf")]
# Slurm's parser ends a value at a blank, and a line at `#`.
ParameterValue = Annotated[Text, Matching(r"[^\s#\"'\\]+", "a value without blanks, quotes and #")]
GpuType = Annotated[str, Matching(r"[a-z0-9][a-z0-9_]*", "a GPU type of Slurm: a-z 0-9 _")]


class Login(ConfigModel):
    """The pod from which users submit jobs."""

    service: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service in front of its sshd."""
    port: Port = SSH_PORT
    """Port of the Service."""
    root_ssh_keys: list[SshKey] = Field(default=[])
    """Public keys that may log in as root."""


class State(ConfigModel):
    """The volume in which slurmctld keeps jobs and drains."""

    storage_class: DnsSubdomain | None = None
    """StorageClass of the volume; by default the cluster's default one."""
    size: Quantity = "4Gi"
    """Size of the volume."""
    accept_state_on_one_node: bool = False
    """Accept a class whose volumes are folders of one server, such as local-path: all jobs are lost with that
    server."""


class Accounting(ConfigModel):
    """The database of the site in which slurmdbd keeps jobs and users: MariaDB or MySQL.

    Its password is the secret `databasePassword` of the stack.
    """

    host: NonEmpty
    """Host name or address of the database server."""
    port: Port = 3306
    """Its port."""
    database: NonEmpty = "slurm_acct_db"
    """Name of the database."""
    username: NonEmpty = "slurm"
    """The user of slurmdbd there."""


class PoolSettings(ConfigModel):
    """Settings of one pool that its measurement does not have."""

    gpu_type: GpuType | None = None
    """Type in `--gres=gpu:TYPE:N`; by default the pool's gpu_model."""
    gpu_files: NonEmpty | None = None
    """Device files of the GPUs, such as /dev/nvidia[0-7]; by default Slurm detects them."""


class ProbeConfig(GateConfig):
    """The job that shows that Slurm gives jobs the GPUs of every node, and the measurement after it."""

    measure: bool = True
    """Measure every pool by a job of nccl-tests at the end of an update that changes the pool or an image, as
    `busbar measure` does, and fail one that does not pass."""


class Update(ConfigModel):
    """The replacement of slurmd pods by an update."""

    max_unavailable: Annotated[Int, Field(ge=1)] = 1
    """Number of nodes that are taken out of service at once."""
    job_seconds: Annotated[Int, Field(ge=0)] = 3600
    """How long to wait for the jobs of a node, in seconds; 0 refuses while jobs run there."""


class Slurm(OnCluster):
    """Slurm on one cluster."""

    namespace: Annotated[DnsLabel, own_namespace("slurm", *OPERATOR_NAMESPACES)] = "slurm"
    """Namespace of all pods of Slurm."""
    pools: dict[DnsLabel, PoolSettings] = Field(default={})
    """Pools of the cluster to use, each a partition; by default all."""
    login: Login = Field(default=Login(), description="How users reach the login pod.")
    state: State = State()
    """The volume of slurmctld."""
    accounting: Accounting | None = None
    """The database for `sacct`; by default Slurm keeps no record of ended jobs."""
    tolerate: list[Taint] = Field(default=[])
    """Taints of the site, beside those of the cluster's pools, that all pods of Slurm and of the operator
    tolerate."""
    slurm_conf: dict[Parameter, ParameterValue] = Field(default={})
    """Parameters at the end of slurm.conf, where the last value of a name holds."""
    version: Version = versions.OPERATOR
    """Version of the operator and of its charts: 1.2.x."""
    charts: Charts = versions.CHARTS
    """Folder or oci:// URL with the charts slurm-operator-crds, slurm-operator and slurm."""
    images: ImageFolder = versions.IMAGES
    """Registry folder of all images."""
    image_tag: ImageTag = versions.IMAGE_TAG
    """Tag of the images of Slurm."""
    sidecar_image: Image = versions.SIDECAR_IMAGE
    """Image with a shell, for the containers of log files."""
    container_image: NonEmpty | None = None
    """Image with nccl-tests that pyxis starts for `busbar measure`; by default nccl-tests are in the image
    slurmd."""
    cluster_folder: NonEmpty = "../.."
    """Folder with the cluster's stack file, relative to this one: `busbar measure` logs in to its servers."""
    pending_seconds: Seconds = 600
    """How long the job of `busbar measure` may wait for its nodes, in seconds."""
    values: JsonObject = Field(default={})
    """Values merged over those of the chart slurm; lists are replaced. What other keys set, and what updates
    rely on, is refused."""
    operator_values: JsonObject = Field(default={})
    """The same of the chart slurm-operator."""
    probe: ProbeConfig = ProbeConfig()
    """The job that ends an update, and its gate."""
    update: Update = Update()
    """How an update replaces slurmd pods."""
    removal: Removal = Removal()
    """The treatment of jobs by a destroy."""
    timeout_seconds: Seconds = 900
    """Time until all nodes must be idle in Slurm, in seconds."""


# By these the daemons of the operator's pods find and know each other. Without GresTypes no node has GPUs,
# without ReconfigFlags a closed partition opens, and without ReturnToService a new pod stays out of service.
_SET = """
    AccountingStorageHost AccountingStoragePort AccountingStorageType AuthAltParameters AuthAltTypes AuthType
    ClusterName CredType GresTypes Include NodeName NodeSet PartitionName ReconfigFlags ReturnToService
    SlurmctldHost SlurmctldParameters SlurmctldPort SlurmdPort SlurmdUser SlurmUser StateSaveLocation
"""
_LIKE = 0.85
# Parameters of Slurm 26.05 (src/common/read_config.c) that sites set, by which a misspelt one is known. A
# name that is not like one of them may be another.
_PARAMETERS = """
    AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageTRES AccountingStoreFlags AuthInfo
    BatchStartTimeout CompleteWait CpuFreqGovernors DebugFlags DefCPUPerGPU DefMemPerCPU DefMemPerGPU
    DefMemPerNode DependencyParameters DisableRootJobs EioTimeout EnforcePartLimits Epilog EpilogMsgTime
    EpilogSlurmctld EpilogTimeout FairShareDampeningFactor GroupUpdateForce GroupUpdateTime
    HealthCheckInterval HealthCheckNodeState HealthCheckProgram HealthCheckTimeout InactiveLimit
    InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType JobDefaults
    JobFileAppend JobRequeue JobSubmitPlugins KillOnBadExit KillWait LaunchParameters LicenseParameters
    Licenses MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode
    MaxNodeCount MaxStepCount MaxTasksPerNode MessageTimeout MinJobAge MpiDefault MpiParams OverTimeLimit
    PreemptExemptTime PreemptMode PreemptParameters PreemptType PriorityCalcPeriod PriorityDecayHalfLife
    PriorityFavorSmall PriorityFlags PriorityMaxAge PriorityParameters PrioritySiteFactorParameters
    PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightAge PriorityWeightAssoc
    PriorityWeightFairShare PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS
    PriorityWeightTRES PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags PrologSlurmctld
    PrologTimeout PropagateResourceLimits PropagateResourceLimitsExcept RequeueExit RequeueExitHold
    ResvEpilog ResvOverRun ResvProlog SchedulerParameters SchedulerTimeSlice SchedulerType SelectType
    SelectTypeParameters SlurmctldDebug SlurmctldLogFile SlurmctldTimeout SlurmdDebug SlurmdLogFile
    SlurmdParameters SlurmdSpoolDir SlurmdTimeout SlurmSchedLogFile SrunEpilog SrunProlog TaskEpilog
    TaskPlugin TaskPluginParam TaskProlog TopologyParam TopologyPlugin TrackWCKey TreeWidth
    UnkillableStepProgram UnkillableStepTimeout WaitTime
"""
_KNOWN = {name.lower(): name for name in f"{_SET} {_PARAMETERS}".split()}

_OF_A_POOL = (
    "enabled", "replicas", "scalingMode", "updateStrategy", "oversubscribeNode", "pinToNode",
    "ordinalPadding", "slurmd/resources", "extraConf", "extraConfMap/Gres", "partition/enabled",
    "partition/config", "partition/configMap/State", "partition/configMap/Default", "podSpec/affinity",
    "podSpec/tolerations", "podSpec/runtimeClassName",
)  # fmt: skip
_OF_A_LOGIN = {"service/port": "login.port", "service/spec/type": "login.service"}
_OF_A_LOGIN |= {"rootSshAuthorizedKeys": "login.root_ssh_keys"}
_NAMES = ("nameOverride", "fullnameOverride", "namespaceOverride")
REFUSED: Mapping[str, Mapping[str, str]] = {
    "values": {
        **dict.fromkeys((*_NAMES, "clusterName"), ""),
        **dict.fromkeys(("slurmKey", "slurmKeyRef", "jwtKey", "jwtHs256KeyRef"), ""),
        **dict.fromkeys(("controller/external", "controller/inplaceReconfigure"), ""),
        **dict.fromkeys(("controller/slurmctld/args", "restapi/slurmrestd/args"), ""),
        **dict.fromkeys(("controller/extraConf", "controller/extraConfMap"), "slurm_conf"),
        "configFiles/slurm.conf": "slurm_conf",
        "controller/persistence": "state",
        "configFiles/gres.conf": "pools.NAME.gpu_files and gpu_type",
        "prologScripts/10-memlock.sh": "",
        "restapi/service/port": "",
        **{f"{each}/podSpec/tolerations": "tolerate" for each in ("controller", "restapi", "accounting")},
        **{f"accounting/{each}": "accounting" for each in ("enabled", "external", "storageConfig")},
        **{f"loginsets/slinky/{each}": key for each, key in _OF_A_LOGIN.items()},
        **{f"loginsetDefaults/{each}": key for each, key in _OF_A_LOGIN.items()},
        **dict.fromkeys((f"nodesets/*/{each}" for each in _OF_A_POOL), ""),
        **dict.fromkeys((f"nodesetDefaults/{each}" for each in _OF_A_POOL), ""),
    },
    "operator_values": {
        **dict.fromkeys((*_NAMES, "operator/enabled", "operator/namespaces", "webhook/enabled"), ""),
        **dict.fromkeys(("operator/tolerations", "webhook/tolerations"), "tolerate"),
        "crds/enabled": "",
    },
}
"""Values of the charts, `*` for any name, that busbar sets or relies on -> the keys that set them, if any."""


def _findings(slurm: Slurm) -> Iterator[Finding]:
    """The checks that no value can make on its own."""
    if slurm.login.service == "LoadBalancer" and slurm.login.port == SSH_PORT:
        yield _takes_sshd(("login", "port"))
    seen: dict[str, str] = {}
    for name, value in slurm.slurm_conf.items():
        path = ("slurm_conf", name)
        if _KNOWN.get(name.lower()) in _SET.split():
            what = "is set by busbar or the operator, whose pods and updates rely on it"
            yield Finding(path, what, "remove it", repr(value))
        elif (first := seen.setdefault(name.lower(), name)) != name:
            yield Finding(path, f"is {first} once more, as Slurm reads it", "keep one")
        elif name.lower() not in _KNOWN and (hint := did_you_mean(name, _KNOWN.values(), cutoff=_LIKE)):
            yield Finding(path, f"is not a parameter of slurm.conf{hint}", "write it so, or remove it")
    if is_floating(slurm.sidecar_image):
        yield floating(("sidecar_image",), slurm.sidecar_image)
    for name, values in (("values", slurm.values), ("operator_values", slurm.operator_values)):
        refused = {
            below: key
            for pattern, key in REFUSED[name].items()
            for below in _matching(values, pattern.split("/"))
        }
        for below, key in refused.items():
            what = "is a value that busbar sets itself, or that its updates rely on"
            fix = f"remove it; {key} of the stack sets it" if key else "remove it"
            yield Finding((name, *below), what, fix)
        yield from _values((name,), values)


def _matching(values: Mapping[str, Any], pattern: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths in Helm values that a pattern of REFUSED names; a `null` above one removes it too."""
    first, *rest = pattern
    for key in values if first == "*" else [first] if first in values else []:
        if rest and isinstance(values[key], Mapping):
            yield from ((key, *path) for path in _matching(values[key], rest))
        elif not rest or values[key] is None:
            yield (key,)


def _takes_sshd(where: tuple[str, ...], port: str = "of a LoadBalancer takes port 22") -> Finding:
    return Finding(
        where,
        f"{port} of the hosts: ServiceLB of K3s, or kube-proxy, then answers there in place of their sshd, "
        "which busbar itself needs",
        "login.service: NodePort, or another port",
    )


def _values(where: tuple[str, ...], values: Mapping[str, Any]) -> Iterator[Finding]:
    """The keys that Helm values must not have, at any depth."""
    for key, value in values.items():
        path = (*where, key)
        if key == "nodePort" and value == SSH_PORT:
            yield _takes_sshd(path, "takes port 22")
        if path[-2:] == ("restapi", "replicas") and value in (0, "0"):
            what = "leaves no slurmrestd, by which busbar and the operator ask Slurm"
            yield Finding(path, what, "remove it")
        if not isinstance(value, Mapping):
            continue
        if key == "service" and "loginsets" in where and value.get("port", SSH_PORT) == SSH_PORT:
            spec = value.get("spec")
            if isinstance(spec, Mapping) and spec.get("type") == "LoadBalancer":
                yield _takes_sshd(path)
        yield from _values(path, value)


CONFIG = ProjectConfig(
    project=PROJECT,
    key="slurm_k8s",
    model=Slurm,
    what="Slurm",
    checks=_findings,
    secrets={PASSWORD: "Password of accounting.username in the database."},
)
