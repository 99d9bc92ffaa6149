"""`busbar-slurm:slurm`: the whole configuration of one stack of stacks/slurm."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import ErrorDetails

from busbar.config import HostConfig, Worker, checks, files, stackfile
from busbar.config.cluster import (
    MeasuredCluster,
    MeasuredPool,
    NcclSettings,
    NfsServer,
    Pool,
    Removal,
    Validation,
)
from busbar.config.findings import did_you_mean, finding
from busbar.config.project import ProjectConfig
from busbar.config.stackfile import StackFile
from busbar.config.types import DnsLabel, Int, Matching, SshKey, Text, invalid
from busbar.finding import Finding
from busbar.models import ConfigModel
from stacks.slurm.capability import CAPABILITY

KEY = "slurm"
PROJECT = "busbar-slurm"
SECRETS = {name: stackfile.SECRETS[name] for name in ("sshPrivateKey", "sshPrivateKeyPassword")}
ROLES = CAPABILITY.host_roles

_OF_K3S = {*Pool.model_fields, *Validation.model_fields}
# The operating system's own uids, and those of packages (Debian Policy, 9.2.2).
SYSTEM_UIDS = (range(1000), range(60000, 65536))
# Words with a meaning of their own in slurm.conf, and in topology.conf the switch above all others.
DEFAULT, TOP_SWITCH = "default", "fabric"
_RESERVED = "DEFAULT has a meaning of its own in slurm.conf", "rename it"
# Key of K3s -> its replacement on Slurm.
_INSTEAD = {
    "image": "validation.image names what pyxis starts",
    "topology_file": "set env.NCCL_TOPO_FILE to a file that all compute hosts have",
    "running_jobs": "removal.cancel_jobs is for all pools",
}
# Keys of slurm.conf that this stack writes itself or relies on.
WRITTEN = frozenset((
    "accountingstoragehost", "accountingstoragetype", "authtype", "clustername", "credtype", "grestypes",
    "healthcheckinterval", "healthchecknodestate", "healthcheckprogram", "include", "jobacctgathertype",
    "nodename", "partitionname", "proctracktype", "prologflags", "propagateresourcelimitsexcept",
    "reconfigflags", "returntoservice", "selecttype", "selecttypeparameters", "slurmctldhost",
    "slurmctldlogfile", "slurmctldparameters", "slurmctldport", "slurmdlogfile", "slurmdport",
    "slurmdspooldir", "slurmuser", "statesavelocation", "taskplugin", "topologyplugin",
))  # fmt: skip

# No part of the path is `.` or `..`.
_PATH = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+"
Packages = Annotated[str, Matching(rf"os|{_PATH}", "`os` or the absolute path of a folder without ..")]
Image = Annotated[str, Matching(r"[^-\s]\S*", "an image or a file, without blanks")]
AbsolutePath = Annotated[str, Matching(_PATH, "an absolute path of A-Z a-z 0-9 . _ / - without ..")]
TimeLimit = Annotated[
    str,
    Matching(
        r"infinite|([0-9]+-([01]?[0-9]|2[0-3])|[0-9]{1,2}):[0-5][0-9]:[0-5][0-9]",
        "`infinite` or a time as 7-00:00:00",
    ),
]
# Debian's useradd takes these names.
AccountName = Annotated[str, Matching(r"[a-z_][a-z0-9_-]{0,31}", "a user name: a-z 0-9 _ -, at most 32")]
# A value without blanks and `#`, where Slurm's parser ends the value, or the line.
Parameter = Annotated[str, Matching(r"[A-Za-z][A-Za-z0-9]*", "a parameter of slurm.conf")]
ParameterValue = Annotated[Text, Matching(r"[^\s#\"'\\]+", "a value without blanks, quotes and #")]


class Hosts(ConfigModel):
    """All hosts by role. A host has one role, and is in no K3s cluster."""

    controller: HostConfig = Field(description="The host of slurmctld, and of slurmdbd with accounting.")
    login: list[HostConfig] = Field(
        default=[], description="Hosts from which users submit jobs: sackd and the commands."
    )
    compute: Annotated[list[Worker], Field(min_length=1)] = Field(
        description="Hosts with GPUs and HCAs: slurmd."
    )


class Partition(ConfigModel):
    """A partition."""

    pools: Annotated[list[DnsLabel], Field(min_length=1)] = Field(description="The pools it consists of.")
    default: bool = Field(default=False, description="Whether jobs that name no partition run here.")
    max_time: TimeLimit = Field(default="infinite", description="Time limit of its jobs, as 7-00:00:00.")

    @property
    def max_seconds(self) -> float:
        """`max_time` in seconds."""
        if self.max_time == "infinite":
            return math.inf
        days, _, clock = self.max_time.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


class Accounting(ConfigModel):
    """slurmdbd and MariaDB on the controller's host. Jobs run on while they are down."""

    enabled: bool = Field(default=False, description="Record jobs, for sacct and sreport.")
    keep_data: bool = Field(default=True, description="Keep the database when the stack is destroyed.")


