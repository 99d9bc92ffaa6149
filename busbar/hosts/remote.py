"""Runs a script of `host/` on a host over SSH."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import asyncssh

from busbar.exits import NoVerdict
from busbar.finding import Finding, Fix, filled
from busbar.hosts import scripts, ssh
from busbar.hosts.inventory import Host, Login
from busbar.hosts.scripts import script_result

# Time in seconds beyond the script's own deadline, for the transfer and the kill after it.
GRACE_SECONDS = 30
# Time limit in seconds for the facts of a script that continues.
FACTS_SECONDS = 30
RETRY_SECONDS = 3.0
# A login that stops in the middle of a line for this time asks something that nobody answers.
PROMPT_SECONDS = 15
_QUOTED_LINES = 3
_CHUNK_CHARACTERS = 1 << 14
# The line on stdout that a login shell prints before it runs a script.
BEGUN = "busbar: begun"
_REPAIR = "log in as busbar does, and repair what this prints"

Say = Callable[[str], None]


Result = TypeVar("Result")


class ScriptError(NoVerdict):
    """A host responded, but the step failed there; the text has the name of the host and the fix."""

    def __init__(self, what: str, host: str = "", fix: Fix | str = "") -> None:
        self.finding = Finding((host,) if host else (), what, fix)
        super().__init__(f"{host}: {what}" if host else what, fix)
        self.what = what


class UnreachableError(NoVerdict):
    """No SSH connection to the host was possible.

    `answers`: whether a machine responded that may be the host: it refuses the key, or the connection.
    """

    def __init__(self, host: Host, error: Exception) -> None:
        self.finding = ssh.connection_finding(host, error)
        self.answers = isinstance(error, _ANSWERS)
        super().__init__(f"{host.name}: {self.finding.what}", self.finding.fix)


class _Asks(Exception):
    """A login waits in the middle of a line."""


class _Printed:
    """The lines that a login prints on both streams. `begun`: it has run the script."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.begun = False

    async def read(self, process: asyncssh.SSHClientProcess[str]) -> None:
        """Read to the end. Raises _Asks where the login stops in the middle of a line."""
        # Both are read at once: a host whose stdout is not read does not end its stderr.
        await asyncio.gather(
            self._read(process.stdout, self._on_stdout), self._read(process.stderr, self._on_stderr)
        )

    async def _read(self, stream: asyncssh.SSHReader[str], take: Callable[[str], None]) -> None:
        chunk, rest = "\n", ""
        while chunk:
            limit = PROMPT_SECONDS if rest.strip() and not self.begun else None
            try:
                async with asyncio.timeout(limit):
                    chunk = await stream.read(_CHUNK_CHARACTERS)
            except TimeoutError:
                if self.begun:
                    continue
                take(rest)
                raise _Asks from None
            *lines, rest = (rest + chunk).split("\n")
            for line in lines:
                take(line)
        take(rest)

    def _on_stdout(self, line: str) -> None:
        self.begun = self.begun or line == BEGUN
        if line.strip() and line != BEGUN:
            self.stdout.append(line.strip())

    def _on_stderr(self, line: str) -> None:
        if note := line.strip():
            self.stderr.append(note)
            self._say(note)

    @property
    def text(self) -> str:
        return "\n".join([*self.stdout, *self.stderr])

    @property
    def quoted(self) -> str:
        """The last lines of both streams, as the end of a sentence."""
        lines = [line[:200] for lines in (self.stdout, self.stderr) for line in lines[-_QUOTED_LINES:]]
        return f"; it printed: {' / '.join(lines)}" if lines else "; it printed nothing"


# Sudo's message to a user without the rule, and to one for whom sudoers has `requiretty`.
_SUDO = r"^sudo(-rs)?: |not in the sudoers file|is not allowed to (run|execute)|sudo: .*not found"
# Text of a login -> first step. In /etc/sudoers.d the last of two lines counts, so the name sorts after all.
_LOGINS = {
    r'please login as the user "(?P<other>[^"]+)"': "set ssh.user: {other}",
    r"account is (currently )?not available": "usermod -s /bin/bash {user} there, or another ssh.user",
    r"allows sftp connections only": "set ssh.user to an account without `ForceCommand internal-sftp` there",
    r"password has expired|password change required": "passwd {user}, on the host's console",
    r"verification code|one-time|passcode|\bOTP\b": "exempt {user} from the second factor there",
    r"sudo: .*not found": "install sudo there, or set ssh.user: root",
    r"must have a tty": "echo 'Defaults:{user} !requiretty' >> /etc/sudoers.d/zz-busbar, or ssh.user: root",
    _SUDO: "echo '{user} ALL=(ALL) NOPASSWD: ALL' >> /etc/sudoers.d/zz-busbar there, or set ssh.user: root",
}


