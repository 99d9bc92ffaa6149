"""One operation at a time on a cluster: `up`, `destroy` and `restore` hold a lock on its servers.

The lock is a flock on each server at the end of an SSH connection (host/operation-lock.sh), so it ends with
the command that holds it, and two machines exclude each other. The engine's lock of the stack is not enough:
the engine has no command that takes it without an update, a killed command leaves it behind, and a restore
must work if the backend of the state is not responding.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from busbar.exits import Failed
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError

SCRIPT = "operation-lock"
LONGEST_SECONDS = 30 * 24 * 3600
END_SECONDS = 30


@contextlib.contextmanager
def held(login: Login, servers: Sequence[Host], command: str, *, on_all: bool) -> Iterator[None]:
    """Hold the lock on `servers` for `command` while the block runs.

    With `on_all` every server must take it. Otherwise unreachable ones are left out, possibly all: the
    operation itself then reports them. Raises Failed before the block.
    """
    loop = asyncio.new_event_loop()
    # The loop runs in its own thread, because the command itself waits for the engine.
    thread = threading.Thread(target=_run, args=(loop,), daemon=True)
    thread.start()
    try:
        taking = _take_all(login, servers, operation(command), on_all)
        taken = asyncio.run_coroutine_threadsafe(taking, loop).result()
        try:
            yield
        finally:
            # The connection to a server that is not responding ends with this process.
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(taken.aclose(), loop).result(END_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.closing(loop):
        loop.run_forever()


def operation(command: str) -> str:
    """The text about this operation for another one that the lock refuses."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"`{command}` of {requester()}, process {os.getpid()}, since {now}"


def requester() -> str:
    """The user and machine that run this command: USER@MACHINE."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


async def _take_all(login: Login, servers: Sequence[Host], text: str, on_all: bool) -> AsyncExitStack:
    """The connections that hold the lock. Raises Failed."""
    async with AsyncExitStack() as stack:
        try:
            hosts = await stack.enter_async_context(Hosts.open(login))
        except (ScriptError, ValueError) as error:  # no login at all: the bastion, or the key
            if on_all:
                raise Failed(str(error)) from None
            return stack.pop_all()
        takes = (_take(stack, hosts, server, text, on_all) for server in servers)
        for failed in filter(None, await asyncio.gather(*takes, return_exceptions=True)):
            raise failed
        return stack.pop_all()


async def _take(stack: AsyncExitStack, hosts: Hosts, server: Host, text: str, on_all: bool) -> None:
    try:
        facts, connection = await hosts.start(
            server, SCRIPT, {"OPERATION": text}, fact="holder", seconds=LONGEST_SECONDS
        )
    except (ScriptError, UnreachableError) as error:
        if on_all:
            raise Failed(str(error)) from None
        return
    stack.push_async_exit(connection)
    if facts["holder"]:
        what = f"{facts['holder']} is changing the cluster (seen on {server.name}); no changes made"
        raise Failed(what, "wait until it has ended, then retry")
