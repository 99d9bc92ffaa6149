"""The stages: each writes its evidence. A new one is an entry of STAGES, and its kinds in rows.py."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.config.stackfile import StackFile
from busbar.exits import NoVerdict
from busbar.hosts import scripts
from busbar.hosts.finding import Finding
from busbar.hosts.inventory import Inventory as HostInventory
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, wait_until
from busbar.preflight.query import Answer, query
from busbar.preflight.survey import CONCURRENT, query_all
from busbar.text import counted, listed
from stacks.accept.package.evidence import FOLDER, HOSTS, LOG_FILES, STAGE, TIME, Inventory, Stage, write_json
from stacks.accept.package.rows import RUNS
from stacks.accept.package.site import COLLECTIVES, Site, validation_of

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.fabric.measure import Plan
    from busbar.hosts.host import Host
    from busbar.hosts.remote import Hosts
    from busbar.kube.client import RestApi
    from busbar.preflight.spec import Spec

# Seconds of a preflight of CONCURRENT hosts; of the start of all pods, at 440 nodes; and of one collective
# with the start of its ranks, at 3,520.
HOSTS_SECONDS, START_SECONDS, RUN_SECONDS = 60, 120, 45
# How long a stage waits for GPUs that pods hold, unless validation.when_busy is `wait`.
PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Running:
    """A run on its way: where its evidence goes, and what it works on."""

    folder: Path
    run: str
    site: Site
    file: StackFile
    cluster: Cluster
    idle: bool
    say: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)

    @cached_property
    def spec(self) -> Spec:
        """The spec of preflight, with the login. Raises SecretError."""
        from busbar.cli.preflight import spec_of_stack

        return spec_of_stack(self.file, self.cluster)

    @cached_property
    def api(self) -> RestApi:
        """A client of the cluster. Raises SecretError and UnknownState."""
        from busbar.cli.stackfile import cluster_api

        return cluster_api(self.file, self.cluster)

    def at(self, stage: str) -> Path:
        """The folder of a stage's evidence."""
        return self.folder / FOLDER / stage


def now() -> str:
    """The time."""
    return datetime.now(UTC).strftime(TIME)


def inventory(on: Running) -> dict[str, str]:
    """Ask every worker that is not in quarantine; nothing is changed."""
    workers = {name for pool in on.site.pools.values() for name in pool.workers}
    hosts = [host for host in on.spec.hosts if host.name in workers]
    also = scripts.part("accept/inventory")

    async def ask(hosts: Hosts, host: Host) -> Answer | Finding:
        return await query(hosts, host, on.spec.values(host), also=also)

    answers = asyncio.run(query_all(on.spec.login, on.spec.hosts, hosts, ask))
    found = Inventory(
        run=on.run,
        hosts={name: each.report for name, each in answers.items() if isinstance(each, Answer)},
        failed={name: each.what for name, each in answers.items() if isinstance(each, Finding)},
    )
    if not found.hosts:
        raise NoVerdict(
            f"no worker answers: {listed([f'{name}: {why}' for name, why in found.failed.items()])}"
        )
    write_json(on.at("inventory") / HOSTS, found.model_dump(mode="json"))
    return {}


def fabric(stage: str, runs: Sequence[str], env: Mapping[str, str], on: Running) -> dict[str, str]:
    """Measure over all healthy nodes, in one job per pool, and keep its log. Raises NoVerdict."""
    from busbar.fabric.measure import LeftBehind, clean, measure

    pools = on.site.pools
    notes = {name: "every worker is in quarantine" for name, pool in pools.items() if not pool.workers}
    jobs = {name: f"{on.run}-{stage[0]}{number}" for number, name in enumerate(pools) if name not in notes}
    # A killed process may have left a job.
    limit = Deadline(on.clock, PATIENCE_SECONDS)
    wait_until(lambda: clean(on.api, [*jobs.values()], None, on.clock, on.say), limit, poll_seconds=2)
    for pool, job in jobs.items():
        on.say(f"pool {pool}: {counted(len(runs), 'run')} of nccl-tests")
        folder, home = on.at(stage) / pool, on.file.project / ".busbar" / on.file.stack
        planned = _plan(on, pool, job, runs, env)
        try:
            measure(
                on.api, planned, str(folder), on.clock, on.say, options=f" --kubeconfig {home}/kubeconfig"
            )
        except LeftBehind as left:
            on.say(f"warning: {left}")
        # The verdict and its page are made again from the log.
        for path in folder.iterdir():
            if path.name not in LOG_FILES:
                path.unlink()
    return notes


def _plan(on: Running, pool: str, job: str, runs: Sequence[str], env: Mapping[str, str]) -> Plan:
    """The job on all healthy nodes of the pool, as soon as they are free."""
    from busbar.fabric.measure import CannotMeasure, plan_pool, read_facts
    from busbar.manifests.nccljob import TopologyFile

    validation = validation_of(on.cluster.validation_of(pool), runs, NCCL_RUN_DIAGNOSTICS="1", **env)
    file = validation.topology_file and on.file.project / validation.topology_file
    more: dict[str, Any] = {
        "validation": validation,
        "topology": TopologyFile.read(job, file) if file else None,
    }
    inventory = HostInventory.of(on.cluster)

    def look() -> Plan | Pending:
        facts = read_facts(on.api, None, idle=on.idle)
        found = plan_pool(facts, inventory, pool, job, idle=on.idle, partly=True, **more)
        held = len(inventory.usable_of(pool)) - len(found.job.nodes) - len(found.missing)
        if held and not on.idle:
            return Pending(f"pods hold GPUs of {counted(held, 'node')}: {'; '.join(found.notes)}")
        if not found.job.nodes:
            raise CannotMeasure([f"pool {pool}: no node can run the job", *found.missing])
        return found

    seconds = validation.busy_deadline_seconds if validation.when_busy == "wait" else PATIENCE_SECONDS
    return wait_until(look, Deadline(on.clock, seconds), poll_seconds=10, progress=on.say)


@dataclass(frozen=True)
class Planned:
    """A stage. `run` returns pool -> why it was not run there. `seconds`: of a pool with so many nodes."""

    name: str
    run: Callable[[Running], dict[str, str]]
    holds_gpus: bool
    seconds: Callable[[int], int]


def _measuring(stage: str, runs: Sequence[str], **env: str) -> Planned:
    seconds = START_SECONDS + RUN_SECONDS * len(runs)
    return Planned(stage, partial(fabric, stage, runs, env), True, lambda nodes: seconds)


STAGES = (
    Planned("inventory", inventory, False, lambda nodes: HOSTS_SECONDS * -(-nodes // CONCURRENT)),
    # The first run of each has full proof; the others have warnings only, or the logs would have GB.
    _measuring("collectives", COLLECTIVES),
    _measuring("repeats", [name for name in COLLECTIVES for _ in range(RUNS[name] - 1)], NCCL_DEBUG="WARN"),
)


def run_stage(planned: Planned, on: Running) -> None:
    """Run a stage that has not ended, from its beginning, and mark its end. Raises NoVerdict."""
    folder, began = on.at(planned.name), now()
    shutil.rmtree(folder, ignore_errors=True)
    on.say(f"stage {planned.name}")
    try:
        notes = planned.run(on)
    except NoVerdict as error:
        again = f"busbar accept run {on.site.stack} continues here"
        raise NoVerdict(f"stage {planned.name}: {error}; {again}") from error
    ended = Stage(run=on.run, stage=planned.name, began=began, ended=now(), notes=notes)
    write_json(folder / STAGE, ended.model_dump(mode="json"))
