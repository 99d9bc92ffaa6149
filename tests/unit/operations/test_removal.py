"""Removed hosts: one that is gone stops nothing and is named; one that answers is never taken for gone.

The hosts are SSH servers of this test on loopback; what a host script would print is made up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from typer.testing import Result

from busbar.config import Bastion as Jump
from busbar.hosts import ssh
from busbar.hosts.inventory import Host
from busbar.hosts.remote import ScriptError
from busbar.operations import removal
from tests.support.cli import busbar
from tests.support.ssh_hosts import CLIENT, CLOSED_PORT, HOST, at, login, machine, printing, public

STRANGER = asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(removal, "CONNECT_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)


GONE = "240.0.0.1"  # reserved: no route, or no answer


def spec(host: Host, *others: Host) -> removal.HostRemoval:
    return removal.HostRemoval(
        login=login(),
        host=host,
        script="k3s-server" if host.role == "server" else "k3s-agent",
        values={"OWNER": "a/b/c", "INSTALL_ID": "1"},
        timeout_seconds=20,
        others=others,
        folder=".busbar/dev",
        resource="worker-w-1",
    )


def test_a_host_that_answers_runs_the_removal_that_belongs_to_its_resource() -> None:
    commands: list[str] = []

    async def scenario() -> str | None:
        async with machine(printing({"removed": True}, commands)) as port:
            return await removal.remove_host(spec(at(port, "w-1", "worker")), lambda _: None)

    assert asyncio.run(scenario()) is None
    [command] = commands
    for value in ("VERB=remove", "OWNER=a/b/c", "INSTALL_ID=1", "NODE_NAME=w-1"):
        assert value in command


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Connections to GONE fail as those to a machine that is switched off do; the names of those tried."""
    connect, tried = ssh.connect, list[str]()

    async def without_route(host: Host, *rest: Any) -> Any:
        if host.address == GONE:
            tried.append(host.name)
            raise OSError(113, "No route to host")
        return await connect(host, *rest)

    monkeypatch.setattr(ssh, "connect", without_route)
    return tried


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("accepted", [CLIENT, STRANGER], ids=["answers", "refuses the key"])
def test_a_worker_that_is_gone_is_given_up_and_named_while_another_host_answers(
    accepted: asyncssh.SSHKey,
) -> None:
    async def scenario() -> str | None:
        async with machine(printing({}, []), login=accepted) as port:
            worker, front = at(22, "w-1", "worker", address=GONE), at(port, "lb-1", "lb")
            return await removal.remove_host(spec(worker, front), lambda _: None)

    missed = asyncio.run(scenario())
    assert missed == f"connection to root@{GONE}:22 failed: No route to host"


@pytest.mark.usefixtures("gone")
def test_a_host_is_not_gone_if_no_other_one_answers_either() -> None:
    worker, front = at(22, "w-1", "worker", address=GONE), at(22, "lb-1", "lb", address=GONE)
    with pytest.raises(
        ScriptError, match=r"no other host of the cluster answers either \(lb-1\).*VPN"
    ) as raised:
        asyncio.run(removal.remove_host(spec(worker, front), lambda _: None))
    assert "--preserve-config" in str(raised.value), "without it, the engine deletes the stack file"


def remove(commands: list[str], *, closed: bool = False, **kind: Any) -> str | None:
    """Remove a worker that is such a machine, beside a load balancer that answers; None: it was removed."""

    async def scenario() -> str | None:
        answer = kind.pop("answer", printing({}, commands))
        async with machine(answer, **kind) as port, machine(printing({}, [])) as front:
            worker = at(CLOSED_PORT if closed else port, "w-1", "worker")
            return await removal.remove_host(spec(worker, at(front, "lb-1", "lb")), lambda _: None)

    return asyncio.run(scenario())


MOUNTED = printing({}, [], status=1, stderr="busbar: w-1: something is still mounted. Fix: x\n")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"login": STRANGER}, r"refuses the SSH key.*pulumi state delete` of worker-w-1"),
        ({"closed": True}, "refuses the connection"),
        ({"answer": MOUNTED}, "w-1: k3s-agent failed: something is still mounted"),
    ],
)
def test_a_host_that_is_alive_is_removed_or_its_removal_fails(kind: dict[str, Any], said: str) -> None:
    with pytest.raises(ScriptError, match=said):
        remove([], **kind)


def test_another_machine_at_the_address_is_not_touched_and_the_host_is_given_up() -> None:
    commands: list[str] = []
    missed = remove(commands, key=STRANGER)
    assert missed is not None and "another host key" in missed
    assert commands == []


