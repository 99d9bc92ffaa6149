"""The commands of the core on the hosts of a stack (busbar.cli.operation.Operations)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from busbar.cli.before import end_preflight
from busbar.cli.ending import when_interrupted
from busbar.cli.engine import stop_on_sigterm
from busbar.cli.output import progress
from busbar.cli.stackfile import install_id, login_of, owner_id
from busbar.config import Ssh, stackfile
from busbar.config.findings import did_you_mean
from busbar.config.stackfile import StackFile
from busbar.exits import Failed, Misuse, NoVerdict
from busbar.fabric.commands.diagnose import (
    FOLDER,
    KEPT,
    edit_quarantines,
    measure_paths,
    one_pool,
    run,
    show_paths,
)
from busbar.fabric.commands.measure import asked, by_slurm
from busbar.fabric.diagnosis import Scope
from busbar.fabric.diagnosis.quarantine import reasons
from busbar.fabric.diagnosis.stages import places_of
from busbar.fabric.slurm import SCRIPT, SCRIPT_SECONDS, why_unusable
from busbar.finding import shown
from busbar.hosts.host_keys import Offer, listed
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.kube.wait import Deadline, Pending, SystemClock, TimedOut, wait_until
from busbar.manifests.artifacts import Artifact, Needs
from busbar.operations.lock import requester
from busbar.operations.verify import UNKNOWN, Verified, Workers
from busbar.preflight.output import lines
from busbar.preflight.survey import Outcome
from busbar.versions import NEVER_RUN
from stacks.slurm.package import config, job
from stacks.slurm.package import measure as measurement
from stacks.slurm.package import verify as drift
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.diagnosis import BySbatch
from stacks.slurm.package.outputs import too_few
from stacks.slurm.package.preflight import Spec, hosts_of, spec_of, survey
from stacks.slurm.package.reach import over_ssh

Answer = TypeVar("Answer")

POLL_SECONDS = 3.0
# The packages of the hosts' own system that were run, and where.
RAN = "that of Debian 13, in the lab, 2026-11-29"
# How long a node may take until it is usable again, in seconds.
READY_SECONDS = 300
# How long host/node.sh waits for the end of jobs, with its questions.
END_JOBS_SECONDS = 200
# States of sinfo(1) of a node with jobs.
WITH_JOBS = ("allocated", "completing", "draining", "failing", "mixed")
ROLES = {"controller": "lb", "login": "lb", "compute": "worker"}


def verify(path: Path) -> Verified:
    """Compare all hosts with what the last update applied, and list nodes that start no jobs."""
    slurm, file = config.read(path)
    found = asyncio.run(drift.verify(slurm, login_of(file, slurm.ssh), owner_id(file)))
    roles = {slurm.hosts.controller.name: "controller"} | {host.name: "login" for host in slurm.hosts.login}
    rows = [(host.name, roles.get(host.name, "compute")) for host in hosts_of(slurm)]
    return Verified(rows, found)


def keepers(path: Path) -> tuple[Login, Sequence[Host]]:
    """The login, and the controller, which keeps copies of the state."""
    slurm, file = config.read(path)
    return login_of(file, slurm.ssh), hosts_of(slurm)[:1]


def host_keys(path: Path) -> tuple[StackFile, tuple[Ssh, list[Offer]]]:
    """The file, whose other sections may be invalid, and its hosts."""
    file = stackfile.read(path, config.PROJECT, config.KEY, config.SECRETS)
    return file, listed(file.with_hosts(config.ROLES), config.Hosts, ROLES)


def preflight(path: Path) -> tuple[Spec, Outcome]:
    """Query all hosts; nothing is changed."""
    spec = _spec(*config.read(path))
    return spec, asyncio.run(survey(spec, {}))


def needs(path: Path) -> Needs:
    """The packages that host/*.sh install, and the image of the measurement; no host is asked."""
    slurm, _ = config.read(path)
    names = {"slurmctld": "controller", "slurmd": "compute hosts", "client": "all hosts"}
    names |= {"sackd": "login hosts"} if slurm.hosts.login else {}
    names |= {"slurmdbd": "accounting"} if slurm.accounting.enabled else {}
    if slurm.packages == "os":
        found = {"slurm-client" if name == "client" else name: use for name, use in names.items()}
        found |= {"slurm-wlm-mysql-plugin": "accounting"} if slurm.accounting.enabled else {}
    else:
        files = f"{slurm.packages}/slurm-smd"
        found = {f"{files}-{name}_*.deb": use for name, use in names.items()}
        found |= {f"{files}_*.deb": "all hosts"}
    found |= {"mariadb-server": "accounting"} if slurm.accounting.enabled else {}
    ran = {name for name in found if "/" not in name}
    found |= {"nfs-kernel-server": "home.nfs"} if slurm.home.nfs else {}
    found |= {f"{slurm.container_packages}/*.deb": "container_packages"} if slurm.container_packages else {}
    made = Needs(
        [Artifact("package", name, use, run=RAN if name in ran else NEVER_RUN) for name, use in found.items()]
    )
    if image := slurm.validation.image:
        made.artifacts.append(Artifact("image", image, "NCCL validation"))
    elif slurm.validation.enabled:
        made.artifacts.append(Artifact("binary", "nccl-tests", "NCCL validation, on the compute hosts"))
    return made


def nodes(path: Path) -> Workers:
    """Query the compute hosts, and slurmctld for the states of their nodes."""
    slurm, file = config.read(path)
    whole = _spec(slurm, file)
    spec = whole.model_copy(update={"hosts": tuple(host for host in whole.hosts if host.role == "worker")})
    outcome = asyncio.run(survey(spec, {}))
    try:
        found = _ask(spec.login, lambda hosts: drift.read_nodes(hosts, whole.hosts[0]))
    except (ScriptError, UnreachableError) as error:
        problem = replace(error.finding, what=f"slurmctld cannot be asked: {error.finding.what}")
        outcome = replace(outcome, findings=[*outcome.findings, problem])
        return Workers(spec, outcome, {host.name: UNKNOWN for host in spec.hosts})
    names = [host.name for host in spec.hosts]
    bad = {name: why_unusable(found.nodes.get(name)) or found.overdue(name, slurm) for name in names}
    states = {name: why or found.nodes[name]["state"] for name, why in bad.items()}
    return Workers(spec, outcome, states, [states[name] for name, why in bad.items() if not why])


def drain(path: Path, host: str, reason: str, *, end_jobs: bool) -> str:
    """Drain a node with the reason, and wait for its jobs. A drain of somebody else keeps its reason."""
    slurm, file = config.read(path)
    node = _Node(slurm, file, host)
    text = f"{' '.join(reason.split())} ({requester()})"
    first = node.ask("drain", REASON=text, END_JOBS=str(end_jobs).lower())
    progress(f"{host} is drained: {text}" if first["ours"] else _of_others(host, first))

    def idle() -> bool | Pending:
        found = node.ask("show")
        if first["ours"] and not found["ours"]:
            what = f"{host} is {found['state']} and not drained any more"
            raise Failed(f"{what}. Fix: busbar verify {shown(file.stack)}")
        return Pending(f"draining; remaining jobs: {found['jobs']}") if found["jobs"] else True

    fix = "run it again, with --end-jobs to cancel the jobs"
    if first["ours"]:
        fix += f", or busbar uncordon {shown(file.stack)} {host}"
    stays = f"; {host} stays drained. Fix: {fix}"
    try:
        with when_interrupted(stays):
            node.wait(idle, slurm.removal.timeout_seconds)
    except TimedOut as error:
        raise Failed(f"{error}{stays}") from None
    if first["ours"]:
        return f"{host} is drained; when its repair is done: busbar uncordon {shown(file.stack)} {host}"
    return f"{host} has no jobs; busbar uncordon will leave it as it is"


def uncordon(path: Path, host: str) -> str:
    """End a drain of `busbar drain` if the host passes preflight, and wait until the node starts jobs."""
    slurm, file = config.read(path)
    node = _Node(slurm, file, host)
    if host in slurm.quarantine:
        fix = f"take out that line, then busbar up {shown(file.stack)}"
        raise Failed(f"{host} is in quarantine in {path.name}, and stays drained. Fix: {fix}")
    if errors := asyncio.run(survey(node.spec, {})).errors:
        raise Failed(f"{'; '.join(text for _, text in lines(errors))}; {host} stays drained")
    if not node.runs_slurmd():
        again = f"busbar up {shown(file.stack)} --converge {host}"
        raise Failed(f"slurmd is not running; {host} stays drained. Fix: {again}")
    found = node.ask("uncordon")
    if not found["ours"]:
        text = _of_others(host, found) if why_unusable(found) else f"{host} is {found['state']}, not drained"
        raise Failed(f"{text}. Fix: busbar verify {shown(file.stack)}")

    def usable() -> bool | Pending:
        why = why_unusable(node.ask("show"))
        return Pending(f"{host} is {why}") if why else True

    node.wait(usable, READY_SECONDS)
    return f"{host} is back: jobs can start there"


def running_jobs(path: Path, ends: bool) -> list[str]:
    """The question of a destroy (busbar.capability.Capability.jobs). Raises NoVerdict without an answer."""
    slurm, file = config.read(path)
    controller = hosts_of(slurm)[0]
    values = {"NODE_NAME": controller.name, "VERB": "jobs", "END_JOBS": str(ends).lower()}

    def ask(hosts: Hosts) -> Coroutine[Any, Any, dict[str, Any]]:
        return hosts.run(controller, "slurm/node", values, seconds=END_JOBS_SECONDS)

    try:
        jobs = _ask(login_of(file, slurm.ssh), ask)["jobs"]
    except (ScriptError, UnreachableError) as error:
        if ends and isinstance(error, UnreachableError):
            progress(f"warning: the controller cannot be asked for jobs: {error}")
            return []
        what = f"it is unknown whether jobs run: {error}; nothing was removed"
        fix = f"set removal.cancel_jobs: true in {path.name}, which goes on without an answer, then retry"
        raise NoVerdict(what, fix) from None
    return [f"job {job}" for job in jobs.split(",") if job]


def _of_others(host: str, found: Mapping[str, str]) -> str:
    return f"{host} is {found['state']} for another reason, and stays so: {found['reason']}"


def measure(
    path: Path,
    pool: str | None = None,
    nodes: str | None = None,
    *,
    idle: bool = False,
    minutes: int | None = None,
    as_json: bool = False,
) -> int:
    """Measure pools by jobs of Slurm, record and print the results. Returns the exit code."""
    whole, file = config.read(path)
    if idle:
        fix = "leave it out: the job is pending while its nodes are busy (validation.when_busy)"
        raise Misuse(f"--idle is for K3s. Fix: {fix}")
    slurm = _part(whole, pool, nodes, minutes)
    stop_on_sigterm()
    with when_interrupted("; the job is cancelled"):
        login = login_of(file, slurm.ssh)
        spec = spec_of(slurm, login)
        outcome = asyncio.run(survey(spec, {}, is_installed=True))
        end_preflight(spec, outcome)
        facts = {host: record.facts for host, record in outcome.records.items()}
        now = datetime.now(UTC).isoformat()

        def run_job(pool: str, folder: Path) -> dict[str, Any]:
            request = job.measure_spec(slurm, pool, facts, str(folder), again=now)
            of_pool = measurement.MeasureSpec.model_validate({**request, "login": login})
            return measurement.collect(of_pool, SystemClock(), progress)

        return by_slurm(path, slurm.name, slurm.pools, run_job, partial(too_few, slurm), as_json=as_json)


def diagnose(
    path: Path, pool: str | None, nodes: str | None, *, as_json: bool, quarantine: bool, release: bool
) -> int:
    """Find what is slow in a pool by jobs of Slurm, and print it. Returns the exit code."""
    slurm, file = config.read(path)
    if release:
        fix = (
            f"take out the line `quarantine`, busbar up {shown(file.stack)}, then the same without --release"
        )
        raise Misuse(f"--release is for K3s: Slurm starts no jobs in quarantine. Fix: {fix}")
    controller, *others = hosts_of(slurm)
    hosts = [host for host in others if host.pool]
    chosen, named = one_pool([*slurm.pools], hosts, pool, nodes)
    _refuse_quarantined(slurm, named or [])
    held = {host.name: host.quarantine for host in slurm.workers_of(chosen) if host.quarantine}
    for name, why in held.items():
        progress(f"left out: {name} is in quarantine: {why}")
    usable = [host.name for host in hosts if host.pool == chosen and host.name not in held]
    if not usable:
        raise Misuse(f"pool {chosen} has no hosts to diagnose: all are in quarantine. Fix: end one")
    scope = Scope(
        pool=chosen,
        nodes=tuple(named or usable),
        hardware=slurm.pools[chosen],
        validation=slurm.validation_of(chosen),
        places=places_of(slurm.workers),
        folder=file.project / ".busbar" / file.stack / chosen / FOLDER,
    )
    stop_on_sigterm()
    with when_interrupted(KEPT), over_ssh(login_of(file, slurm.ssh), controller, hosts) as reach:
        runner = BySbatch(slurm, scope, reach, SystemClock(), progress)
        _, found = run(runner, scope, file.stack, as_json=as_json)
    if quarantine:
        section = f"{config.PROJECT}:{config.KEY}"
        changes = {node: (None, why) for node, why in reasons(found, slurm).items()}
        edit_quarantines(file, changes, section=section, role="compute")
    return found.exit_code


def paths(path: Path, pool: str | None, nodes: str | None, *, as_json: bool) -> int:
    """Measure the paths of a pool over SSH, and print them. Returns the exit code.

    Raises NoVerdict while jobs hold its nodes, and ScriptError, UnreachableError without slurmctld's answer.
    """
    slurm, file = config.read(path)
    spec = _spec(slurm, file)
    workers = [host for host in spec.hosts if host.pool]
    chosen, named = one_pool([*slurm.pools], workers, pool, nodes)
    held = {host.name for host in slurm.workers_of(chosen) if host.quarantine}
    names = named or [host.name for host in workers if host.pool == chosen and host.name not in held]
    known = _ask(spec.login, lambda hosts: drift.read_nodes(hosts, spec.hosts[0])).nodes
    states = {name: known[name]["state"].lower() for name in names if name in known}
    busy = [f"jobs on {name} ({state})" for name, state in states.items() if state.startswith(WITH_JOBS)]
    return show_paths(file.stack, chosen, measure_paths(spec, names, slurm.workers, busy), as_json)


def _part(slurm: Slurm, pool: str | None, nodes: str | None, minutes: int | None) -> Slurm:
    """The cluster with the pools and compute hosts that are to be measured. Bad usage ends with 64."""
    chosen = asked([*slurm.pools], [host for host in hosts_of(slurm) if host.pool], pool, nodes)
    pools = {name: slurm.pools[name] for name in chosen}
    hosts = [host for host in slurm.hosts.compute if slurm.pool_of(host) in pools]
    if nodes is not None:
        [names] = filter(None, chosen.values())
        hosts = [host for host in hosts if host.name in names]
        _refuse_quarantined(slurm, names)
    part = {"pools": pools, "hosts": slurm.hosts.model_copy(update={"compute": hosts})}
    if minutes:
        seconds = min(slurm.validation.deadline_seconds, 60 * minutes)
        part["validation"] = slurm.validation.model_copy(update={"deadline_seconds": seconds})
    return slurm.model_copy(update=part)


def _refuse_quarantined(slurm: Slurm, names: Sequence[str]) -> None:
    if held := [name for name in names if name in slurm.quarantine]:
        what = f"--nodes: in quarantine, where Slurm starts no jobs: {', '.join(held)}"
        raise Misuse(f"{what}. Fix: end it first")


class _Node:
    """A compute host of a stack, and its node in Slurm; `spec`: preflight's, of this host alone."""

    def __init__(self, slurm: Slurm, file: StackFile, name: str) -> None:
        names = [host.name for host in slurm.hosts.compute]
        if name not in names:
            what = f"{name} is not a compute host of {file.path.name}{did_you_mean(name, names)}"
            raise Misuse(what, f"name one of {', '.join(names)}")
        spec = _spec(slurm, file)
        self.controller, self.name = spec.hosts[0], name
        self.spec = spec.model_copy(update={"hosts": tuple(each for each in spec.hosts if each.name == name)})

    def ask(self, verb: str, **values: str) -> dict[str, Any]:
        """The facts of host/node.sh. Raises ScriptError, UnreachableError."""
        return self._run(self.controller, "slurm/node", {"NODE": self.name, "VERB": verb, **values})

    def runs_slurmd(self) -> bool:
        """Whether slurmd runs there, which slurmctld may not have noticed yet. Raises as `ask`."""
        return bool(self._run(self.spec.hosts[0], SCRIPT, {"VERB": "daemon"})["active"])

    def _run(self, host: Host, script: str, values: Mapping[str, str]) -> dict[str, Any]:
        given = {"NODE_NAME": host.name, **values}
        return _ask(self.spec.login, lambda hosts: hosts.run(host, script, given, seconds=SCRIPT_SECONDS))

    def wait(self, condition: Callable[[], bool | Pending], seconds: float) -> None:
        """Wait for a condition; a query that fails counts as Pending. Raises TimedOut."""

        def look() -> bool | Pending:
            try:
                return condition()
            except (ScriptError, UnreachableError) as error:
                return Pending(f"the controller is not responding: {error}")

        wait_until(look, Deadline(SystemClock(), seconds), poll_seconds=POLL_SECONDS, progress=progress)


def _ask(login: Login, ask: Callable[[Hosts], Coroutine[Any, Any, Answer]]) -> Answer:
    """The answer of one query. Raises ScriptError, UnreachableError, and ValueError for an unusable key."""

    async def answer() -> Answer:
        async with Hosts.open(login) as hosts:
            return await ask(hosts)

    return asyncio.run(answer())


def _spec(slurm: Slurm, file: StackFile) -> Spec:
    """The spec of preflight. Raises SecretError."""
    return spec_of(slurm, login_of(file, slurm.ssh)).model_copy(update={"install_id": install_id(file)})