def _find(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE)


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
    process = await connection.create_process(f"printf '\\n{BEGUN}\\n'; exec {text}", errors="replace")
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
        self, login: Login, keys: ssh.Keys, tunnel: asyncssh.SSHClientConnection | None, say: Say
    ) -> None:
        self._keys, self._tunnel, self._say = keys, tunnel, say
        self._jump = f"-J {via.user}@{via.address}:{via.port} " if (via := login.bastion) else ""
        self.connected: dict[str, float] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, login: Login, say: Say = lambda text: None) -> AsyncIterator[Hosts]:
        """Log in to the bastion, if any. Raises ValueError (unusable key) and ScriptError (bastion)."""
        ssh.check_agent(login)
        keys = ssh.load_keys(login)
        async with contextlib.AsyncExitStack() as stack:
            try:
                tunnel = await stack.enter_async_context(ssh.bastion(login, keys))
            except (OSError, asyncssh.Error) as error:
                assert login.bastion is not None  # without one nothing is dialled
                finding = ssh.connection_finding(login.bastion, error)
                raise ScriptError(finding.what, "bastion", finding.fix) from None
            yield cls(login, keys, tunnel, say)

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
        printed = _Printed(self._say)
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS), connection:
                process = await run_script(connection, host, script, values, payload, seconds=seconds)
                await printed.read(process)
                done = await process.wait()
        except _Asks:
            raise self._login_failed(host, "asks something, and nobody answers", printed) from None
        except TimeoutError:
            what = f"{script} timed out after {seconds} s{printed.quoted}"
            hangs = '"ps -eo stat,pid,args | grep ^D"', "see what hangs; repair or reboot"
            fix = self._by_hand(host, *hangs) if printed.begun else self._by_hand(host)
            raise ScriptError(what, host.name, fix) from None
        except (OSError, asyncssh.Error) as error:
            self._check_bastion(host, error)
            what = f"connection lost during {script}: {error}"
            raise ScriptError(what, host.name, self._by_hand(host)) from None
        if done.exit_status != 0:
            if not printed.begun or (host.user != "root" and _find(_SUDO, printed.text)):
                raise self._login_failed(host, f"ends with exit status {done.exit_status}", printed)
            reason = [f"exit status {done.exit_status}{printed.quoted}", *printed.stderr][-1]
            reason = reason.removeprefix(f"busbar: {host.name}: ")
            raise ScriptError(f"{script} failed: {filled(reason)}", host.name)
        try:
            return script_result("\n".join(printed.stdout))
        except ValueError:
            if not printed.begun:
                raise self._login_failed(host, "does not run the script", printed) from None
            what = f"{script} exited 0 without a facts line{printed.quoted}"
            raise ScriptError(what, host.name, self._by_hand(host)) from None

    async def start(
        self, host: Host, script: str, values: Mapping[str, str], *, fact: str, seconds: int
    ) -> tuple[dict[str, Any], asyncssh.SSHClientConnection]:
        """Start a script that continues until its stdin ends, which happens when the connection is closed.

        Returns the facts, which have `fact`, and the connection. Raises UnreachableError and ScriptError.
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

    def _login_failed(self, host: Host, what: str, printed: _Printed) -> ScriptError:
        """The error of a login that did not run the script; `what`: how it ended."""
        found = ((_find(pattern, printed.text), fix) for pattern, fix in _LOGINS.items())
        fixes = [fix.format(user=host.user, **match.groupdict()) for match, fix in found if match]
        text = f"the login as {host.user} {what}{printed.quoted}"
        return ScriptError(text, host.name, fixes[0] if fixes else self._by_hand(host))

    def _by_hand(self, host: Host, command: str = "id", why: str = _REPAIR) -> str:
        return f"{why}: ssh {self._jump}-p {host.port} {host.user}@{host.address} {command}"

    def _check_bastion(self, host: Host, error: Exception) -> None:
        """Raise ScriptError if the bastion is the reason why the host cannot be reached."""
        if self._tunnel is not None and self._tunnel.is_closed():
            what = f"not reached: the connection to the bastion was lost: {error}"
            fix = "run the same command again when the bastion's sshd answers: systemctl status ssh there"
            raise ScriptError(what, host.name, fix) from None

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
            except (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable) as error:
                raise UnreachableError(host, error) from error
            except (OSError, asyncssh.Error) as error:
                self._check_bastion(host, error)
                if asyncio.get_running_loop().time() >= deadline:
                    raise UnreachableError(host, error) from error
            await asyncio.sleep(RETRY_SECONDS)