class HomeServer(NfsServer):
    """A folder of one host that all others mount, at the same path. busbar never deletes its data."""

    host: DnsLabel | None = Field(
        default=None,
        description="The controller or login host that has the folder; by default the controller.",
    )
    squash: Literal["root", "none"] = Field(
        default="root", description="Who is nobody in the folder: root of the other hosts, or nobody."
    )


class Home(ConfigModel):
    """The homes of the users, on the same file system on every host."""

    path: AbsolutePath = Field(default="/home", description="Its mount point.")
    nfs: HomeServer | None = Field(
        default=None, description="Homes on an NFS server of busbar's, in place of path and shared."
    )
    shared: bool = Field(
        default=False, description="Let preflight fail unless all hosts have the same source there."
    )

    @property
    def folder(self) -> str:
        """The folder with the users' homes."""
        return self.nfs.folder if self.nfs else self.path


def _of_people(uid: int) -> int:
    if any(uid in uids for uids in SYSTEM_UIDS):
        raise invalid("is a uid of the operating system", "choose one below 60000, or above 65535")
    return uid


class User(ConfigModel):
    """A user with the same uid on every host."""

    uid: Annotated[Int, Field(ge=1000, le=2**31 - 1), AfterValidator(_of_people)] = Field(
        description="Uid and gid on every host."
    )
    ssh_keys: list[SshKey] = Field(
        default=[], description="Public keys that ~/.ssh/authorized_keys must have; others in it stay."
    )


class Users(ConfigModel):
    """The users whose jobs run. Slurm identifies them by uid, so each needs the same one on every host."""

    create: bool = Field(
        default=True, description="Create and delete them; else preflight fails where one is missing."
    )
    accounts: dict[AccountName, User] = Field(default={}, description="The users by name.")


class HostRemoval(Removal):
    """The treatment of running jobs by a destroy, and by the removal of a compute host, which is drained."""

    timeout_seconds: Annotated[Int, Field(ge=10, le=86400)] = Field(
        default=3600, description="How long the jobs of a removed host are waited for; then the update fails."
    )


class HealthCheck(ConfigModel):
    """A script that slurmd runs on idle nodes: it drains a node with a reason, and never resumes one."""

    enabled: bool = Field(default=True, description="Compare GPUs and rails with the pool's numbers.")
    interval_seconds: Annotated[Int, Field(ge=60, le=65535)] = Field(
        default=300, description="Time between two runs."
    )


class SlurmValidation(NcclSettings):
    """A job of nccl-tests per pool, and the gate on its result."""

    image: Image | None = Field(
        default=None,
        description="What pyxis starts to measure, such as /images/nccl-tests.sqsh; by default nccl-tests on "
        "the compute hosts.",
    )
    when_busy: Literal["fail", "wait"] = Field(
        default="fail",
        description="What a new measurement does while its nodes are busy. fail: after 100 s the update "
        "fails. wait: the job is pending for as long as busy_deadline_seconds.",
    )

    @property
    def pending_seconds(self) -> int:
        """Time in seconds that the job may wait for its nodes."""
        return self.busy_deadline_seconds if self.when_busy == "wait" else 100


