"""Agents that run change a few at a time, with the real engine and the real component of a pool.

A host is a line in `log` at the begin and the end of its script; what the cluster would say of the Nodes is
in `site.json`. The tests are one story, in this order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from busbar.names import is_removal
from tests.support.clusters import site
from tests.support.engine import throwaway_project

SECONDS = 300
LIMIT = 3
WORKERS = [f"gpu-{number}" for number in range(1, 13)]
QUICK = "sleep 0.5\n"
# It ends when all of them have begun.
TOGETHER = 'for try in $(seq 300); do [ "$(grep -c begins log)" -lt 12 ] || exit 0; sleep 0.2; done; exit 1\n'
UPDATE = ("up", "--yes", "--skip-preview", "--continue-on-error", "--parallel", "50")

PROGRAM = """
    import json
    from pathlib import Path
    import pulumi
    from pulumi_command import local

    import busbar.config
    from busbar.hosts.inventory import Inventory
    from busbar.kube import batches
    from busbar.kube.client import ApiError
    from busbar import names
    from busbar.components import worker_pool
    from busbar.components.engine import hosts
    from busbar.components.engine.stack import StackConfig

    ROOT = Path(__file__).parent
    SITE = json.loads((ROOT / "site.json").read_text())

    def logged(name, did):
        return f"echo $(date +%s%N) {name} {did} >>{ROOT}/log"

    def script(worker):
        steps = [logged(worker, "begins"), f"sh {ROOT}/install", f"test ! -e {ROOT}/fails-{worker}"]
        return " && ".join([*steps, logged(worker, "ends")])

    def command(name, connection, create, stdin, add_previous_output_in_env, logging, opts):
        text = script(names.host_of(name)) + f" && echo {SITE['version']}"
        return local.Command(name, create=text, add_previous_output_in_env=False, opts=opts)

    def removal_command(name, step, stdin, opts, at_removal, create=None):
        text = script(names.host_of(name))
        return local.Command(name, delete=text, add_previous_output_in_env=False, opts=opts)

    def ask(kubeconfig, *, jobs):
        assert kubeconfig == "the kubeconfig"
        if SITE["silent"]:
            raise ApiError("GET /api/v1/nodes", None, "cannot be reached")
        names = frozenset(SITE["ready"]), frozenset(SITE["down"])
        return batches.Nodes(
            names=names[0] | names[1], ready=names[0], with_jobs=frozenset(SITE["with_jobs"] if jobs else ())
        )

    hosts.remote.Command = command
    hosts.create_hosts_command = removal_command
    batches.ask = ask
    # There is no API, through which a worker would be drained.
    worker_pool.restart_hooks = lambda *_, **__: pulumi.ResourceHookBinding()

    class Login:
        def connection(self, host):
            return None

        spec = pulumi.Output.from_input({})

    def server(name):
        text = f"{script(name)} && echo {SITE['version']}"
        return local.Command(f"server@{name}", create=text, add_previous_output_in_env=False)

    inventory = Inventory.of(busbar.config.load(SITE["cluster"], root=ROOT))
    worker_pool.InfiniBandWorkerPool(
        "pool-a",
        config=StackConfig(
            cluster=inventory.cluster, inventory=inventory, login=Login(), secrets={}, project=ROOT
        ),
        pool="a", prefix="busbar-worker", install_id="1", kubeconfig="the kubeconfig",
        servers={name: server(name) for name in SITE["servers"]},
        unreachable=SITE["unreachable"], agent_token="t", registries_yaml="",
    )
