"""Removed hosts: one that is gone stops nothing and is named; one that answers is never taken for gone.

The hosts are SSH servers of this test on loopback; what a host script would print is made up.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from typer.testing import Result

from busbar.hosts import ssh
from busbar.hosts.inventory import Host
from busbar.hosts.remote import ScriptError
from busbar.operations import removal
from tests.support.cli import busbar
from tests.support.ssh_hosts import CLIENT, CLOSED_PORT, at, login, machine, printing

STRANGER = asyncssh.generate_private_key("ssh-ed25519")
ROLES = {"lb": "lb", "s": "server", "w": "worker"}
# A machine in place of a host: how its SSH server differs from the usual one, or none of them.
GONE, CLOSED = "gone", "closed"
Machine = dict[str, Any] | str
NOWHERE = "240.0.0.1"  # reserved: no route, or no answer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Connections to NOWHERE fail at once, as those to a machine that is switched off do."""
    connect = ssh.connect

    async def without_route(host: Host, *rest: Any) -> Any:
        if host.address == NOWHERE:
            raise OSError(113, "No route to host")
        return await connect(host, *rest)

    monkeypatch.setattr(ssh, "connect", without_route)
    monkeypatch.setattr(removal, "CONNECT_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)


def spec(host: Host, *others: Host) -> removal.HostRemoval:
    return removal.HostRemoval(
        login=login(), host=host, others=others, timeout_seconds=20, folder=".busbar/dev",
        script="k3s-server" if host.role == "server" else "k3s-agent", resource="busbar-worker@w-1",
        values={"OWNER": "a/b/c", "INSTALL_ID": "1"},
    )  # fmt: skip


def answers(facts: dict[str, Any], commands: list[str] | None = None, **ends: Any) -> Machine:
    """A machine that prints these facts."""
    return {"handler": printing(facts, [] if commands is None else commands, **ends)}


def broken(why: str) -> Machine:
    return answers({}, status=1, stderr=f"busbar: {why}\n")


LB = {"lb-1": answers({})}
RUNS, STOPPED = {"cluster": True}, {"cluster": False}


def remove(name: str, host: Machine, others: dict[str, Machine]) -> tuple[str | None, list[str]]:
    """Remove a host beside others; why it was given up, None if it was removed, and what was said."""
    said: list[str] = []

    async def scenario() -> str | None:
        async with contextlib.AsyncExitStack() as stack:
            hosts = []
            for each, kind in {name: host, **others}.items():
                role = ROLES[each.partition("-")[0]]
                if isinstance(kind, dict):
                    hosts.append(at(await stack.enter_async_context(machine(**kind)), each, role))
                elif kind == CLOSED:
                    hosts.append(at(CLOSED_PORT, each, role))
                else:
                    hosts.append(at(22, each, role, address=NOWHERE))
            return await removal.remove_host(spec(*hosts), said.append)

    return asyncio.run(scenario()), said


def test_a_host_that_answers_runs_the_removal_that_belongs_to_its_resource() -> None:
    commands: list[str] = []
    assert remove("w-1", answers({"removed": True}, commands), {}) == (None, [])
    [command] = commands
    for value in ("VERB=remove", "OWNER=a/b/c", "INSTALL_ID=1", "NODE_NAME=w-1"):
        assert value in command


def test_a_node_that_a_removed_worker_has_made_again_is_deleted_through_a_server() -> None:
    asked: dict[str, list[str]] = {"lb-1": [], "s-1": []}
    others = {name: answers(RUNS, commands) for name, commands in asked.items()}
    assert remove("w-1", answers({"removed": True, "node_again": True}), others) == (None, [])
    [command] = asked["s-1"]
    assert {"VERB=remove", "NODE_NAME=w-1", "INSTALL_ID=1"} <= {*command.split()} and asked["lb-1"] == []


@pytest.mark.parametrize("accepted", [CLIENT, STRANGER], ids=["answers", "refuses the key"])
def test_a_worker_that_is_gone_is_given_up_while_another_host_answers(accepted: asyncssh.SSHKey) -> None:
    missed, _ = remove("w-1", GONE, {"lb-1": {"login": accepted}})
    assert missed == f"connection to root@{NOWHERE}:22 failed: No route to host"


def test_a_destroy_that_may_end_jobs_says_so_to_hosts_whatever_the_last_update_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in ("true", "false"):
        commands: list[str] = []
        monkeypatch.setenv("BUSBAR_CANCEL_JOBS", value)
        assert remove("w-1", answers({}, commands), LB) == (None, [])
        assert ("CANCEL_JOBS=true" in commands[-1].split()) is (value == "true")


def test_a_host_is_not_gone_if_no_other_one_answers_either() -> None:
    text = r"no other host of the cluster answers either \(lb-1\).*VPN"
    with pytest.raises(ScriptError, match=text) as raised:
        remove("w-1", GONE, {"lb-1": GONE})
    assert "--preserve-config" in str(raised.value), "without it, the engine deletes the stack file"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        # Such as after a change of the key in the update that takes out the host.
        (
            {"login": STRANGER},
            r"refuses the SSH key.*list it again.*state delete .*` of .*-removal@w-1",
        ),
        (CLOSED, "refuses the connection"),
        (broken("w-1: something is mounted. Fix: x"), "w-1: k3s-agent failed: something is mounted"),
    ],
)
def test_a_host_that_is_alive_is_removed_or_its_removal_fails(host: Machine, said: str) -> None:
    with pytest.raises(ScriptError, match=said):
        remove("w-1", host, LB)


