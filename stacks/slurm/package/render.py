"""Slurm's configuration files, as texts, from the configuration and the facts of each host.

slurm.conf(5), gres.conf(5), topology.conf(5), cgroup.conf(5), slurmdbd.conf(5) of Slurm 23.11 to 25.11.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbar.config import Worker
from busbar.hosts import scripts
from busbar.hosts.inventory import Host
from stacks.slurm.package.config import TOP_SWITCH, Slurm

Facts = Mapping[str, Mapping[str, Any]]
"""Host -> the facts that preflight found (stacks.slurm.package.preflight.facts_of)."""

HEAD = "# Written by busbar; a change here is overwritten\n"
HEALTH_PROGRAM = "/usr/local/lib/busbar/slurm-health"
CONTROLLER_PORT = 6817
DATABASE = "slurm_acct_db"
# slurmd drains a node whose memory is below RealMemory, and the kernel reserves more or less by its version.
_MEMORY_SHARE = 0.95
_MEMORY_STEP_MIB = 256
_HEALTH = ("lib", "preflight-hardware", "slurm/health")
_LINK_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_DEFAULT_MEMORY = {"defmempercpu", "defmempergpu", "defmempernode"}
NAMES = ("slurm.conf", "cgroup.conf", "gres.conf", "topology.conf", "plugstack.conf")


def files(slurm: Slurm, facts: Facts) -> dict[str, str]:
    """Name -> text of the files that the controller serves to all hosts; the last two may be empty."""
    return {
        "slurm.conf": slurm_conf(slurm, facts),
        "cgroup.conf": cgroup_conf(facts, slurm),
        "gres.conf": gres_conf(slurm, facts),
        "topology.conf": topology_conf(slurm),
        # The folder in which pyxis' package names its plugin; without pyxis the pattern matches nothing.
        "plugstack.conf": f"{HEAD}include /usr/share/pyxis/*\n" if slurm.container_packages else "",
    }


def hostname(facts: Facts, name: str) -> str:
    """The host name of a host."""
    return str(facts.get(name, {}).get("hostname", name))


def slurm_conf(slurm: Slurm, facts: Facts) -> str:
    """slurm.conf: the cluster, its nodes and partitions."""
    lines = [*_cluster(slurm, facts), *_plugins(slurm, facts), ""]
    given = {name.lower() for name in slurm.parameters}
    lines += [line for line in _defaults(slurm, facts) if line.partition("=")[0].lower() not in given]
    lines += [f"{name}={value}" for name, value in slurm.parameters.items()]
    lines += [_node(slurm, host, facts[host.name]) for host in slurm.hosts.compute]
    memory = {name: real_memory(int(each["memory_bytes"])) for name, each in facts.items() if "cpus" in each}
    for name, partition in slurm.partitions_or_default.items():
        hosts = [host for pool in partition.pools for host in slurm.workers_of(pool)]
        default = "YES" if partition.default else "NO"
        # Slurm accepts one of the three. Without any, a job with one GPU gets all memory of its node.
        shares = [memory[host.name] // slurm.pools[slurm.pool_of(host) or ""].gpus for host in hosts]
        share = "" if given & _DEFAULT_MEMORY else f" DefMemPerGPU={min(shares)}"
        lines.append(
            f"PartitionName={name} Nodes={','.join(host.name for host in hosts)} Default={default} "
            f"MaxTime={_time_limit(partition.max_seconds)} State=UP{share}"
        )
    return HEAD + "\n".join(lines) + "\n"


def _time_limit(seconds: float) -> str:
    """A time limit as Slurm shows it, so that host/controller.sh sees whether somebody has changed it."""
    if math.isinf(seconds):
        return "UNLIMITED"
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:00"


def _cluster(slurm: Slurm, facts: Facts) -> Iterator[str]:
    controller = slurm.hosts.controller
    yield f"ClusterName={slurm.name}"
    yield f"SlurmctldHost={hostname(facts, controller.name)}({controller.address})"
    yield f"SlurmctldPort={CONTROLLER_PORT}"
    yield "SlurmUser=slurm"
    yield "SlurmctldParameters=enable_configless"
    yield "AuthType=auth/slurm"
    yield "CredType=cred/slurm"
    yield "StateSaveLocation=/var/lib/slurm/slurmctld"
    yield "SlurmdSpoolDir=/var/lib/slurm/slurmd"
    yield "SlurmctldLogFile=/var/log/slurm/slurmctld.log"
    yield "SlurmdLogFile=/var/log/slurm/slurmd.log"
    # A returning node registers with its whole configuration and is then usable again.
    yield "ReturnToService=2"
    # A partition that an administrator has closed stays closed when the file is read again.
    yield "ReconfigFlags=KeepPartState"
    # Two limits of a login host must not apply to jobs, which need those of slurmd: RDMA locks memory, and
    # an all-to-all of NCCL over many hosts opens more than 1024 sockets.
    yield "PropagateResourceLimitsExcept=MEMLOCK,NOFILE"
    if slurm.accounting.enabled:
        yield "AccountingStorageType=accounting_storage/slurmdbd"
        yield f"AccountingStorageHost={controller.address}"
    if slurm.health_check.enabled:
        yield f"HealthCheckProgram={HEALTH_PROGRAM}"
        yield f"HealthCheckInterval={slurm.health_check.interval_seconds}"
        yield "HealthCheckNodeState=IDLE"


def _defaults(slurm: Slurm, facts: Facts) -> Iterator[str]:
    """Yield the parameters that a site may set to other values."""
    if slurm.accounting.enabled:
        yield "AccountingStorageTRES=gres/gpu"
    # Debian's packages bring libpmix, without which every srun would fail; SchedMD's do not.
    pmix = slurm.packages == "os" or all(found.get("pmix") for found in facts.values())
    # host/controller.sh writes pmi2 where srun does not list pmix.
    yield "MpiDefault=pmix # where srun lists it" if pmix else "MpiDefault=pmi2"


def _plugins(slurm: Slurm, facts: Facts) -> Iterator[str]:
    yield "GresTypes=gpu"
    yield "SelectType=select/cons_tres"
    yield "SelectTypeParameters=CR_Core_Memory"
    if _has_cgroup_v2(facts, slurm):
        yield "ProctrackType=proctrack/cgroup"
        yield "TaskPlugin=task/cgroup,task/affinity"
        yield "JobAcctGatherType=jobacct_gather/cgroup"
        yield "PrologFlags=Contain"
    else:
        yield "ProctrackType=proctrack/linuxproc"
        yield "TaskPlugin=task/affinity"
        yield "JobAcctGatherType=jobacct_gather/linux"
    if plugin := topology_plugin(slurm):
        yield f"TopologyPlugin={plugin}"


def _has_cgroup_v2(facts: Facts, slurm: Slurm) -> bool:
    """Whether all hosts have cgroup v2. Slurm has one setting for all: with one on v1 nothing is limited."""
    return all(facts[host.name].get("cgroup") == "v2" for host in slurm.hosts.compute)


def _node(slurm: Slurm, host: Worker, found: Mapping[str, Any]) -> str:
    cpus, sockets, cores, threads = (int(found[key]) for key in ("cpus", "sockets", "cores", "threads"))
    shape = f"CPUs={cpus}"
    # In a container, or with CPUs that are off, the numbers of sockets, cores and threads include other CPUs.
    if sockets * cores * threads == cpus:
        shape = f"Sockets={sockets} CoresPerSocket={cores} ThreadsPerCore={threads}"
    known_as = found.get("hostname", host.name)
    return (
        f"NodeName={host.name} NodeHostname={known_as} NodeAddr={host.address} {shape} "
        f"RealMemory={real_memory(int(found['memory_bytes']))} Gres={gres(slurm, host)}"
    )


def real_memory(memory_bytes: int) -> int:
    """RealMemory in MiB, below the kernel's value, and equal for hosts that differ a little."""
    usable = int(memory_bytes / 2**20 * _MEMORY_SHARE)
    return max(usable // _MEMORY_STEP_MIB * _MEMORY_STEP_MIB, _MEMORY_STEP_MIB)


def gres(slurm: Slurm, host: Worker) -> str:
    """The Gres of a node: `gpu:h100:8`, or `gpu:8` if the pool does not name its GPU."""
    pool = slurm.pools[slurm.pool_of(host) or ""]
    return ":".join(filter(None, ["gpu", _gpu_type(pool.gpu_model), str(pool.gpus)]))


def _gpu_type(model: str | None) -> str:
    """The GPU model as a type of Slurm: `nvidia_h100`."""
    return "".join(each if each.isalnum() else "_" for each in (model or "").lower())


def gres_conf(slurm: Slurm, facts: Facts) -> str:
    """gres.conf: the device files of each node, as many as preflight counted."""
    lines = []
    for host in slurm.hosts.compute:
        pool = slurm.pools[slurm.pool_of(host) or ""]
        kind = f" Type={_gpu_type(pool.gpu_model)}" if pool.gpu_model else ""
        devices = bracketed(facts[host.name]["gpu_minors"][: pool.gpus])
        lines.append(f"NodeName={host.name} Name=gpu{kind} File=/dev/nvidia{devices}")
    return HEAD + "\n".join(lines) + "\n"


def bracketed(numbers: Sequence[int]) -> str:
    """Numbers as ranges: `[0-3,6]` for 0, 1, 2, 3 and 6."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return f"[{','.join(str(a) if a == b else f'{a}-{b}' for a, b in spans)}]"


def cgroup_conf(facts: Facts, slurm: Slurm) -> str:
    """cgroup.conf: jobs get their own cores, memory and devices only."""
    if not _has_cgroup_v2(facts, slurm):
        return f"{HEAD}# A compute host has cgroup v1: nothing is constrained\nCgroupPlugin=disabled\n"
    return f"{HEAD}CgroupPlugin=cgroup/v2\nConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"


def topology_plugin(slurm: Slurm) -> str | None:
    """block if all compute hosts are in NVLink domains, tree if some are below switches, else None."""
    places = [host.topology for host in slurm.hosts.compute]
    if all(place.nvlink_domain for place in places):
        return "topology/block"
    return "topology/tree" if any(place.rail_group or place.block for place in places) else None


def topology_conf(slurm: Slurm) -> str:
    """topology.conf: the switches above each node, or the NVLink domains; empty without either."""
    plugin = topology_plugin(slurm)
    if plugin is None:
        return ""
    lines = _blocks(slurm) if plugin == "topology/block" else _switches(slurm)
    return HEAD + "\n".join(lines) + "\n"


def _blocks(slurm: Slurm) -> Iterator[str]:
    domains: dict[str, list[str]] = {}
    for host in slurm.hosts.compute:
        domains.setdefault(host.topology.nvlink_domain or "", []).append(host.name)
    for domain, nodes in domains.items():
        yield f"BlockName={domain} Nodes={','.join(nodes)}"
    yield f"BlockSizes={min(map(len, domains.values()))}"


def _switches(slurm: Slurm) -> Iterator[str]:
    """Leaves, switches above them, and one above all; hosts without a place share their own leaf."""
    leaves: dict[str, list[str]] = {}
    spines: dict[str, list[str]] = {}
    for host in slurm.hosts.compute:
        place = host.topology
        leaf = place.rail_group or place.block or "unknown"
        leaves.setdefault(leaf, []).append(host.name)
        spine = place.block if place.block and place.rail_group else TOP_SWITCH
        if leaf not in (below := spines.setdefault(spine, [])):
            below.append(leaf)
    yield from (f"SwitchName={leaf} Nodes={','.join(nodes)}" for leaf, nodes in leaves.items())
    top = spines.pop(TOP_SWITCH, [])
    yield from (f"SwitchName={spine} Switches={','.join(below)}" for spine, below in spines.items())
    if len(spines) + len(top) > 1:
        yield f"SwitchName={TOP_SWITCH} Switches={','.join([*spines, *top])}"


def slurmdbd_conf(slurm: Slurm, facts: Facts, password: str) -> str:
    """slurmdbd.conf of the accounting daemon, with the password of the database."""
    controller = slurm.hosts.controller
    return (
        f"{HEAD}AuthType=auth/slurm\nDbdHost={hostname(facts, controller.name)}\n"
        f"DbdAddr={controller.address}\nSlurmUser=slurm\nLogFile=/var/log/slurm/slurmdbd.log\n"
        "PidFile=/run/slurmdbd/slurmdbd.pid\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\n"
        f"StoragePass={password}\nStorageLoc={DATABASE}\n"
    )


def quarantine(slurm: Slurm) -> str:
    """A line per node that no job may start on: `NODE REASON`."""
    return "".join(f"{name} {reason}\n" for name, reason in slurm.quarantine.items())


def users(slurm: Slurm) -> str:
    """Lines `user NAME UID`, each followed by `key TEXT` for its keys; empty where busbar creates none."""
    if not slurm.users.create:
        return ""
    lines = [
        line
        for name, user in slurm.users.accounts.items()
        for line in (f"user {name} {user.uid}", *(f"key {key}" for key in user.ssh_keys))
    ]
    return "".join(f"{line}\n" for line in lines)


def health(slurm: Slurm, host: Host) -> str:
    """HealthCheckProgram: host/health.sh with the numbers of its pool; empty where none is wanted."""
    if not slurm.health_check.enabled:
        return ""
    pool = slurm.pools[host.pool or ""]
    transport = slurm.validation_of(host.pool or "").required_transport
    values = {
        "HEALTH_NODE": host.name,
        "HEALTH_GPUS": str(pool.gpus),
        "HEALTH_RAILS": str(pool.rails),
        "HEALTH_RATE": f"{pool.rate_gbps:.0f}",
        "HEALTH_LINK_LAYER": _LINK_LAYERS[pool.link_layer],
        "HEALTH_IGNORED": " ".join(pool.ignore_hcas),
        "HEALTH_PEERMEM": str(transport == "gpudirect-rdma").lower(),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(["#!/usr/bin/env bash", "# Written by busbar", *lines, *map(scripts.part, _HEALTH)])
