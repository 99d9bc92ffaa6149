"""Runs a script of `host/` on a host over SSH."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import asyncssh

from busbar.exits import NoVerdict
from busbar.hosts import scripts, ssh
from busbar.hosts.finding import Finding
from busbar.hosts.inventory import Host, Login
from busbar.hosts.scripts import script_result

# Time in seconds beyond the script's own deadline, for the transfer and the kill after it.
GRACE_SECONDS = 30
# Time limit in seconds for the facts of a script that continues.
FACTS_SECONDS = 30
RETRY_SECONDS = 3.0
# Error of sudo for a user for whom sudoers has `requiretty`.
_REQUIRETTY = "must have a tty"

Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Print nothing."""


Result = TypeVar("Result")


class ScriptError(NoVerdict):
    """A host responded, but the step failed there; the text has the name of the host and the fix.

    `what`: the text without the host's name and the fix.
    """

    def __init__(self, what: str, host: str = "", fix: str = "") -> None:
        self.what, self.fix = what, fix
        super().__init__(f"{f'{host}: ' if host else ''}{what}{f'. Fix: {fix}' if fix else ''}")


class UnreachableError(NoVerdict):
    """No SSH connection to the host was possible.

    `finding`: the reason and the fix. `answers`: whether a machine responded that may be the host: an sshd
    that refuses the key, or a machine that refuses the connection.
    """

    def __init__(self, host: Host, error: Exception, answers_as: str | None = None) -> None:
        self.finding: Finding = ssh.connection_finding(host, error, answers_as)
        self.answers = isinstance(error, _ANSWERS)
        super().__init__(f"{host.name}: {self.finding.what}. Fix: {self.finding.fix}")


_ANSWERS = (
    asyncssh.PermissionDenied,
    asyncssh.KeyExchangeFailed,
    asyncssh.ConnectionLost,
    ConnectionRefusedError,
    ConnectionResetError,
)


async def run_script(
    connection: asyncssh.SSHClientConnection,
    host: Host,
    script: str,
    values: Mapping[str, str],
    payload: Mapping[str, str] | None = None,
    *,
    seconds: int,
    ends: bool = True,
) -> asyncssh.SSHClientProcess[str]:
    """Start a script of `host/`, send its stdin, and return the process. `seconds`: the script's deadline.

    Without `ends` its stdin stays open.
    """
    text = scripts.command(
        script, {"NODE_NAME": host.name, **values}, user=host.user, timeout_seconds=seconds
    )
    process = await connection.create_process(text, errors="replace")
    # If sudo refuses, it exits before it has read stdin; its exit status and output matter.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(scripts.stdin(script, payload))
        if ends:
            process.stdin.write_eof()
    return process


async def on_each(
    hosts: Iterable[Host], step: Callable[[Host], Awaitable[Result]], *, at_once: int | None = None
) -> list[Result | str]:
    """Run a step on all hosts, at most `at_once` in parallel. Returns each result, or why it failed."""
    limit = asyncio.Semaphore(at_once) if at_once else contextlib.nullcontext()

    async def one(host: Host) -> Result | str:
        async with limit:
            try:
                return await step(host)
            except (ScriptError, UnreachableError) as error:
                return str(error)

    return await asyncio.gather(*map(one, hosts))