def test_another_machine_at_the_address_is_not_touched_and_the_host_is_given_up() -> None:
    commands: list[str] = []
    missed, _ = remove("w-1", {"handler": printing({}, commands), "key": STRANGER}, LB)
    assert missed is not None and "another host key" in missed
    assert commands == []


# ---- A server that is gone, which leaves etcd through another one -----------------------------------------


def test_a_server_that_is_gone_leaves_etcd_through_the_first_peer_that_runs() -> None:
    asked: dict[str, list[str]] = {"lb-1": [], "s-1": [], "s-2": [], "s-3": []}
    facts = {"lb-1": RUNS, "s-1": STOPPED, "s-2": RUNS, "s-3": RUNS}
    missed, _ = remove("s-9", GONE, {name: answers(facts[name], asked[name]) for name in asked})
    assert missed is not None
    # A login that only shows that somebody answers runs nothing.
    assert [len(commands) for commands in asked.values()] == [0, 1, 1, 0]
    assert "NODE_NAME=s-9" in asked["s-2"][0]


@pytest.mark.parametrize(
    "first", [GONE, broken("the Kubernetes API is not responding")], ids=["gone", "silent"]
)
def test_it_leaves_through_the_next_server_if_the_first_does_not_answer(first: Machine) -> None:
    commands: list[str] = []
    _, said = remove("s-9", GONE, {"s-1": first, "s-2": answers(RUNS, commands)})
    assert len(commands) == 1 and "NODE_NAME=s-9" in commands[0]
    assert first == GONE or any("s-1: k3s-nodes failed" in line for line in said)


def test_the_first_reason_is_told_if_it_can_leave_through_none() -> None:
    others = {"s-1": broken("the first"), "s-2": broken("the second"), "s-3": answers(STOPPED)}
    with pytest.raises(ScriptError, match=r"s-1: k3s-nodes failed: .*the first"):
        remove("s-9", GONE, others)


@pytest.mark.parametrize(("command", "verb"), [("cluster", "VERB=teardown"), ("keep", "VERB=keep")])
def test_every_server_that_answers_is_told_whether_the_cluster_goes_or_stays(command: str, verb: str) -> None:
    commands: list[str] = []

    async def scenario() -> Result:
        async with machine(printing({"node": "s-2"}, commands)) as port:
            servers = (at(22, "s-1", "server", address=NOWHERE), at(port, "s-2", "server"))
            spec = removal.Teardown(login=login(), servers=servers, install_id="11")
            words, stdin = ["remove", command], spec.model_dump_json()
            return await asyncio.to_thread(busbar, *words, stdin=stdin)

    done = asyncio.run(scenario())
    assert (done.exit_code, len(commands)) == (0, 1) and {verb, "INSTALL_ID=11"} <= {*commands[0].split()}
    assert "s-1: connection to" in done.stderr


# ---- The record of hosts that were given up ---------------------------------------------------------------


def test_a_given_up_host_stays_on_record_until_it_is_installed_again(tmp_path: Path) -> None:
    removal.write_record(tmp_path, "worker-w-1", at(22, "w-1", "worker"), "timed out")
    [record] = removal.read_records(tmp_path, listed={"worker-w-2"})
    assert str(record).startswith("could not be cleaned: w-1 (timed out, ")
    assert removal.read_records(tmp_path, listed={"worker-w-1"}) == []
    assert removal.read_records(tmp_path, listed=set()) == []


def test_a_record_that_was_interrupted_while_it_was_written_does_not_break_later_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, text: str, **_: Any) -> None:
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        removal.write_record(tmp_path, "worker-w-1", at(22, "w-1", "worker"), "no route")
    assert removal.read_records(tmp_path, listed=()) == []