class Slurm(MeasuredCluster[MeasuredPool, SlurmValidation]):
    """One Slurm cluster, and the bandwidth that it must reach. Use `load`, which checks across sections."""

    name: DnsLabel = Field(description="Name of the cluster (ClusterName); it cannot change later.")
    hosts: Hosts = Field(description="The hosts by role.")
    partitions: dict[DnsLabel, Partition] = Field(
        default={}, description="Partitions by name; by default one per pool."
    )
    packages: Packages = Field(
        default="os",
        description="Where Slurm comes from: os (the operating system's packages), or a folder on every host "
        "with SchedMD's .deb files.",
    )
    container_packages: AbsolutePath | None = Field(
        default=None, description="A folder on every host with the .deb files of enroot and pyxis to install."
    )
    accounting: Accounting = Field(default=Accounting(), description="slurmdbd and MariaDB.")
    home: Home = Field(default=Home(), description="Where homes are.")
    users: Users = Field(default=Users(), description="Users with the same uid on every host.")
    removal: HostRemoval = Field(
        default=HostRemoval(), description="What a destroy, or the removal of a host, does with running jobs."
    )
    health_check: HealthCheck = Field(default=HealthCheck(), description="HealthCheckProgram of slurmd.")
    parameters: dict[Parameter, ParameterValue] = Field(
        default={}, description="Further parameters of slurm.conf, such as MaxJobCount: 50000."
    )
    validation: SlurmValidation = Field(
        default=SlurmValidation(), description="The NCCL validation and its gate."
    )

    @property
    def fronts(self) -> list[HostConfig]:
        """The controller and the login hosts."""
        return [self.hosts.controller, *self.hosts.login]

    @property
    def workers(self) -> list[Worker]:
        return self.hosts.compute

    @property
    def home_host(self) -> str | None:
        """The host that exports the homes; None without home.nfs."""
        return (self.home.nfs.host or self.hosts.controller.name) if self.home.nfs else None

    @cached_property
    def partitions_or_default(self) -> dict[str, Partition]:
        """The partitions; one per pool where none is configured, the first being the default."""
        first = next(iter(self.pools))
        return self.partitions or {
            pool: Partition(pools=[pool], default=pool == first) for pool in self.pools
        }

    def partition_of(self, pool: str) -> str:
        """The first partition with this pool."""
        return next(name for name, each in self.partitions_or_default.items() if pool in each.pools)


def read(path: Path) -> tuple[Slurm, StackFile]:
    """The validated configuration of a stack file, and the file as written. Raises ConfigError."""
    file = CONFIG.file(path)
    return file.load(load, ROLES), file


def _finding(error: ErrorDetails, root: type[BaseModel]) -> Finding:
    """Return the finding for an error of pydantic; a key that only K3s has gets its own text."""
    found = finding(error, root)
    section, key = found.path[0], str(found.path[-1])
    if error["type"] == "extra_forbidden" and section in ("pools", "validation") and key in _OF_K3S:
        fix = f"remove it; {_INSTEAD[key]}" if key in _INSTEAD else "remove it"
        return replace(found, what="is for Kubernetes, and Slurm has no use for it", fix=fix)
    return found


def _findings(slurm: Slurm) -> Iterator[Finding]:
    """The checks that no value can make on its own."""
    yield from checks.of_measured_cluster(slurm)
    seen: dict[str, str] = {}
    for parameter in slurm.parameters:
        path = ("parameters", parameter)
        if parameter.lower() in WRITTEN:
            yield Finding(path, "busbar writes it itself", "remove it")
        elif (first := seen.setdefault(parameter.lower(), parameter)) != parameter:
            yield Finding(path, f"is {first} once more, as Slurm reads it", "keep one")
    for index, host in enumerate(slurm.hosts.compute):
        if host.name == DEFAULT:
            yield Finding(("hosts", "compute", index, "name"), *_RESERVED, repr(host.name))
    yield from _partitions(slurm)
    yield from _switches(slurm)
    yield from _home(slurm)
    yield from _users(slurm)


def _users(slurm: Slurm) -> Iterator[Finding]:
    """Check that users are people, each with a uid of its own."""
    of_ssh = {host.user or slurm.ssh.user for host in (*slurm.fronts, *slurm.workers)}
    uids: dict[int, str] = {}
    for name, user in slurm.users.accounts.items():
        path = ("users", "accounts", name)
        if name in {"root", "nobody", "slurm", *of_ssh}:
            what = "is an account of the hosts, which busbar would change or delete"
            yield Finding(path, what, "remove it")
        if (first := uids.setdefault(user.uid, name)) != name:
            yield Finding((*path, "uid"), f"{user.uid} is also that of {first}", "give each its own")


