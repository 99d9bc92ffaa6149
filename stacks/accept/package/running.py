"""A run on its way, and what a stage is: it writes its evidence and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.config.stackfile import StackFile
from busbar.exits import NoVerdict
from busbar.hosts.inventory import Inventory as HostInventory
from busbar.hosts.remote import Hosts, on_each
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, wait_until
from busbar.preflight.survey import CONCURRENT
from busbar.text import counted
from stacks.accept.package.evidence import (
    FOLDER,
    INVENTORY,
    LOG_FILES,
    SEGMENT,
    STAGE,
    TIME,
    Evidence,
    Machine,
    Machines,
    Printed,
    Stage,
    digest_of,
    machine_of,
    machines_files,
    write_json,
)
from stacks.accept.package.kinds import OF_NODES, Row, failed_nodes, result
from stacks.accept.package.site import Site, validation_of

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.config.cluster import Validation
    from busbar.fabric.measure import Plan
    from busbar.hosts.inventory import Host
    from busbar.kube.client import RestApi
    from busbar.preflight.spec import Spec

QUARANTINED = "every worker is in quarantine"
# Seconds of the question of who a host is.
ASK_SECONDS = 90
# Seconds of the start of all pods of a job, at 440 nodes that have the image.
START_SECONDS = 60
# How long a stage waits for GPUs that pods hold, unless validation.when_busy is `wait`.
PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Running:
    """A run on its way: where its evidence goes, and what it works on.

    `kubeconfig`: of a cluster that busbar did not make. `logs_in`: if there is a login to the hosts.
    `rows`: those of the criteria.
    """

    folder: Path
    run: str
    site: Site
    file: StackFile
    cluster: Cluster
    idle: bool
    say: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)
    kubeconfig: Path | None = None
    logs_in: bool = True
    rows: Sequence[Row] = ()

    @cached_property
    def spec(self) -> Spec:
        """The spec of preflight, with the login. Raises SecretError."""
        from busbar.cli.k3s import spec_of_stack

        return spec_of_stack(self.file, self.cluster)

    @cached_property
    def api(self) -> RestApi:
        """A client of the cluster. Raises SecretError and UnknownState."""
        from busbar.cli.stackfile import cluster_api
        from busbar.kube.client import connect

        if self.kubeconfig:
            return connect({"KUBECONFIG": str(self.kubeconfig)})
        return cluster_api(self.file, self.cluster)

    @property
    def options(self) -> str:
        """Those of `busbar nccl clean` for the cluster."""
        own = self.file.project / ".busbar" / self.file.stack / "kubeconfig"
        return f" --kubeconfig {self.kubeconfig or own}"

    @cached_property
    def bad(self) -> dict[str, str]:
        """Node -> the row that it fails alone, of the stages of nodes, pairs and rails that have ended."""
        evidence = Evidence(self.folder)
        return failed_nodes(result(row, evidence, {}) for row in self.rows if row.parts[0] in OF_NODES)

    def good(self, pool: str) -> list[str]:
        """The workers of a pool without those that are bad."""
        return [name for name in self.site.pools[pool].workers if name not in self.bad]

    def at(self, stage: str) -> Path:
        """The folder of a stage's evidence."""
        return self.folder / FOLDER / stage


def now() -> str:
    """The time."""
    return datetime.now(UTC).strftime(TIME)


@dataclass(frozen=True)
class Planned:
    """A stage. `run` returns pool -> why it was not run there. `seconds`: of a pool with so many nodes.

    `continues`: its evidence is kept after an interruption; it takes the hours of the soak besides.
    `logs_in`: it needs a login to the hosts.
    """

    name: str
    run: Callable[[Running], dict[str, str]]
    holds_gpus: bool
    seconds: Callable[[int], int]
    continues: bool = False
    logs_in: bool = False


def run_stage(planned: Planned, on: Running) -> None:
    """Run a stage that has not ended, and mark its end. Raises NoVerdict."""
    folder, at = on.at(planned.name), now()
    began = at
    if planned.continues:
        began = Evidence(on.folder).begun.began
    else:
        shutil.rmtree(folder, ignore_errors=True)
    on.say(f"stage {planned.name}")
    try:
        if planned.name != INVENTORY:
            write_json(machines_files(folder)[-1], ask_machines(on, at))
        no_login = planned.logs_in and not on.logs_in
        notes = dict.fromkeys(on.site.pools, "no login") if no_login else planned.run(on)
    except NoVerdict as error:
        raise NoVerdict(f"stage {planned.name}: {error}; the same command continues here") from error
    write_json(folder / STAGE, Stage(run=on.run, stage=planned.name, began=began, ended=now(), notes=notes))


