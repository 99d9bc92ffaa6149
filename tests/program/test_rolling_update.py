"""Agents that run change a few at a time: in which order, and what a worker that fails holds up."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from pulumi.runtime.rpc import UNKNOWN

from busbar import names
from busbar.components.engine.hosts import STEP_INPUTS
from busbar.components.worker_pool import InfiniBandWorkerPool
from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.preflight import facts
from tests.program import harness
from tests.program.answers import healthy
from tests.program.harness import COMMAND, Run, run_program
from tests.support.clusters import site

WORKERS = [f"gpu-{number}" for number in range(1, 6)]


class Update:
    """An update of a pool of five workers, of which two may change at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster: dict[str, Any] = site(servers=1, workers={"a": 5})
        self.cluster["pools"]["a"] |= {"max_unavailable": 2, "running_jobs": "wait"}
        self.found: batches.Nodes | ApiError = running()
        self.unreachable: Collection[str] = ()
        self.instead: Mapping[str, Any] = {}
        monkeypatch.setattr(harness, "ask_nodes", self._ask)

    def _ask(self, _: str, *, jobs: bool) -> batches.Nodes:
        if isinstance(self.found, ApiError):
            raise self.found
        return self.found if jobs else replace(self.found, with_jobs=frozenset())

    def run(self) -> Run:
        answers = healthy(self.cluster, instead=self.instead)

        def answer(args: Any) -> Any:
            found = dict(answers(args))
            if args.name == "busbar-preflight-hosts":
                known = facts.read(found["stdout"])
                gone = {name: replace(known[name], fingerprint="") for name in self.unreachable}
                found["stdout"] = facts.pack(known | gone)
            return found

        return run_program(self.cluster, answer)


@pytest.fixture
def update(monkeypatch: pytest.MonkeyPatch) -> Update:
    return Update(monkeypatch)


def running(**more: Collection[str]) -> batches.Nodes:
    """All workers are Ready."""
    given: Any = {key: frozenset(found) for key, found in more.items()}
    return batches.Nodes(**{"names": frozenset(WORKERS), "ready": frozenset(WORKERS), **given})


def begun(run: Run) -> list[list[str]]:
    """The workers in the order in which they begin, two at a time."""
    hosts = [str(names.host_of(each.name)) for each in run.of_type(COMMAND) if "worker@" in each.name]
    return [sorted(hosts[start : start + 2]) for start in range(0, len(hosts), 2)]


def held_up_by(run: Run, worker: str) -> list[str]:
    """The workers that must not have failed, or this one does not begin."""
    ahead = run.named(f"busbar-worker@{worker}").ahead
    return [other for other in WORKERS if run.named(f"busbar-worker@{other}").urn in ahead]


def test_workers_with_jobs_come_last_so_that_they_hold_nobody_up(update: Update) -> None:
    update.found = running(with_jobs=["gpu-1", "gpu-3"])
    done = update.run()
    assert done.error is None
    assert begun(done) == [["gpu-2", "gpu-4"], ["gpu-1", "gpu-5"], ["gpu-3"]]
    assert [held_up_by(done, worker) for worker in WORKERS] == [[]] * 5, "the state knows no order of workers"


def test_a_worker_that_preflight_did_not_reach_changes_after_those_that_it_did(update: Update) -> None:
    update.unreachable = ["gpu-1"]
    assert begun(update.run()) == [["gpu-2", "gpu-3"], ["gpu-4", "gpu-5"], ["gpu-1"]]


def test_with_one_worker_failing_the_next_batch_does_not_begin(update: Update) -> None:
    update.instead = {"busbar-worker@gpu-2": {"stdout": UNKNOWN}}
    done = update.run()
    assert [held_up_by(done, worker) for worker in WORKERS[:4]] == [[], [], ["gpu-2"], ["gpu-2"]]
    said = [text for text in done.messages if "no other agent of pool a restarts. Fix: " in text]
    assert [text.partition(":")[0] for text in said] == ["gpu-2"]


def test_without_an_answer_of_the_cluster_all_agents_count_as_running(update: Update) -> None:
    update.found = ApiError("GET /api/v1/nodes", None, "cannot be reached")
    update.instead = {"busbar-worker@gpu-1": {"stdout": UNKNOWN}}
    done = update.run()
    assert "pool a: GET /api/v1/nodes: cannot be reached; all its agents count as running" in done.messages
    assert held_up_by(done, "gpu-3") == ["gpu-1"]


def test_workers_that_join_do_not_hold_each_other_up(update: Update) -> None:
    update.found = running(names=(), ready=())
    update.instead = {"busbar-worker@gpu-1": {"stdout": UNKNOWN}}
    assert held_up_by(update.run(), "gpu-5") == []


def test_a_worker_in_quarantine_is_left_out_while_it_is_off(update: Update, monkeypatch: Any) -> None:
    update.cluster["hosts"]["workers"][1]["quarantine"] = "fan 3"
    done = update.run()
    changed = {worker for worker in WORKERS if done.named(f"busbar-worker@{worker}").request.transforms}
    assert changed == {"gpu-2"}
    said: list[str] = []
    monkeypatch.setattr(pulumi, "warn", said.append)
    pool: Any = InfiniBandWorkerPool.__new__(InfiniBandWorkerPool)
    for pool._unreachable, ignored in (["gpu-1"], None), (["gpu-2"], STEP_INPUTS):
        given: Any = SimpleNamespace(name="busbar-worker@gpu-2", props={}, opts=pulumi.ResourceOptions())
        asyncio.run(pool._leave_out_if_off(given))
        assert given.opts.ignore_changes == (ignored and [*ignored])
    assert said == ["gpu-2 is in quarantine and left out: its changes wait until it is back"]