class Hosts:
    """Connections with one login, through its bastion if there is one. Use `Hosts.open`.

    `connected`: name of a host -> the local time (epoch, seconds) of its last connection.
    """

    def __init__(
        self,
        keys: ssh.Keys,
        tunnel: asyncssh.SSHClientConnection | None,
        say: Say,
        names: Mapping[str, str],
    ) -> None:
        self._keys, self._tunnel, self._say, self._names = keys, tunnel, say, names
        self.connected: dict[str, float] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, login: Login, say: Say = _silent, names: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator[Hosts]:
        """Log in to the bastion, if any. Raises ValueError (unusable key) and ScriptError (bastion).

        `names`: host key -> name of every host, to recognise hosts that are swapped.
        """
        ssh.check_agent(login)
        keys = ssh.load_keys(login)
        async with contextlib.AsyncExitStack() as stack:
            try:
                tunnel = await stack.enter_async_context(ssh.bastion(login, keys))
            except (OSError, asyncssh.Error) as error:
                assert login.bastion is not None  # without one nothing is dialled
                finding = ssh.connection_finding(login.bastion, error)
                raise ScriptError(finding.what, "bastion", finding.fix) from None
            yield cls(keys, tunnel, say, names)

    async def run(
        self,
        host: Host,
        script: str,
        values: Mapping[str, str],
        payload: Mapping[str, str] | None = None,
        *,
        seconds: int,
        connect_seconds: float = 0,
    ) -> dict[str, Any]:
        """Run a script and return the facts that it printed. Its notes on stderr are passed on to `say`.

        `values`, `payload`, `seconds`: as in busbar.hosts.scripts. A connection that fails is retried for
        `connect_seconds`. Raises UnreachableError without a connection, ScriptError for other errors.
        """
        connection = await self._connect(host, connect_seconds)
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS), connection:
                process = await run_script(connection, host, script, values, payload, seconds=seconds)
                notes: list[str] = []

                async def note_all() -> None:
                    async for line in process.stderr:
                        if note := line.strip():
                            notes.append(note)
                            self._say(note)

                # Both are read at once: a host whose stdout is not read does not end its stderr.
                stdout, _ = await asyncio.gather(process.stdout.read(), note_all())
                done = await process.wait()
        except TimeoutError:
            raise ScriptError(f"{script} timed out after {seconds} s", host.name) from None
        except (OSError, asyncssh.Error) as error:
            raise ScriptError(f"connection lost during {script}: {error}", host.name) from None
        if done.exit_status != 0:
            reason = notes[-1] if notes else f"exit status {done.exit_status}, no output"
            if host.user != "root" and reason.startswith(("sudo:", "sudo-rs:")):
                needed, line = "a password", f"{host.user} ALL=(ALL) NOPASSWD: ALL"
                if _REQUIRETTY in reason:
                    # sudo uses the last of two lines, so the file's name sorts after all others.
                    needed, line = "a terminal", f"Defaults:{host.user} !requiretty"
                fix = f"echo '{line}' >> /etc/sudoers.d/zz-busbar, or log in as root"
                raise ScriptError(f"{host.user} cannot use sudo without {needed}: {reason}", host.name, fix)
            reason = reason.removeprefix(f"busbar: {host.name}: ")
            raise ScriptError(f"{script} failed: {reason}", host.name)
        try:
            return script_result(stdout)
        except ValueError:
            got = repr(stdout.strip().splitlines()[-1][:200]) if stdout.strip() else "nothing"
            raise ScriptError(f"{script} exited 0 without a facts line, got {got}", host.name) from None

    async def start(
        self, host: Host, script: str, values: Mapping[str, str], *, fact: str, seconds: int
    ) -> tuple[dict[str, Any], asyncssh.SSHClientConnection]:
        """Start a script that continues until its stdin ends, which happens when the connection is closed.

        Returns the facts, which have the key `fact`, and the connection. Raises UnreachableError without a
        connection, ScriptError for other errors.
        """
        connection = await self._connect(host, 0)
        try:
            async with asyncio.timeout(FACTS_SECONDS):
                process = await run_script(connection, host, script, values, seconds=seconds, ends=False)
                async for line in process.stdout:
                    with contextlib.suppress(ValueError):
                        if fact in (facts := script_result(line)):
                            return facts, connection
                reason = (await process.stderr.read()).strip() or "no facts"
        except (TimeoutError, OSError, asyncssh.Error) as error:
            reason = str(error) or f"no facts after {FACTS_SECONDS} s"
        connection.close()
        raise ScriptError(f"{script} failed: {reason}", host.name)

    async def check(self, host: Host) -> None:
        """Log in and out. Raises UnreachableError."""
        async with await self._connect(host, 0):
            pass

    async def _connect(self, host: Host, seconds: float) -> asyncssh.SSHClientConnection:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                async with asyncio.timeout(ssh.CONNECT_SECONDS):
                    connection = await ssh.connect(host, self._keys, self._tunnel)
                self.connected[host.name] = time.time()
                return connection
            except asyncssh.PermissionDenied as error:
                raise UnreachableError(host, error) from error
            except asyncssh.HostKeyNotVerifiable as error:
                listed = await ssh.listed_as(host, self._tunnel, self._names) if self._names else None
                raise UnreachableError(host, error, listed) from error
            except (OSError, asyncssh.Error) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise UnreachableError(host, error) from error
            await asyncio.sleep(RETRY_SECONDS)