def _home(slurm: Slurm) -> Iterator[Finding]:
    if (home := slurm.home).nfs is None:
        return
    for key in ("path", "shared"):
        if key in home.model_fields_set:
            yield Finding(
                ("home", key), "given together with home.nfs, whose folder all hosts mount", "remove one"
            )
    if slurm.home_host not in (names := [host.name for host in slurm.fronts]):
        text = f"is none of: {', '.join(names)}"
        yield Finding(("home", "nfs", "host"), text, "name one of these", repr(slurm.home_host))


def _switches(slurm: Slurm) -> Iterator[Finding]:
    """Check that every rail group is below one block, and that names of switches are unique."""
    places = [host.topology for host in slurm.hosts.compute]
    leaves = {place.rail_group for place in places if place.rail_group}
    blocks: dict[str, str | None] = {}
    for index, place in enumerate(places):
        path = ("hosts", "compute", index, "topology")
        for key in ("rail_group", "block"):
            if getattr(place, key) == TOP_SWITCH:
                yield Finding((*path, key), "is the switch above all others", "rename it", repr(TOP_SWITCH))
        if place.block and place.rail_group and place.block in leaves:
            yield Finding((*path, "block"), "is also a rail_group", "rename one", repr(place.block))
        if place.rail_group and blocks.setdefault(place.rail_group, place.block) != place.block:
            yield Finding(
                (*path, "block"), f"rail_group {place.rail_group} is in another block on another host"
            )


def _partitions(slurm: Slurm) -> Iterator[Finding]:
    listed = {pool for each in slurm.partitions.values() for pool in each.pools}
    for name, partition in slurm.partitions.items():
        if name == DEFAULT:
            yield Finding(("partitions", "default"), *_RESERVED)
        for index, pool in enumerate(partition.pools):
            path = ("partitions", name, "pools", index)
            if pool not in slurm.pools:
                hint = did_you_mean(pool, slurm.pools) or f"; expected one of: {', '.join(slurm.pools)}"
                yield Finding(path, f"is not in pools{hint}", found=repr(pool))
            elif pool in partition.pools[:index]:
                yield Finding(path, "is listed twice", found=repr(pool))
    if defaults := [name for name, each in slurm.partitions.items() if each.default][1:]:
        yield Finding(
            ("partitions", defaults[0], "default"), "there is another default partition", "keep one"
        )
    if slurm.partitions and not any(each.default for each in slurm.partitions.values()):
        what = "none is the default, so a job that names no partition is refused"
        yield Finding(("partitions",), what, "set default: true in one")
    yield from _time_limits(slurm)
    for pool in slurm.pools:
        if slurm.partitions and pool not in listed:
            yield Finding(("pools", pool), "is in no partition, so no job can use it", "add it to partitions")


def _time_limits(slurm: Slurm) -> Iterator[Finding]:
    """Check that the jobs of the measurement may run for as long as they ask for."""
    if not slurm.validation.enabled:
        return
    for pool in slurm.pools:
        name = next((name for name, each in slurm.partitions.items() if pool in each.pools), None)
        needed = slurm.validation_of(pool).deadline_seconds
        if name and slurm.partitions[name].max_seconds < needed:
            limit = slurm.partitions[name].max_time
            what = (
                f"is less than the {needed} s of the measurement of pool {pool} (validation.deadline_seconds)"
            )
            yield Finding(("partitions", name, "max_time"), what, "raise it, or lower that", repr(limit))


def _beside(slurm: Slurm, secret_keys: Collection[str], root: Path | None) -> Iterator[Finding]:
    """The checks of the login."""
    yield from checks.login(slurm.ssh, secret_keys, PROJECT)
    if root is not None:
        yield from files.ssh_key(slurm.ssh, root)


CONFIG = ProjectConfig(
    project=PROJECT,
    key=KEY,
    model=Slurm,
    what="the cluster",
    checks=_findings,
    checks_beside=_beside,
    finding=_finding,
    secrets=SECRETS,
)
load, stack_schema = CONFIG.load, CONFIG.schema
