"""One operation at a time on a cluster: `busbar up`, `destroy` and `restore` hold a lock on its servers.

The engine has a lock of the stack, but a restore runs without the engine. The lock is a process on each
server (host/operation-lock.sh) at the end of an SSH connection, so it ends with the command that holds it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import getpass
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from busbar.hosts.host import Host
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, Running, ScriptError, UnreachableError

SCRIPT = "operation-lock"
BEAT_SECONDS = 5.0
# A server gives the lock up so long after the last beat.
LOST_SECONDS = 60
LONGEST_SECONDS = 30 * 24 * 3600
END_SECONDS = 30


class LockedError(Exception):
    """Another operation runs, or a server that must be locked cannot be; the text says what to do."""


@contextlib.contextmanager
def held(login: Login, servers: Sequence[Host], command: str, *, on_all: bool) -> Iterator[None]:
    """Hold the lock on `servers` for `command` while the block runs.

    With `on_all` each of them must take it. Otherwise those that cannot be asked are left out, if need be
    all: what runs then names them itself. Raises LockedError before the block.
    """
    taken: concurrent.futures.Future[Callable[[], object]] = concurrent.futures.Future()

    def hold() -> None:
        try:
            asyncio.run(_hold(login, servers, operation(command), on_all, taken))
        except (ScriptError, ValueError) as error:  # no login at all: the bastion, or the key
            if on_all:
                taken.set_exception(LockedError(str(error)))
            else:
                taken.set_result(lambda: None)
        except Exception as error:
            if taken.done():
                raise
            taken.set_exception(error)

    # A thread of its own: the command itself waits for the engine.
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    release = taken.result()
    try:
        yield
    finally:
        release()
        thread.join(END_SECONDS)


def operation(command: str) -> str:
    """What a refused operation is told about this one."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"`{command}` of {_user()}@{platform.node()}, process {os.getpid()}, since {now}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return str(os.getuid())


async def _hold(
    login: Login,
    servers: Sequence[Host],
    text: str,
    on_all: bool,
    taken: concurrent.futures.Future[Callable[[], object]],
) -> None:
    released, loop = asyncio.Event(), asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(Hosts.open(login, lambda _: None))
        answers = await asyncio.gather(
            *(_take(hosts, server, text) for server in servers), return_exceptions=True
        )
        running: list[Running] = []
        failed: list[str] = []
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, ScriptError | UnreachableError):
                failed += [str(answer)] if on_all else []
            elif isinstance(answer, BaseException):
                raise answer
            else:
                holder, script = answer
                stack.push_async_callback(script.close)
                running.append(script)
                if holder:
                    failed.append(
                        f"{holder} changes the cluster (seen on {server.name}); no changes made. "
                        "Fix: wait until it has ended, then retry"
                    )
        if failed:
            raise LockedError(failed[0])
        taken.set_result(lambda: loop.call_soon_threadsafe(released.set))
        while not released.is_set():
            running = [script for script in running if script.beat()]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(released.wait(), BEAT_SECONDS)


async def _take(hosts: Hosts, server: Host, text: str) -> tuple[str, Running]:
    facts, script = await hosts.start(
        server,
        SCRIPT,
        {"OPERATION": text, "BEAT_SECONDS": str(LOST_SECONDS)},
        fact="holder",
        seconds=LONGEST_SECONDS,
    )
    return str(facts["holder"]), script
