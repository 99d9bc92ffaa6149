"""`busbar restore`: what it refuses before anything changes, the order of its steps, what a failure leaves.

The hosts are SSH servers of this test on loopback; they print what host/k3s-restore.sh would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import pytest

from busbar import config
from busbar.exits import Failed
from busbar.hosts.inventory import Inventory
from busbar.hosts.remote import Hosts
from busbar.operations import restore
from busbar.operations.restore import RestorePlan, Snapshot, all_of, ask
from tests.support.clusters import site
from tests.support.ssh_hosts import CLOSED_PORT, HOST, login, machine, public

T = TypeVar("T")
TIME = "2026-11-22T04:00:00Z"


def file(name: str, folder: str = "/var/lib/rancher/k3s/server/db/snapshots") -> dict[str, Any]:
    return {"name": name, "path": f"{folder}/{name}", "bytes": 4128, "time": TIME}


@dataclass
class Cluster:
    """Three servers and a worker. `facts` and `fails` are by (host, verb); `steps` is what ran, in order."""

    facts: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    fails: dict[tuple[str, str], str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    steps: list[tuple[str, str]] = field(default_factory=list)
    commands: dict[tuple[str, str], str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def answer(self, host: str, verb: str) -> dict[str, Any]:
        usual: dict[str, dict[str, Any]] = {
            "list": {
                **{"install_id": "1", "restoring": False, "s3": False, "problem": "", "stored": None},
                "snapshots": [file(f"nightly-{host}")],
            },
            "reset": {"reset": True, "kept": "/db/etcd-old-1", "reason": ""},
            "join": {"kept": f"/db/of-{host}"},
            "nodes": {"waiting": []},
        }
        return {"node": host, **usual.get(verb, {}), **self.facts.get((host, verb), {})}

    def handler(self, host: str) -> Callable[[asyncssh.SSHServerProcess[str]], None]:
        def handle(process: asyncssh.SSHServerProcess[str]) -> None:
            command = process.command or ""
            found = re.search(r"VERB=(\w+)", command)
            assert found is not None
            step = (host, found[1])
            self.steps.append(step)
            self.commands[step] = command
            if why := self.fails.get(step):
                process.stderr.write(f"busbar: {host}: {why}. Fix: x\n")
                process.exit(1)
                return
            process.stdout.write(json.dumps(self.answer(*step)) + "\n")
            process.exit(0)

        return handle

    async def inventory(self, stack: contextlib.AsyncExitStack) -> Inventory:
        cluster = config.load(site(servers=3, workers={"h100": 1}), root=Path())
        inventory = Inventory.of(cluster)
        hosts = []
        for host in inventory.hosts:
            port = CLOSED_PORT
            if host.role != "lb" and host.name not in self.gone:
                port = await stack.enter_async_context(machine(self.handler(host.name)))
            key = public(HOST)
            hosts.append(replace(host, address="127.0.0.1", port=port, user="root", host_key=key))
        return replace(inventory, hosts=tuple(hosts))

    def run(self, work: Callable[[Inventory], Awaitable[T]]) -> T:
        async def scenario() -> T:
            async with contextlib.AsyncExitStack() as stack:
                return await work(await self.inventory(stack))

        return asyncio.run(scenario())

    def plan(self, wanted: str, **options: Any) -> RestorePlan:
        return self.run(lambda inventory: restore.plan(inventory, login(), wanted, **options))

    def restore(self, wanted: str = "nightly-server-2", **options: Any) -> restore.Restored:
        async def both(inventory: Inventory) -> restore.Restored:
            plan = await restore.plan(inventory, login(), wanted, **options)
            self.steps.clear()
            return await restore.restore(plan, login(), self.said.append)

        return self.run(both)

    def verbs(self) -> set[str]:
        return {verb for _, verb in self.steps}

    def order(self, verb: str) -> list[str]:
        return [host for host, each in self.steps if each == verb]


def test_the_server_that_holds_the_snapshot_is_restored_first_and_the_check_changes_nothing() -> None:
    cluster = Cluster()
    plan = cluster.plan("nightly-server-2")
    assert [each.name for each in (plan.first, *plan.others)] == ["server-2", "server-1", "server-3"]
    assert cluster.order("check") == ["server-2"]
    assert cluster.verbs() == {"list", "check"}


def test_a_file_elsewhere_on_a_server_is_found_by_its_path() -> None:
    path = "/root/kept/old.db"
    cluster = Cluster({("server-3", "list"): {"snapshots": [file("old.db", "/root/kept")]}})
    plan = cluster.plan(path)
    assert (plan.first.name, plan.snapshot.path) == ("server-3", path)
    assert f"SNAPSHOT={path}" in cluster.commands["server-1", "list"]


def test_a_snapshot_that_does_not_exist_is_refused_with_those_that_do() -> None:
    cluster = Cluster()
    with pytest.raises(Failed) as refused:
        cluster.plan("yesterday")
    text = str(refused.value)
    assert text.startswith("no snapshot yesterday on server-1, server-2, server-3; no changes made")
    for server in ("server-1", "server-2", "server-3"):
        assert f"nightly-{server} ({server}, {TIME})" in text
    assert cluster.verbs() == {"list"}


def first_server(**facts: Any) -> Cluster:
    """A cluster whose server-1 lists something else than usual."""
    return Cluster({("server-1", "list"): facts})


@pytest.mark.parametrize(
    ("cluster", "options", "says"),
    [
        (Cluster(), {"server": "server-1"}, "no snapshot nightly-server-2 on server-1;"),
        (Cluster(), {"server": "server-9"}, "server-9 is not a server of the stack"),
        (Cluster(gone=("server-3",)), {}, r"server-3: .*\n.*needs every server.*no changes made"),
        (first_server(problem="the token is not the one"), {}, "server-1: the token is not the one"),
        (Cluster(fails={("server-2", "check"): "made with another token"}), {}, "made with another token"),
        (first_server(install_id="2"), {}, r"different clusters \(server-1 2, server-2 1, server-3 1\)"),
    ],
)
def test_what_a_restore_lacks_is_named_at_once(cluster: Cluster, options: dict[str, str], says: str) -> None:
    with pytest.raises(Failed, match=says):
        cluster.plan("nightly-server-2", **options)
    assert cluster.verbs() <= {"list", "check"}


class TestFromTheBucket:
    def of(self, **facts: Any) -> Cluster:
        stored = {"s3": True, "stored": [file("nightly-server-9", "s3://bucket")], **facts}
        return Cluster({(server, "list"): stored for server in ("server-1", "server-2", "server-3")})

    def test_the_first_server_is_restored_without_a_check_of_a_file(self) -> None:
        cluster = self.of()
        plan = cluster.plan("nightly-server-9", s3=True)
        assert (plan.first.name, plan.snapshot.where) == ("server-1", "s3")
        assert cluster.verbs() == {"list"}

    def test_an_object_that_is_not_listed_is_refused(self) -> None:
        with pytest.raises(Failed, match="no snapshot other in the bucket; no changes made"):
            self.of().plan("other", s3=True)

    def test_a_cluster_without_a_bucket_is_refused(self) -> None:
        with pytest.raises(Failed, match=r"snapshots\.s3 is not configured"):
            Cluster().plan("nightly-server-9", s3=True)

    def test_with_k3s_down_nobody_lists_the_bucket_and_k3s_is_asked_at_the_restore(self) -> None:
        plan = self.of(stored=None).plan("nightly-server-9", s3=True)
        assert plan.snapshot == Snapshot("nightly-server-9", "s3", "nightly-server-9", 0, "")

    def test_an_object_is_listed_once_before_the_older_files(self) -> None:
        cluster = self.of()
        cluster.facts["server-1", "list"] = {"s3": True}

        async def listed(inventory: Inventory) -> list[Snapshot]:
            async with Hosts.open(login(), cluster.said.append) as hosts:
                servers = inventory.servers
                answers = await ask(hosts, servers)
                return all_of([each for each in answers if not isinstance(each, str)])

        found = cluster.run(listed)
        assert [each.where for each in found] == ["s3", "server-3", "server-2", "server-1"]


def test_every_server_stops_before_one_is_reset_and_the_others_join_one_after_another() -> None:
    cluster = Cluster()
    done = cluster.restore()
    assert set(cluster.steps[:3]) == {(server, "stop") for server in ("server-1", "server-2", "server-3")}
    later = "server-2 reset, server-2 start, server-1 join, server-3 join, gpu-1 agent, server-2 nodes"
    assert ", ".join(map(" ".join, cluster.steps[3:])) == later
    joined = {name: f"/db/of-{name}" for name in ("server-1", "server-3")}
    assert done.kept == {"server-2": "/db/etcd-old-1", **joined}
    assert done.waiting == ()


def test_a_server_joins_one_that_runs_already() -> None:
    cluster = Cluster()
    cluster.restore()
    url = "https://127.0.0.1:6443"
    assert f"SERVERS={url} " in cluster.commands["server-1", "join"]
    assert f"'SERVERS={url} {url}'" in cluster.commands["server-3", "join"]
    assert "'NODES=server-2 server-1 server-3 gpu-1'" in cluster.commands["server-2", "nodes"]
    assert "INSTALL_ID=1" in cluster.commands["gpu-1", "agent"].split()


REFUSED = {"reset": False, "kept": "", "reason": "k3s server --cluster-reset failed"}


@pytest.mark.parametrize(
    ("cluster", "said", "verbs"),
    [
        (Cluster(fails={("server-3", "stop"): "k3s did not stop"}), "k3s did not stop", {"stop"}),
        (Cluster({("server-2", "reset"): REFUSED}), "--cluster-reset failed", {"stop", "reset"}),
    ],
)
def test_a_restore_that_cannot_begin_changes_nothing(cluster: Cluster, said: str, verbs: set[str]) -> None:
    with pytest.raises(Failed, match=rf"{said}.*Nothing was restored.*on all servers"):
        cluster.restore()
    assert sorted(cluster.order("start")) == ["server-1", "server-2", "server-3"]
    assert cluster.verbs() == {*verbs, "start"}


@pytest.mark.parametrize("failing", ["stop", "reset"])
def test_after_an_unfinished_restore_no_server_starts_with_what_it_has(failing: str) -> None:
    cluster = Cluster({("server-3", "list"): {"restoring": True}, ("server-2", "reset"): REFUSED})
    if failing == "stop":
        cluster.fails["server-1", "stop"] = "k3s did not stop"
    with pytest.raises(Failed, match=r"was not finished, so K3s is not started again"):
        cluster.restore()
    assert "start" not in cluster.verbs()
    if failing == "reset":
        assert "RESUMED=true" in cluster.commands["server-2", "reset"]


@pytest.mark.parametrize(
    ("wanted", "s3", "again"),
    [("kept", True, "--snapshot kept --s3"), ("/root/kept/old.db", False, "--snapshot /root/kept/old.db")],
)
def test_an_unfinished_restore_is_repeated_with_the_snapshot_from_where_it_was(
    wanted: str, s3: bool, again: str
) -> None:
    elsewhere = {"restoring": True, "s3": True, "snapshots": [file("old.db", "/root/kept")]}
    cluster = Cluster({("server-1", "list"): elsewhere, ("server-1", "reset"): REFUSED})
    with pytest.raises(Failed, match=f"busbar restore STACK {again}$"):
        cluster.restore(wanted, s3=s3)


def test_servers_that_cannot_start_again_are_named() -> None:
    cluster = Cluster(
        fails={("server-3", "stop"): "k3s did not stop", ("server-1", "start"): "k3s crashed 3 times"}
    )
    with pytest.raises(Failed, match=r"running again not on all servers: server-1: .*crashed"):
        cluster.restore()


def test_after_a_reset_of_unknown_outcome_no_server_starts_with_its_old_data() -> None:
    cluster = Cluster(fails={("server-2", "reset"): "timed out"})
    with pytest.raises(Failed, match=r"of server-1, server-3 were not changed.*same command"):
        cluster.restore()
    assert cluster.verbs() == {"stop", "reset"}


def test_a_server_that_cannot_join_ends_the_restore_and_the_old_data_are_named() -> None:
    cluster = Cluster(fails={("server-1", "join"): "Node server-1 Ready: timed out"})
    with pytest.raises(Failed) as failed:
        cluster.restore()
    text = str(failed.value)
    assert "server-2 has the data of nightly-server-2; old data: server-2:/db/etcd-old-1." in text
    assert "run the same command again" in text
    assert ("server-3", "join") not in cluster.steps


def test_a_worker_that_does_not_answer_stops_nothing_and_nodes_that_wait_are_returned() -> None:
    cluster = Cluster({("server-2", "nodes"): {"waiting": ["gpu-1"]}}, gone=("gpu-1",))
    assert cluster.restore().waiting == ("gpu-1",)
    assert any(text.startswith("gpu-1: ") for text in cluster.said)
