"""One operation at a time: the real script under the real lock of the kernel, over SSH on loopback."""

import asyncio
import base64
import contextlib
import gzip
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from busbar.exits import Failed
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts
from busbar.operations import lock
from busbar.operations.lock import held
from tests.support.bash import run
from tests.support.ssh_hosts import HOST, at, login, machine, public

UP, RESTORE = "busbar up dev", "busbar restore dev"


def server_with(path: Path) -> Callable[[asyncssh.SSHServerProcess[str]], object]:
    """A server that runs what it is sent, as another user than root, with its lock in `path`."""

    async def handler(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write('Welcome {"maintenance": "Sunday"}')
        await process.stdin.readline()
        sent = gzip.decompress(base64.b64decode(await process.stdin.readline())).decode()
        functions = sent.rstrip().removesuffix("\nmain").replace("/run/busbar-operation.lock", str(path))
        functions = functions.replace("flock -w 5", "flock -w 0.1")
        words = shlex.split(process.command or "")
        values = dict(word.split("=", 1) for word in words if "=" in word and word[0].isupper())
        running = await asyncio.create_subprocess_exec(
            "bash", "-c", f"{functions}\nbegin() {{ set -euo pipefail; }}\nmain",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", **values},
        )  # fmt: skip
        assert running.stdin and running.stdout

        async def answer(stdout: asyncio.StreamReader) -> None:
            async for line in stdout:
                process.stdout.write(line.decode())

        answering = asyncio.create_task(answer(running.stdout))
        with contextlib.suppress(asyncssh.Error):  # connection lost
            async for line in process.stdin:
                running.stdin.write(line.encode())
        running.stdin.close()
        await asyncio.gather(answering, running.wait())
        process.exit(0)

    return handler


def on_server(path: Path, scenario: Callable[[Host], None]) -> None:
    """The scenario, which blocks, with a server on loopback."""

    async def serve() -> None:
        async with machine(server_with(path / "lock")) as port:
            await asyncio.to_thread(scenario, at(port, "server-1", "server"))

    asyncio.run(serve())


@pytest.mark.parametrize(("first", "second"), [(UP, RESTORE), (RESTORE, UP), (RESTORE, RESTORE)])
def test_a_second_operation_is_refused_until_the_first_ends(tmp_path: Path, first: str, second: str) -> None:
    def scenario(server: Host) -> None:
        with held(login(), [server], first, on_all=first != UP):
            refused = f"^`{first}` of .*, process [0-9]+, since .* is changing the cluster .seen on server-1"
            with pytest.raises(Failed, match=refused), held(login(), [server], second, on_all=second != UP):
                pytest.fail("both ran")
        with held(login(), [server], second, on_all=second != UP):
            pass

    on_server(tmp_path, scenario)


def test_the_lock_of_a_command_that_was_killed_ends_with_its_connection(tmp_path: Path) -> None:
    async def taken_and_killed(server: Host) -> None:
        async with Hosts.open(login()) as hosts:
            facts, connection = await hosts.start(
                server, lock.SCRIPT, {"OPERATION": UP}, fact="holder", seconds=60
            )
            assert facts == {"holder": ""}
            connection.abort()

    def scenario(server: Host) -> None:
        asyncio.run(taken_and_killed(server))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(Failed), held(login(), [server], RESTORE, on_all=True):
                return
            time.sleep(0.1)
        pytest.fail("still locked")

    on_server(tmp_path, scenario)


def test_a_held_lock_sends_lines_by_which_the_kernel_notices_a_machine_that_is_gone(tmp_path: Path) -> None:
    quick = "read() { builtin read -r -t 0.1 _; }"
    out = tmp_path / "out"
    # Its stdin ends when there are two lines beside those of the holder, or after 30 s.
    until = f"for _ in {{1..300}}; do (($(wc -l <{out}) < 4)) || break; sleep 0.1; done"
    call = f"begin() {{ :; }}; {quick}; OPERATION_LOCK={tmp_path}/lock; >{out}; {{ {until}; }} | main >{out}"
    assert run("operation-lock", call, OPERATION=UP).returncode == 0
    assert out.read_text().startswith('\n{"holder":""}\n\n\n')


def test_a_lock_whose_holder_has_not_written_its_name_yet_is_taken_all_the_same(tmp_path: Path) -> None:
    call = f"begin() {{ :; }}; flock() {{ return 1; }}; OPERATION_LOCK={tmp_path}/lock; main"
    done = run("operation-lock", call, OPERATION=UP)
    assert (done.returncode, done.stdout) == (0, '\n{"holder":"another operation"}\n')


@pytest.mark.parametrize(("behind", "said"), [(False, r"^server-1: .*Fix: "), (True, "bastion")])
def test_a_silent_server_holds_no_update_up_and_is_needed_for_a_restore(behind: bool, said: str) -> None:
    jump = {"address": "127.0.0.1", "user": "root", "port": 1, "host_key": public(HOST)}
    way = Login.model_validate({**login().model_dump(), **({"bastion": jump} if behind else {})})
    nobody = at(1, "server-1", "server")
    with held(way, [nobody], UP, on_all=False):
        pass
    with pytest.raises(Failed, match=said), held(way, [nobody], RESTORE, on_all=True):
        pytest.fail("without a lock")


def test_a_held_lock_can_be_taken_on_no_server_even_if_another_one_is_free(tmp_path: Path) -> None:
    async def serve() -> None:
        one, two = server_with(tmp_path / "1"), server_with(tmp_path / "2")
        async with machine(one) as first, machine(two) as second:
            await asyncio.to_thread(
                scenario, at(first, "server-1", "server"), at(second, "server-2", "server")
            )

    def scenario(one: Host, two: Host) -> None:
        with (
            held(login(), [two], UP, on_all=False),
            pytest.raises(Failed, match="seen on server-2"),
            held(login(), [one, two], RESTORE, on_all=True),
        ):
            pytest.fail("both ran")
        with held(login(), [one, two], RESTORE, on_all=True):
            pass

    asyncio.run(serve())