def measure_on(
    on: Running, names: Iterable[str], verb: str, seconds: int, *, script: str = "measure", **values: str
) -> Printed:
    """The output of the script, which runs on all these hosts at once. Raises ScriptError for the bastion."""
    chosen = [host for host in on.spec.hosts if host.name in {*names}]

    async def ask() -> list[dict[str, Any] | str]:
        async with Hosts.open(on.spec.login) as hosts:

            async def one(host: Host) -> dict[str, Any]:
                return await hosts.run(host, f"accept/{script}", {"VERB": verb, **values}, seconds=seconds)

            return await on_each(chosen, one, at_once=CONCURRENT if script == "soak" else None)

    found = {host.name: each for host, each in zip(chosen, asyncio.run(ask()), strict=True)}
    return Printed(
        run=on.run,
        hosts={name: each for name, each in found.items() if not isinstance(each, str)},
        failed={name: each for name, each in found.items() if isinstance(each, str)},
    )


def ask_machines(on: Running, at: str) -> Machines:
    """Ask every worker who it is, and for its GPUs and HCAs; without a login the API knows its machine id."""
    workers = [name for pool in on.site.pools.values() for name in pool.workers]
    if on.logs_in:
        printed = measure_on(on, workers, "ask", ASK_SECONDS, script="inventory")
        known = {name: machine_of(each) for name, each in printed.hosts.items()}
        return Machines(run=on.run, at=at, hosts=known, failed=printed.failed)
    infos = {
        node["metadata"]["name"]: (node.get("status") or {}).get("nodeInfo") or {}
        for node in on.api.list("/api/v1/nodes")
    }
    known = {
        name: Machine(machine=digest_of(infos[name]["machineID"]), boot=infos[name].get("bootID") or "")
        for name in workers
        if infos.get(name, {}).get("machineID")
    }
    failed = {name: f"{name}: its Node has no machine id" for name in workers if name not in known}
    return Machines(run=on.run, at=at, hosts=known, failed=failed)


def clean_up(on: Running, jobs: Iterable[str]) -> None:
    """Remove the jobs that a killed process may have left, by the begin of their names."""
    from busbar.fabric.measure.run import find, remove

    begins, limit = tuple(f"{job}-" for job in jobs), Deadline(on.clock, PATIENCE_SECONDS)
    found = wait_until(lambda: find(on.api), limit, poll_seconds=2)
    remove(on.api, [each for each in found if each.run.startswith(begins)], limit, on.say)


def keep_logs(folder: Path) -> None:
    """Remove whatever is made again from the logs, such as a verdict and its page."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in (*LOG_FILES, SEGMENT):
            path.unlink()


def free_nodes(on: Running, pool: str, *, wait: bool = True) -> tuple[str, ...]:
    """The nodes of the pool whose GPUs are free; with WAIT as a measurement waits for them."""
    validation = validation_of(on.cluster.validation_of(pool))
    return tuple(plan_when_free(on, pool, f"{on.run}-free", validation, wait=wait).job.nodes)


def plan_when_free(
    on: Running,
    pool: str,
    job: str,
    validation: Validation,
    *,
    wait: bool = True,
    begun_on: Sequence[str] = (),
    nodes: Sequence[str] | None = None,
) -> Plan:
    """The job on these nodes, else on all good ones of the pool, as soon as they are free.

    BEGUN_ON: the nodes of a job that has begun.
    """
    from busbar.fabric.measure import CannotMeasure, plan_pool, read_facts

    more: dict[str, Any] = {
        "validation": validation,
        "own_namespace": on.kubeconfig is not None,
        "project": on.file.project,
    }
    inventory, asked = HostInventory.of(on.cluster), on.good(pool) if nodes is None else nodes
    if begun_on:
        return plan_pool(None, inventory, pool, job, nodes=begun_on, idle=on.idle, **more)

    def look() -> Plan | Pending:
        facts = read_facts(on.api, None, idle=on.idle)
        found = plan_pool(facts, inventory, pool, job, nodes=asked, idle=on.idle, partly=True, **more)
        held = len(asked) - len(found.job.nodes) - len(found.missing)
        if not wait:
            return found
        if held and not on.idle:
            return Pending(f"pods hold GPUs of {counted(held, 'node')}: {'; '.join(found.notes)}")
        if not found.job.nodes:
            raise CannotMeasure([f"pool {pool}: no node can run the job", *found.missing])
        return found

    seconds = validation.busy_deadline_seconds if validation.when_busy == "wait" else PATIENCE_SECONDS
    return wait_until(look, Deadline(on.clock, seconds), poll_seconds=10, progress=on.say)
