"""The SSH connection to a host, to a real server on loopback."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from busbar.config import Bastion
from busbar.hosts import remote, ssh
from busbar.hosts.inventory import Login
from busbar.hosts.remote import Hosts, ScriptError
from tests.support.ssh_hosts import HOST, at, login, machine, public


def test_the_ssh_config_of_a_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host *\n  HostName none.invalid\n  ProxyCommand false\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    async def offered() -> tuple[str, str]:
        async with machine() as port:
            host = at(port, "worker-1", "worker")
            async with await ssh.connect(host, ssh.load_keys(login()), None) as connection:
                logged_in = connection.get_server_host_key()
            assert logged_in is not None
            return public(logged_in), await ssh.offered_key(host, None)

    by_login, by_asking = asyncio.run(offered())
    assert by_login == by_asking == at(0, "worker-1", "worker").host_key


def refused(stdout: str, stderr: str = "", *, status: int | None = 1, user: str = "root") -> ScriptError:
    """The error of a login that prints this in place of the script's output; without a status it waits."""

    async def run() -> None:
        def handler(process: asyncssh.SSHServerProcess[str]) -> None:
            process.stdout.write(stdout)
            process.stderr.write(stderr)
            if status is not None:
                process.exit(status)

        async with machine(handler, begins=False) as port, Hosts.open(login()) as hosts:
            host = replace(at(port, "worker-1", "worker"), user=user)
            await hosts.run(host, "preflight", {}, seconds=3)

    with pytest.raises(ScriptError) as error:
        asyncio.run(run())
    return error.value


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.mark.parametrize(
    ("stdout", "stderr", "fix"),
    [
        ('Please login as the user "ubuntu" rather than the user "root".\n\n', "", "set ssh.user: ubuntu"),
        ("This account is currently not available.\n", "", "usermod -s /bin/bash root there"),
        ("This service allows sftp connections only.\n", "", "set ssh.user to an account without"),
        ("", "WARNING: Your password has expired.\nPassword change required\n", "passwd root"),
        ("", "sudo: a password is required\n", "echo 'root ALL=(ALL) NOPASSWD: ALL' >>"),
        ("", "bash: line 1: exec: sudo: not found\n", "install sudo there"),
        ("Closed for maintenance\n", "until Monday\n", "log in as busbar does, and repair"),
    ],
)  # fmt: skip
def test_a_login_that_does_not_run_the_script_is_quoted_with_fix(stdout: str, stderr: str, fix: str) -> None:
    error = refused(stdout, stderr, status=142)
    quoted = " / ".join(line for line in (stdout + stderr).splitlines() if line)
    assert f"worker-1: the login as root ends with exit status 142; it printed: {quoted}" in str(error)
    assert str(error.fix).startswith(fix) or fix in str(error.fix)


def test_a_login_that_asks_for_a_code_ends_with_what_it_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PROMPT_SECONDS", 0.2)
    error = refused("Duo two-factor\nVerification code: ", status=None)
    assert "asks something, and nobody answers; it printed: Duo two-factor / Verification code:" in str(error)
    assert "exempt root from the second factor" in str(error.fix)


def test_a_silent_login_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PROMPT_SECONDS", 0.1)
    monkeypatch.setattr(remote, "GRACE_SECONDS", -2.7)
    error = refused("Welcome\n", status=None)
    assert "preflight timed out after 3 s; it printed: Welcome" in str(error)


@contextlib.contextmanager
def agent(folder: Path, answer: bytes) -> Iterator[Path]:
    """An ssh-agent that answers the request for its keys."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "agent"))
        server.listen()

        def serve() -> None:
            client, _ = server.accept()
            client.recv(5)
            client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield folder / "agent"


def test_an_agent_without_keys_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with agent(tmp_path, b"\0\0\0\5\x0c\0\0\0\0") as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        with pytest.raises(ssh.UnusableKey, match=r"has no keys. Fix: ssh-add KEYFILE"):
            ssh.check_agent(Login())


def test_too_many_keys_of_an_agent_are_told_apart_from_a_wrong_one() -> None:
    host = at(22, "worker-1", "worker")
    error = asyncssh.DisconnectError(2, "Too many authentication failures")
    assert "set ssh.key_file to the key of this login" in str(ssh.connection_finding(host, error).fix)


class Jump(asyncssh.SSHServer):
    """A bastion that opens every connection."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.tunnel = conn

    def connection_requested(self, *_: Any) -> bool:
        return True


def behind_a_bastion(handler: Any, made: Any = Jump, *, begins: bool = True) -> tuple[str, int, int]:
    """The error of a script on a host behind a bastion; the ports of the bastion and of the host."""

    async def run() -> tuple[str, int, int]:
        async with machine(kind=made) as jump, machine(handler, begins=begins) as port:
            place = Bastion(address="127.0.0.1", user="root", port=jump, host_key=public(HOST))
            async with Hosts.open(login().model_copy(update={"bastion": place})) as hosts:
                with pytest.raises(ScriptError) as error:
                    await hosts.run(at(port, "worker-1", "worker"), "preflight", {}, seconds=3)
            return str(error.value), jump, port

    return asyncio.run(run())


def test_a_bastion_that_is_lost_is_named_in_place_of_the_host() -> None:
    bastion = Jump()
    said, _, _ = behind_a_bastion(lambda process: bastion.tunnel.abort(), lambda: bastion)
    assert "worker-1: not reached: the connection to the bastion was lost" in said


def test_a_login_behind_a_bastion_is_tried_by_hand_through_it() -> None:
    said, jump, port = behind_a_bastion(lambda process: process.exit(3), begins=False)
    assert f": ssh -J root@127.0.0.1:{jump} -p {port} root@127.0.0.1 id" in said
