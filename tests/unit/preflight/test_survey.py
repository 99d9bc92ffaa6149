"""Hosts are asked over real SSH connections, to servers of this test on loopback."""

import asyncio
import json
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from busbar.hosts import remote, ssh
from busbar.hosts.inventory import Host
from busbar.preflight import facts
from busbar.preflight import spec as query
from busbar.preflight.facts import HostRecord
from busbar.preflight.host_checks import check_clock
from busbar.preflight.spec import Spec
from busbar.preflight.survey import CONCURRENT, CONCURRENT_AGAIN, Outcome, deadline_seconds, survey
from tests.support.reports import report
from tests.support.ssh_hosts import CLIENT, HOST, Handler, machine, public
from tests.unit.preflight.samples import REQUIRED, a_host, spec

STRANGER = asyncssh.generate_private_key("ssh-ed25519")
FAILED, PROHIBITED = asyncssh.OPEN_CONNECT_FAILED, asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED


def answering(**changes: Any) -> Handler:
    def handler(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write(f"{report(epoch=time.time(), **changes).model_dump_json()}\n")
        process.exit(0)

    return handler


def printing(stdout: str = "", stderr: str = "", status: int = 0) -> Handler:
    def handler(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write(stdout)
        process.stderr.write(stderr)
        process.exit(status)

    return handler


def ask(asked: Spec, previous: dict[str, HostRecord] | None = None) -> Outcome:
    return asyncio.run(survey(asked, previous or {}))


def ask_one(
    handler: Handler,
    key_file: Path,
    *,
    server: Any = None,
    deliver: bool = False,
    previous: dict[str, HostRecord] | None = None,
    **changes: Any,
) -> Outcome:
    """Ask a host that answers so; `server`: how its sshd differs, `changes`: those of the host.

    One with a `previous` record is in quarantine.
    """

    async def scenario() -> Outcome:
        async with machine(handler, **(server or {})) as port:
            asked = spec(at(port, **changes), key_file=str(key_file))
            held = asked.model_copy(update={"quarantined": tuple(previous or ())})
            return await survey(held, previous or {}, deliver=deliver)

    return asyncio.run(scenario())


def at(port: int, name: str = "worker-1", /, **changes: Any) -> Host:
    place: dict[str, Any] = {"address": "127.0.0.1", "port": port, "host_key": public(HOST)}
    return a_host(name, **place | changes)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ssh") / "id_ed25519"
    CLIENT.write_private_key(path)
    return path


def bastion(port: int, key: asyncssh.SSHKey = HOST) -> dict[str, Any]:
    """The bastion of a login, on loopback."""
    return {"address": "127.0.0.1", "user": "root", "port": port, "host_key": public(key)}


def what(outcome: Outcome) -> str:
    (finding,) = outcome.errors
    return f"{finding.host}: {finding.what}"


def test_a_good_host_passes_with_its_facts(key_file: Path) -> None:
    outcome = ask_one(answering(), key_file)
    assert outcome.findings == []
    assert outcome.records["worker-1"].facts["rails"] == [f"mlx5_{n}" for n in range(8)]


def test_a_login_shell_that_prints_another_encoding_than_utf8_keeps_no_host_out(key_file: Path) -> None:
    made = report(epoch=time.time()).model_dump_json()
    banner: Any = "Höchstleistungsrechner\n".encode("latin-1")

    def handler(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(banner + f"{made}\n".encode())
        process.exit(0)

    assert ask_one(handler, key_file, server={"encoding": None}).findings == []


@pytest.mark.parametrize(
    ("server", "host", "says"),
    [
        ({}, {"host_key": public(STRANGER)}, "has another host key than the pinned one"),
        ({"login": STRANGER}, {}, "refuses the SSH key"),
        ({}, {"port": 1}, "worker-1: root@127.0.0.1:1 refuses the connection"),
    ],
)
def test_a_host_without_a_login_is_named(
    key_file: Path, server: dict[str, Any], host: dict[str, Any], says: str
) -> None:
    assert says in what(ask_one(answering(), key_file, server=server, **host))
    before = {"worker-1": HostRecord("earlier", "machine", {"gpus": 8})}
    outcome = ask_one(answering(), key_file, server=server, previous=before, **host)
    [finding] = outcome.findings
    assert finding.kind == "warning" and finding.what.endswith("; left out of this update")
    assert facts.unreachable(outcome.records) == {"worker-1"}, "its own steps are left out"


@pytest.mark.parametrize(("known", "role"), [(True, "worker"), (False, "worker"), (True, "server")])
def test_only_a_worker_that_passed_before_may_be_down_and_is_asked_again_next_time(
    key_file: Path, known: bool, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_route(*_: Any) -> Any:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(ssh, "connect", without_route)
    before = {"host-1": HostRecord("earlier", "machine", {"gpus": 8})} if known else {}
    asked = spec(a_host("host-1", role=role), key_file=str(key_file))
    outcome = ask(asked, before)
    may_be_down = known and role == "worker"
    [finding] = outcome.findings
    assert finding.kind == ("warning" if may_be_down else "error")
    assert ("No route to host; left out of this update" in finding.what) is may_be_down
    expected = {"host-1": HostRecord("", "machine", {"gpus": 8})} if may_be_down else {}
    assert outcome.records == expected
    assert facts.unreachable(outcome.records) == expected.keys()


def test_hosts_that_time_out_among_others_are_asked_again_in_small_batches(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, asked, open_at_once = ssh.connect, Counter[str](), set[str]()
    dead, loaded = {"worker-1"}, {f"worker-{number}" for number in range(2, 30)}

    async def slow_at_first(host: Host, *way: Any) -> Any:
        asked[host.name] += 1
        if (asked[host.name] == 1 and host.name in loaded) or host.name in dead:
            raise TimeoutError
        if host.name in loaded:
            open_at_once.add(host.name)
            await asyncio.sleep(0)
            assert len(open_at_once) <= CONCURRENT_AGAIN
        connection = await connect(host, *way)
        open_at_once.discard(host.name)
        return connection

    monkeypatch.setattr(ssh, "connect", slow_at_first)

    async def scenario() -> Outcome:
        async with machine(answering()) as port:
            workers = [at(port, f"worker-{number}") for number in range(1, 33)]
            return await survey(spec(*workers, key_file=str(key_file)), {})

    outcome = asyncio.run(scenario())
    assert {finding.host for finding in outcome.findings if "timed out" in finding.what} == dead
    assert asked == {**dict.fromkeys(asked, 1), **dict.fromkeys(dead | loaded, 2)}


def test_where_no_host_answers_none_is_asked_twice(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def dead(host: Host, *_: Any) -> Any:
        asked.append(host.name)
        raise TimeoutError

    monkeypatch.setattr(ssh, "connect", dead)
    outcome = ask(spec(a_host("a"), a_host("b"), key_file=str(key_file)))
    assert sorted(asked) == ["a", "b"]
    assert len(outcome.errors) == 2


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("sudo: a password is required", "NOPASSWD"),
        # sudo-rs as the sudo of Ubuntu 26.04.
        ("sudo: interactive authentication is required", "NOPASSWD"),
        ("sudo-rs: I'm sorry ubuntu. I'm afraid I can't do that", "NOPASSWD"),
        # What is allowed is not to be allowed again.
        ("sudo: sorry, you must have a tty to run sudo", "Defaults:ubuntu !requiretty"),
    ],
)
def test_a_sudo_that_refuses_is_told_with_its_cure(said: str, fix: str, key_file: Path) -> None:
    outcome = ask_one(printing(stderr=f"{said}\n", status=1), key_file, user="ubuntu")
    assert f"the login as ubuntu ends with exit status 1; it printed: {said}" in what(outcome)
    assert fix in str(outcome.errors[0].fix)
    assert ("NOPASSWD" in str(outcome.errors[0].fix)) is (fix == "NOPASSWD")


def test_a_host_that_hangs_ends_at_the_deadline(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "SCRIPT_SECONDS", 0.3)
    monkeypatch.setattr(remote, "GRACE_SECONDS", 0)
    outcome = ask_one(lambda process: None, key_file)
    assert "worker-1: preflight timed out after 0.3 s" in what(outcome)


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("Welcome to worker-1!", "without a facts line; it printed: Welcome to worker-1!"),
        ('{"schema_version":4}', "preflight printed another report than expected"),
    ],
)
def test_what_is_no_report_is_an_error(printed: str, says: str, key_file: Path) -> None:
    assert says in what(ask_one(printing(f"{printed}\n"), key_file))


def test_all_findings_of_a_host_come_at_once(key_file: Path) -> None:
    outcome = ask_one(answering(arch="riscv64", systemd=False, hcas=[]), key_file)
    assert len(outcome.errors) == 3
    assert outcome.records == {}, "a host with an error must be asked again"


@pytest.mark.parametrize(("deliver", "role"), [(True, "worker"), (False, "worker"), (True, "server")])
def test_an_update_gives_only_workers_their_script(key_file: Path, deliver: bool, role: str) -> None:
    payloads: list[dict[str, str]] = []

    async def listening(process: asyncssh.SSHServerProcess[str]) -> None:
        payloads.append(json.loads(await process.stdin.readline()))
        answering()(process)

    ask_one(listening, key_file, deliver=deliver, role=role)
    given = deliver and role == "worker"
    assert [sorted(each) for each in payloads] == [["deliver", "deliver_as"] if given else []]


def test_a_host_without_k3s_is_recorded_with_the_time_at_which_it_was_asked(key_file: Path) -> None:
    before = int(time.time())
    record = ask_one(answering(), key_file).records["worker-1"]
    digest, since = facts.machine(record).split()
    assert digest == record.machine and before <= int(since) <= time.time()
    running = answering(k3s_version="v1.35.6+k3s1", k3s_data=True, managed=["k3s-agent"])
    assert facts.machine(ask_one(running, key_file).records["worker-1"]) == record.machine


def fingerprint(asked: Spec) -> str:
    return asked.fingerprint(asked.hosts[0])


def test_a_host_that_passed_the_same_question_is_not_asked_again(key_file: Path) -> None:
    asked = spec(a_host(address="127.0.0.1", port=1), key_file=str(key_file))
    previous = {"worker-1": HostRecord(fingerprint(asked), "aaaaaaaa", {"gpus": 8})}
    outcome = ask(asked, previous)
    assert (outcome.queried, outcome.findings) == (0, [])
    assert outcome.records == previous


def test_another_question_way_or_script_asks_a_host_again(monkeypatch: pytest.MonkeyPatch) -> None:
    jump = {"address": "10.0.0.9", "host_key": public(HOST)}
    before = fingerprint(spec(a_host()))
    assert fingerprint(spec(a_host())) == before
    others = (
        spec(a_host(), required=REQUIRED.model_copy(update={"gpus": 4})),
        spec(a_host(address="10.0.0.22")),
        spec(a_host(), key_digest="b" * 12),
        spec(a_host(), bastion=jump),
    )
    assert before not in map(fingerprint, others)
    monkeypatch.setattr("busbar.hosts.scripts.digest", lambda script: "0" * 12)
    assert fingerprint(spec(a_host())) != before


def test_a_key_that_is_none_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("not a key at all")
    with pytest.raises(ValueError, match="cannot be used") as caught:
        ask(spec(a_host(), key_file=str(path)))
    assert "not a key at all" not in str(caught.value)


def behind_a_bastion(code: int, reason: str, key_file: Path) -> Outcome:
    """Ask a worker that passed before; the bastion cannot open the connection to it, and says why."""

    class Refusing(asyncssh.SSHServer):
        def connection_requested(self, *_: object) -> bool:
            raise asyncssh.ChannelOpenError(code, reason)

    async def scenario() -> Outcome:
        async with machine(key=STRANGER, kind=Refusing) as jump:
            asked = spec(a_host(), key_file=str(key_file), bastion=bastion(jump, STRANGER))
            return await survey(asked, {"worker-1": HostRecord("other", "aaaaaaaa", {"gpus": 8})})

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "reason", "level", "says"),
    [
        *(
            (FAILED, reason, "warning", "left out of this update")
            for reason in ("No route to host", "Connection timed out", "Network is unreachable")
        ),
        (FAILED, "Connection refused", "error", "root@10.0.0.21:22 refuses the connection"),
        (PROHIBITED, "no", "error", "the bastion does not open a connection to root@10.0.0.21:22: no"),
    ],
)
def test_only_a_dead_worker_behind_a_bastion_does_not_stop_the_others(
    code: int, reason: str, level: str, says: str, key_file: Path
) -> None:
    (finding,) = behind_a_bastion(code, reason, key_file).findings
    assert (finding.kind, finding.unreachable) == (level, level == "warning")
    assert says in finding.what and "10.0.0.21:22" in finding.what