"""


class Ran(NamedTuple):
    """The times at which the script of a host began and ended, in ns; 0 if it failed."""

    begin: int
    end: int


@dataclass
class Stack:
    """A pool of twelve workers; the fields after the first two are what its next update finds."""

    folder: Path
    environment: Mapping[str, str]
    cluster: dict[str, Any]
    version: int = 1
    ready: Collection[str] = ()
    down: Collection[str] = ()
    with_jobs: Collection[str] = ()
    unreachable: Collection[str] = ()
    silent: bool = False
    servers: Collection[str] = ()
    install: str = QUICK
    """What the script of every host runs."""
    said: str = ""
    """What the engine printed the last time."""

    def pulumi(self, *arguments: str, fails: bool = False) -> dict[str, Ran]:
        """What ran on the hosts, by worker, in the order in which it began."""
        names = ("cluster", "version", "ready", "down", "with_jobs", "unreachable", "silent", "servers")
        (self.folder / "site.json").write_text(json.dumps({name: getattr(self, name) for name in names}))
        (self.folder / "log").write_text("")
        (self.folder / "install").write_text(self.install)
        done = subprocess.run(
            ["pulumi", *arguments, "--stack", "dev", "--non-interactive"],
            cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip
        self.said = done.stdout
        assert (done.returncode != 0) == fails, done.stdout
        found: dict[str, Ran] = {}
        for line in sorted((self.folder / "log").read_text().splitlines()):
            time, name, did = line.split()
            found[name] = Ran(int(time), 0) if did == "begins" else found[name]._replace(end=int(time))
        return found

    def upgrade(self, *, fails: Collection[str] = ()) -> dict[str, Ran]:
        """What an update to another version did, where the script fails on some workers."""
        self.version += 1
        for name in fails:
            (self.folder / f"fails-{name}").touch()
        try:
            return self.pulumi(*UPDATE, fails=bool(fails))
        finally:
            for name in fails:
                (self.folder / f"fails-{name}").unlink()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("rolling")
    environment = throwaway_project(folder, PROGRAM, NO_COLOR="1")
    cluster = site(servers=1, workers={"a": 12})
    cluster["pools"]["a"] |= {"max_unavailable": LIMIT, "running_jobs": "wait"}
    made = Stack(folder, environment, cluster)
    made.pulumi("stack", "init")
    yield made
    made.pulumi("destroy", "--yes", "--skip-preview")


def together(ran: Mapping[str, Ran]) -> int:
    """How many scripts ran at the same time at most."""
    return max(
        sum(other.begin <= each.begin < (other.end or other.begin) for other in ran.values())
        for each in ran.values()
    )


def test_a_bring_up_installs_all_workers_at_the_same_time(stack: Stack) -> None:
    stack.install = TOGETHER
    ran = stack.pulumi(*UPDATE)
    stack.install, stack.ready = QUICK, WORKERS
    assert together(ran) == len(WORKERS)


def test_an_update_without_changes_runs_nothing(stack: Stack) -> None:
    assert stack.pulumi(*UPDATE, "--expect-no-changes") == {}


def test_an_upgrade_changes_three_workers_at_a_time(stack: Stack) -> None:
    ran = stack.upgrade()
    begun = list(ran)
    batches = [set(begun[start : start + LIMIT]) for start in range(0, 12, LIMIT)]
    assert batches == [set(WORKERS[start : start + LIMIT]) for start in range(0, 12, LIMIT)]
    assert together(ran) <= LIMIT


def test_the_engine_knows_no_order_of_workers(stack: Stack) -> None:
    stack.pulumi("stack", "export")
    for resource in json.loads(stack.said)["deployment"]["resources"]:
        ahead = resource.get("dependencies", [])
        assert [urn for urn in ahead if not is_removal(urn.rpartition("::")[2])] == [], resource["urn"]


def test_with_one_worker_failing_the_rest_does_not_begin(stack: Stack) -> None:
    ran = stack.upgrade(fails=["gpu-5"])
    assert sorted(ran) == sorted(WORKERS[:6])
    assert [name for name, each in ran.items() if not each.end] == ["gpu-5"]
    assert "gpu-5: not updated; no other agent of pool a restarts. Fix: " in stack.said
    assert stack.said.count("no other agent of pool a restarts") <= 2, "once in the progress, once at the end"


def test_the_next_update_finishes_what_is_left_and_then_nothing_is(stack: Stack) -> None:
    ran = stack.pulumi(*UPDATE)
    assert sorted(ran) == sorted(["gpu-5", *WORKERS[6:]])
    assert together(ran) <= LIMIT
    assert stack.pulumi(*UPDATE, "--expect-no-changes") == {}


def test_workers_with_jobs_come_last_so_that_they_hold_nobody_up(stack: Stack) -> None:
    stack.with_jobs = ["gpu-1", "gpu-3"]
    ran = stack.upgrade(fails=["gpu-1", "gpu-3"])
    assert sorted(list(ran)[-LIMIT:]) == ["gpu-1", "gpu-12", "gpu-3"]
    assert sorted(name for name, each in ran.items() if each.end) == sorted(set(WORKERS) - {"gpu-1", "gpu-3"})
    stack.with_jobs = []
    assert sorted(stack.pulumi(*UPDATE)) == ["gpu-1", "gpu-3"]


def test_a_worker_that_preflight_cannot_reach_holds_nobody_up(stack: Stack) -> None:
    stack.unreachable = ["gpu-2", "gpu-4"]
    stack.ready, stack.down = [name for name in WORKERS if name != "gpu-4"], ["gpu-4"]
    ran = stack.upgrade(fails=["gpu-2", "gpu-4"])
    assert sorted(name for name, each in ran.items() if each.end) == sorted(set(WORKERS) - {"gpu-2", "gpu-4"})
    assert ran["gpu-2"].begin > max(each.end for each in ran.values()), "its Node is Ready: the last"
    stack.unreachable, stack.ready, stack.down = [], WORKERS, []
    assert sorted(stack.pulumi(*UPDATE)) == ["gpu-2", "gpu-4"]


def test_of_two_workers_in_quarantine_the_one_that_is_off_is_left_out_and_catches_up(stack: Stack) -> None:
    held = stack.cluster["hosts"]["workers"][:2]
    for worker in held:
        worker["quarantine"] = "fan 3"
    stack.unreachable = ["gpu-2"]
    stack.ready, stack.down = [name for name in WORKERS if name != "gpu-2"], ["gpu-2"]
    assert sorted(stack.upgrade()) == sorted(stack.ready)
    assert "gpu-2 is in quarantine and not responding: its changes wait until it is back" in stack.said
    stack.unreachable, stack.ready, stack.down = [], WORKERS, []
    assert [*stack.pulumi(*UPDATE)] == ["gpu-2"]
    for worker in held:
        del worker["quarantine"]
    assert stack.pulumi(*UPDATE, "--expect-no-changes") == {}


def test_an_agent_that_is_down_is_repaired_at_once_and_counts(stack: Stack) -> None:
    stack.ready, stack.down = [name for name in WORKERS if name != "gpu-12"], ["gpu-12"]
    ran = stack.upgrade()
    assert "gpu-12" in list(ran)[:LIMIT]
    assert together(ran) <= LIMIT


def test_where_as_many_agents_are_down_as_may_be_nothing_else_begins_before_they_are_back(
    stack: Stack,
) -> None:
    stack.ready, stack.down = WORKERS[:9], WORKERS[9:]
    ran = stack.upgrade(fails=["gpu-11"])
    assert sorted(ran) == ["gpu-10", "gpu-11", "gpu-12"]
    stack.ready, stack.down = WORKERS, []


def test_without_an_answer_of_the_cluster_all_agents_count_as_running(stack: Stack) -> None:
    stack.silent = True
    ran = stack.upgrade()
    assert together(ran) <= LIMIT
    assert "pool a: GET /api/v1/nodes: cannot be reached; all its agents count as running" in stack.said
    stack.silent = False


def test_workers_that_are_new_join_at_once_while_others_change(stack: Stack) -> None:
    stack.ready = WORKERS[:9]
    ran = stack.upgrade()
    assert sorted(list(ran)[: LIMIT + 3]) == sorted([*WORKERS[:LIMIT], "gpu-10", "gpu-11", "gpu-12"])
    stack.ready = WORKERS


def test_no_agent_restarts_before_the_servers_whose_nodes_are_in_the_cluster(stack: Stack) -> None:
    stack.servers, stack.ready = ["server-2"], [*WORKERS, "server-2"]
    assert sorted(stack.upgrade(fails=["server-2"])) == ["server-2"]
    stack.servers, stack.ready = [], WORKERS


def test_a_server_that_is_added_and_fails_holds_up_no_worker(stack: Stack) -> None:
    stack.servers = ["server-2"]
    ran = stack.upgrade(fails=["server-2"])
    assert sorted(name for name, each in ran.items() if each.end) == sorted(WORKERS)
    stack.servers = []


def test_a_destroy_removes_all_workers_at_the_same_time(stack: Stack) -> None:
    stack.install = TOGETHER
    ran = stack.pulumi("destroy", "--yes", "--skip-preview", "--parallel", "50")
    stack.install = QUICK
    assert together(ran) == len(WORKERS)
