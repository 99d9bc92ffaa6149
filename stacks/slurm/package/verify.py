"""Finds differences between Slurm's hosts and the last update, and nodes that start no jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from busbar.fabric.slurm import SCRIPT, SCRIPT_SECONDS, overdue, why_unusable
from busbar.finding import Finding
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.operations.verify import drained, drift, verify_hosts
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.preflight import hosts_of
from stacks.slurm.package.render import HEALTH_PROGRAM

# The reason that host/health.sh writes. RESUME only ends such a drain if the host was repaired.
HEALTH_REASON = "busbar health:"
RESUME = (
    f"when its repair is done, on {{name}}: {HEALTH_PROGRAM} && "
    "scontrol update nodename={name} state=resume"
)
COMPLETING = (
    "scontrol update nodename={name} state=down reason=completing, which also ends other jobs there; then "
    "reboot {name}: its node is back when slurmd has started"
)
# The reason that host/node.sh writes.
COMMAND_REASON = "busbar drain:"
# The reasons that host/controller.sh writes.
UPDATE_REASONS = ("busbar: removed", "busbar: quarantine:")
# The author in host/slurm-job.sh's output if Slurm itself has drained the node.
SLURMCTLD = "slurmctld"
# States of a node in a reservation, which hide no drain. A person has made it, and no update ends it.
RESERVED = ("maint", "reserved")


@dataclass(frozen=True)
class Nodes:
    """The answer of slurmctld. `nodes`: node -> its state, reason and the reason's author.

    `completing`: node -> the job that has ended and whose processes have not, and how many seconds ago.
    """

    nodes: Mapping[str, Mapping[str, str]]
    completing: Mapping[str, tuple[str, float]]

    def overdue(self, name: str, slurm: Slurm) -> str:
        """The reason why the last job does not leave a node; empty if none is late."""
        return overdue(*self.completing[name], slurm.parameters) if name in self.completing else ""


async def verify(slurm: Slurm, login: Login, install_id: str = "") -> list[Finding]:
    """All differences. Fails closed: everything that could not be verified is in the list.

    Raises ValueError if the SSH key cannot be used, ScriptError if the bastion cannot be reached.
    """
    controller, *_ = listed = hosts_of(slurm)
    async with Hosts.open(login) as hosts:
        found, _ = await verify_hosts(
            hosts,
            listed,
            lambda host: {
                **{"NODE_NAME": host.name, "ROLE": "units", "UNITS": " ".join(units(slurm, host))},
                "INSTALL_ID": install_id,
                "NFS": str(host.name == slurm.home_host).lower(),
            },
        )
        try:
            nodes = await read_nodes(hosts, controller)
        except (ScriptError, UnreachableError) as error:
            what = f"slurmctld cannot be asked: {error.finding.what}"
            return [*found, replace(error.finding, what=what, kind="unknown")]
    return [*found, *compare(slurm, nodes)]


async def read_nodes(hosts: Hosts, controller: Host) -> Nodes:
    """The nodes as slurmctld knows them. Raises ScriptError, UnreachableError."""
    values = {"NODE_NAME": controller.name, "VERB": "nodes"}
    return Nodes(**await hosts.run(controller, SCRIPT, values, seconds=SCRIPT_SECONDS))


def units(slurm: Slurm, host: Host) -> tuple[str, ...]:
    """The units that must run on a host; a mount has its path in the form of systemd-escape(1)."""
    mounts = slurm.home_host not in (None, host.name)
    home = (slurm.home.folder[1:].replace("-", r"\x2d").replace("/", "-") + ".mount",) if mounts else ()
    if host.role == "worker":
        return ("slurmd", *home)
    if host.name != slurm.hosts.controller.name:
        return ("sackd", *home)
    return ("slurmctld", *(("slurmdbd", "mariadb") if slurm.accounting.enabled else ()), *home)


def compare(slurm: Slurm, known: Nodes) -> Iterator[Finding]:
    """The nodes that start no jobs but are not in quarantine, those that do but are in quarantine, and those
    that a job does not leave."""
    controller = slurm.hosts.controller.name
    for host in slurm.hosts.compute:
        if late := known.overdue(host.name, slurm):
            fix = COMPLETING.format(name=host.name)
            yield Finding((host.name,), late, fix, kind="site")
        found = known.nodes.get(host.name)
        why = why_unusable(found)
        reserved = found is not None and found["state"].lower() in RESERVED
        set_down = found is not None and _is_set_down(found)
        if host.quarantine and (not why or reserved or set_down):
            yield drift(controller, f"node {host.name} is in quarantine and not drained")
        elif found and (why.startswith(("drain", "fail")) or set_down):
            if not host.quarantine:
                yield _drain(controller, host.name, why, found)
        elif why and not reserved:
            yield drift(host.name, f"its node is {why}")


def _is_set_down(found: Mapping[str, str]) -> bool:
    """Return whether a person has set the node down; its slurmd responds, and host/member.sh leaves it so."""
    by_slurm = found["by"] in (SLURMCTLD, "slurm")
    return found["state"].lower() == "down" and bool(found["reason"]) and not by_slurm


def _drain(controller: str, name: str, why: str, found: Mapping[str, str]) -> Finding:
    """The drain of a node, by its author. No update ends a drain by a person or by the health check."""
    if found["reason"].startswith(COMMAND_REASON):
        return drained(name, f"its node is {why}")
    if found["reason"].startswith(HEALTH_REASON):
        return replace(drained(name, f"its node is {why}"), fix=RESUME.format(name=name))
    if found["by"] == SLURMCTLD:
        return drift(name, f"its node is {why}")
    if found["reason"].startswith(UPDATE_REASONS):
        return drift(controller, f"node {name} is {why}, and not in the configuration")
    fix = f"when the cause is repaired: scontrol update nodename={name} state=resume"
    return Finding((name,), f"its node is {why}", fix, kind="foreign")