def test_a_bastion_that_is_down_is_named_for_every_host_behind_it(key_file: Path) -> None:
    asked = spec(a_host("a"), a_host("b"), key_file=str(key_file), bastion=bastion(1))
    outcome = ask(asked)
    assert [finding.host for finding in outcome.errors] == ["a", "b"]
    assert all("bastion: root@127.0.0.1:1 refuses the connection" in each.what for each in outcome.errors)


def test_a_silent_bastion_is_named_instead_of_hosts(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the connection is made, and nobody says anything
        port = silent.getsockname()[1]
        monkeypatch.setattr("busbar.hosts.ssh.CONNECT_SECONDS", 0.2)
        outcome = ask(spec(a_host("a"), key_file=str(key_file), bastion=bastion(port)))
    assert f"bastion: connection to root@127.0.0.1:{port} timed out" in what(outcome)


def test_an_ssh_agent_that_answers_is_fine_and_a_stale_one_an_error_even_if_the_key_is_a_file(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the kernel takes at most 107 bytes for the path of a socket
    monkeypatch.setenv("SSH_AUTH_SOCK", "agent")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("agent")
        listener.listen()
        assert ask_one(answering(), key_file).findings == []
    stale = r"ssh-agent at SSH_AUTH_SOCK=.*agent is not responding.*unset SSH_AUTH_SOCK"
    with pytest.raises(ValueError, match=stale):
        ask_one(answering(), key_file)


def test_a_login_of_agent_without_an_agent_is_one_error_and_not_one_per_host() -> None:
    with pytest.raises(ValueError, match=r"ssh\.agent is true, but SSH_AUTH_SOCK is not set"):
        ask(spec(a_host("a"), a_host("b")))


def test_the_deadline_grows_with_the_number_of_waves() -> None:
    one = deadline_seconds(CONCURRENT)
    assert one == deadline_seconds(1)
    assert deadline_seconds(CONCURRENT + 1) == 2 * one
    assert deadline_seconds(440) == 7 * one


def test_a_host_that_answers_late_has_no_wrong_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        """Its script read the clock a minute before all of its output was here."""

        connected = {"worker-1": 1000.0}  # noqa: RUF012 - read once

        async def run(self, *_: Any, **__: Any) -> dict[str, Any]:
            return report(epoch=1040.0).model_dump()

    monkeypatch.setattr("time.time", lambda: 1100.0)
    late: Any = Late()
    answer = asyncio.run(query.query(late, a_host(), {}))
    assert isinstance(answer, query.Answer)
    assert [*check_clock(answer.report, answer.clock)] == []
