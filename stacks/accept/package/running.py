"""A run on its way, and what a stage is: it writes its evidence and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from busbar.cli.k3s import spec_of_stack
from busbar.cli.stackfile import cluster_api
from busbar.config import Cluster
from busbar.config.cluster import Validation
from busbar.config.stackfile import StackFile
from busbar.exits import NoVerdict
from busbar.fabric.commands.nccl import options_of
from busbar.fabric.measure import CannotMeasure, LeftBehind, Plan, measure, plan_pool, read_facts
from busbar.fabric.measure.run import find, remove
from busbar.hosts.inventory import Inventory as HostInventory
from busbar.hosts.remote import Hosts, on_each
from busbar.kube.client import RestApi, connect
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, wait_until
from busbar.preflight.spec import Spec
from busbar.preflight.survey import CONCURRENT
from busbar.text import counted
from stacks.accept.package import evidence as kept
from stacks.accept.package.evidence import Begun, Each, Evidence, Machine, Machines, Parts, Printed
from stacks.accept.package.kinds import OF_NODES, Row, failed_nodes, result
from stacks.accept.package.site import Pool, validation_of

# Seconds of the question of who a host is.
ASK_SECONDS = 90
# Seconds of the start of all pods of a job, at 440 nodes that have the image.
START_SECONDS = 60
# How long a stage waits for GPUs that pods hold, unless validation.when_busy is `wait`.
PATIENCE_SECONDS = 180


@dataclass(frozen=True)
class Running:
    """A run on its way: where its evidence goes, and what it works on.

    `kubeconfig`: of a cluster that busbar did not make. `logs_in`: to the hosts. `rows`: of the criteria.
    """

    folder: Path
    begun: Begun
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
        return spec_of_stack(self.file, self.cluster)

    @cached_property
    def api(self) -> RestApi:
        """A client of the cluster. Raises SecretError and UnknownState."""
        if self.kubeconfig:
            return connect({"KUBECONFIG": str(self.kubeconfig)})
        return cluster_api(self.file, self.cluster)

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The pools with workers that are not in quarantine."""
        return {name: pool for name, pool in self.begun.site.pools.items() if pool.workers}

    @property
    def options(self) -> str:
        """Those of `busbar nccl clean` for the cluster."""
        return f" --kubeconfig {self.kubeconfig}" if self.kubeconfig else options_of(self.file)

    def good(self, pool: str) -> list[str]:
        """The workers of a pool that fail no row alone, of the stages of nodes, pairs and rails."""
        return [name for name in self.pools[pool].workers if name not in self._bad]

    @cached_property
    def _bad(self) -> Mapping[str, str]:
        evidence = Evidence(self.folder)
        return failed_nodes(result(row, evidence, {}) for row in self.rows if row.parts[0] in OF_NODES)

    def at(self, stage: str) -> Path:
        """The folder of a stage."""
        return self.folder / kept.FOLDER / stage

    def on_hosts(
        self, names: Sequence[str], verb: str, seconds: int, *, script: str = "measure", **values: str
    ) -> Printed:
        """The output of a script, run on all these hosts at once. Raises ScriptError for the bastion."""
        chosen = [host for host in self.spec.hosts if host.name in names]

        async def ask() -> list[dict[str, Any] | str]:
            at_once = CONCURRENT if script == "soak" else None
            given = {"VERB": verb, **values}
            async with Hosts.open(self.spec.login) as hosts:
                run = partial(hosts.run, script=f"accept/{script}", values=given, seconds=seconds)
                return await on_each(chosen, run, at_once=at_once)

        found = {host.name: each for host, each in zip(chosen, asyncio.run(ask()), strict=True)}
        return Printed(
            run=self.begun.run,
            hosts={name: each for name, each in found.items() if not isinstance(each, str)},
            failed={name: each for name, each in found.items() if isinstance(each, str)},
        )

    def ask_machines(self, at: str) -> Machines:
        """Ask every worker who it is, and for its parts; without a login the API knows its machine id."""
        workers = [name for pool in self.pools.values() for name in pool.workers]
        if self.logs_in:
            printed = self.on_hosts(workers, "ask", ASK_SECONDS, script="inventory")
            known = {name: Parts.model_validate(each).identity for name, each in printed.hosts.items()}
            return Machines(run=self.begun.run, at=at, hosts=known, failed=printed.failed)
        known, failed = {}, {name: f"{name}: its Node has no machine id" for name in workers}
        for node in self.api.list("/api/v1/nodes"):
            name, info = node["metadata"]["name"], (node.get("status") or {}).get("nodeInfo") or {}
            if name in failed and info.get("machineID"):
                machine = kept.digest_of(info["machineID"])
                known[name] = Machine(machine=machine, boot=info.get("bootID") or "")
                del failed[name]
        return Machines(run=self.begun.run, at=at, hosts=known, failed=failed)

    def clean_up(self, *jobs: str) -> None:
        """Remove the jobs that a killed process may have left, by the begin of their names."""
        begins, limit = tuple(f"{job}-" for job in jobs), Deadline(self.clock, PATIENCE_SECONDS)
        found = wait_until(lambda: find(self.api), limit, poll_seconds=2)
        remove(self.api, [each for each in found if each.run.startswith(begins)], limit, self.say)

    def plan(
        self,
        pool: str,
        job: str,
        validation: Validation,
        *,
        nodes: Sequence[str] | None = None,
        begun_on: Sequence[str] = (),
        wait: bool = True,
    ) -> Plan:
        """The job on these nodes, else on all good ones of the pool; with WAIT as soon as they are free.

        BEGUN_ON: the nodes of a job that has begun.
        """
        more: dict[str, Any] = {
            "validation": validation, "own_namespace": self.kubeconfig is not None, "idle": self.idle,
            "project": self.file.project,
        }  # fmt: skip
        inventory, asked = HostInventory.of(self.cluster), self.good(pool) if nodes is None else nodes
        if begun_on:
            return plan_pool(None, inventory, pool, job, nodes=begun_on, **more)

        def look() -> Plan | Pending:
            facts = read_facts(self.api, None, idle=self.idle)
            found = plan_pool(facts, inventory, pool, job, nodes=asked, partly=True, **more)
            held = len(asked) - len(found.job.nodes) - len(found.missing)
            if wait and held and not self.idle:
                return Pending(f"pods hold GPUs of {counted(held, 'node')}: {'; '.join(found.notes)}")
            if wait and not found.job.nodes:
                raise CannotMeasure([f"pool {pool}: no node can run the job", *found.missing])
            return found

        return self.patient(look, validation)

    def patient(self, look: Callable[[], Each | Pending], validation: Validation) -> Each:
        """Wait for what LOOK finds as `validation.when_busy` says, and return it. Raises TimedOut."""
        seconds = validation.busy_deadline_seconds if validation.when_busy == "wait" else PATIENCE_SECONDS
        return wait_until(look, Deadline(self.clock, seconds), poll_seconds=10, progress=self.say)

    def free_nodes(self, pool: str, **how: Any) -> tuple[str, ...]:
        """The nodes of the pool whose GPUs are free. HOW: `nodes` and `wait`, as in `plan`."""
        validation = validation_of(self.cluster.validation_of(pool))
        return tuple(self.plan(pool, f"{self.begun.run}-free", validation, **how).job.nodes)

    def measure(self, plan: Plan, folder: Path, say: Callable[[str], None] | None = None, **how: Any) -> None:
        """Run a job, and keep its log and record in FOLDER. HOW, and what is raised: as `measure`."""
        try:
            measure(self.api, plan, str(folder), self.clock, say or self.say, options=self.options, **how)
        except LeftBehind as left:
            self.say(f"warning: {left}")
        keep_logs(folder)