def test_a_note_of_a_host_in_another_encoding_than_utf8_does_not_break_the_connection() -> None:
    said: list[str] = []

    def handler(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stderr.write("busbar: w-1: gel\xf6scht\n".encode("latin-1"))
        process.stdout.write(b'{"removed": true}\n')
        process.exit(0)

    async def scenario() -> None:
        async with machine(handler, encoding=None) as port:
            await removal.remove_host(spec(at(port, "w-1", "worker")), said.append)

    asyncio.run(scenario())
    assert said == ["busbar: w-1: gel\ufffdscht"]


def test_a_machine_without_sshd_behind_a_bastion_is_alive_too() -> None:
    refused = asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "Connection refused")

    class Bastion(asyncssh.SSHServer):
        def connection_requested(self, dest_host: str, dest_port: int, *_: object) -> bool:
            if dest_port == 22:
                raise refused
            return True

    async def scenario() -> None:
        async with machine(kind=Bastion) as bastion, machine(printing({}, [])) as front:
            jump = Jump(address="127.0.0.1", port=bastion, user="root", host_key=public(HOST))
            asked = spec(at(22, "w-1", "worker"), at(front, "lb-1", "lb"))
            through = asked.model_copy(update={"login": login().model_copy(update={"bastion": jump})})
            await removal.remove_host(through, lambda _: None)

    with pytest.raises(ScriptError, match="refuses the connection"):
        asyncio.run(scenario())


@pytest.mark.usefixtures("gone")
def test_a_server_that_is_gone_leaves_etcd_through_the_first_peer_that_runs() -> None:
    asked: dict[str, list[str]] = {"lb-1": [], "s-1": [], "s-2": [], "s-3": []}

    async def scenario() -> str | None:
        stopped, runs = {"cluster": False}, {"cluster": True}
        async with (
            machine(printing(runs, asked["lb-1"])) as front,
            machine(printing(stopped, asked["s-1"])) as first,
            machine(printing(runs, asked["s-2"])) as second,
            machine(printing(runs, asked["s-3"])) as third,
        ):
            peers = [at(first, "s-1", "server"), at(second, "s-2", "server"), at(third, "s-3", "server")]
            lost = at(22, "s-9", "server", address=GONE)
            others = (at(front, "lb-1", "lb"), *peers)
            return await removal.remove_host(spec(lost, *others), lambda _: None)

    assert asyncio.run(scenario()) is not None
    # A login that only shows that somebody answers runs nothing.
    assert [len(commands) for commands in asked.values()] == [0, 1, 1, 0]
    assert "NODE_NAME=s-9" in asked["s-2"][0]


@pytest.mark.usefixtures("gone")
def test_it_leaves_through_the_next_server_if_the_first_is_down() -> None:
    commands: list[str] = []

    async def scenario() -> None:
        async with machine(printing({"cluster": True}, commands)) as port:
            peers = (at(22, "s-1", "server", address=GONE), at(port, "s-2", "server"))
            lost = at(22, "s-9", "server", address=GONE)
            await removal.remove_host(spec(lost, *peers), lambda _: None)

    asyncio.run(scenario())
    # The first login only asks whether anybody answers.
    assert [command for command in commands if "NODE_NAME=s-9" in command] == commands[-1:]


def through(*answers: Callable[..., None]) -> list[str]:
    """Take a lost server out through servers that answer so; returns what was said."""
    said: list[str] = []

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(machine(answer)) for answer in answers]
            servers = [at(port, f"s-{number}", "server") for number, port in enumerate(ports, 1)]
            await removal.remove_host(spec(at(22, "s-9", "server", address=GONE), *servers), said.append)

    asyncio.run(scenario())
    return said


def broken(why: str) -> Callable[..., None]:
    return printing({}, [], status=1, stderr=f"busbar: {why}\n")


@pytest.mark.usefixtures("gone")
def test_it_leaves_through_the_next_server_if_the_api_of_the_first_does_not_answer() -> None:
    runs: list[str] = []
    said = through(broken("the Kubernetes API is not responding"), printing({"cluster": True}, runs))
    assert len(runs) == 1
    assert any("s-1: k3s-nodes failed" in line for line in said)


@pytest.mark.usefixtures("gone")
def test_the_first_reason_is_told_if_it_can_leave_through_none() -> None:
    with pytest.raises(ScriptError, match=r"s-1: k3s-nodes failed: .*the first"):
        through(broken("the first"), broken("the second"), printing({"cluster": False}, []))


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize(("command", "verb"), [("cluster", "VERB=teardown"), ("keep", "VERB=keep")])
def test_every_server_that_answers_is_told_whether_the_cluster_goes_or_stays(command: str, verb: str) -> None:
    commands: list[str] = []

    async def scenario() -> Result:
        async with machine(printing({"node": "s-2"}, commands)) as port:
            servers = (at(22, "s-1", "server", address=GONE), at(port, "s-2", "server"))
            spec = removal.Teardown(login=login(), servers=servers)
            words, stdin = ["remove", command], spec.model_dump_json()
            return await asyncio.to_thread(busbar, *words, stdin=stdin)

    done = asyncio.run(scenario())
    assert (done.exit_code, len(commands)) == (0, 1) and verb in commands[0]
    assert "s-1: connection to" in done.stderr


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