@dataclass(frozen=True)
class Planned:
    """A stage: `run` measures and writes evidence, and returns pool -> why it was not run there.

    It gets no pool without workers. `seconds`: planned for a number of nodes on a healthy cluster.
    `continues`: from what an interrupted one has kept; its time counts from the begin of the run. `logs_in`:
    it needs a login. `option`: without this one of the command it is not run.
    """

    name: str
    run: Callable[[Running], dict[str, str]]
    holds_gpus: bool
    seconds: Callable[[int], int]
    continues: bool = False
    logs_in: bool = False
    option: str = ""


def run_stage(planned: Planned, on: Running) -> None:
    """Run a stage that has not ended, and mark its end. Raises NoVerdict."""
    folder, at = on.at(planned.name), now()
    if not planned.continues:
        shutil.rmtree(folder, ignore_errors=True)
    on.say(f"stage {planned.name}")
    pools = on.begun.site.pools
    # The inventory counts also the workers of a pool that has none left.
    empty = [name for name in pools if name not in on.pools and planned.name != kept.INVENTORY]
    notes = dict.fromkeys(empty, "every worker is in quarantine")
    try:
        if planned.name != kept.INVENTORY:
            asked = len([*folder.glob(kept.MACHINES_FILES)])
            kept.write_json(folder / f"machines-{asked:03}.json.zst", on.ask_machines(at))
        if planned.logs_in and not on.logs_in:
            notes = dict.fromkeys(pools, "no login")
        elif planned.option and planned.option not in on.begun.options:
            notes = dict.fromkeys(pools, f"no --{planned.option} is given")
        elif on.pools:
            notes |= planned.run(on)
    except NoVerdict as error:
        raise NoVerdict(f"stage {planned.name}: {error}; the same command continues here") from error
    began = on.begun.began if planned.continues else at
    ended = kept.Stage(run=on.begun.run, stage=planned.name, began=began, ended=now(), notes=notes)
    kept.write_json(folder / kept.STAGE, ended)


def keep_logs(folder: Path) -> None:
    """Remove whatever is made again from the logs, such as a verdict and its page."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in (*kept.LOG_FILES, kept.SEGMENT):
            path.unlink()


def now() -> str:
    """The time as the evidence has it."""
    return datetime.now(UTC).strftime(kept.TIME)
