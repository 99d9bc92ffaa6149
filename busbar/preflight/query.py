"""Runs the preflight script on one host over SSH; a failure becomes a finding, never an exception."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import asyncssh

from busbar.hosts import scripts as hostscript
from busbar.hosts.script_output import result as hostscript_result
from busbar.preflight.report import Report
from busbar.preflight.spec import Finding, Target
from busbar.preflight.ssh import CONNECT_SECONDS, Keys, connect, connection_finding, listed_as

# nvidia-smi alone may take 60 s (host/preflight-hardware.sh).
SCRIPT_SECONDS = 75


@dataclass(frozen=True)
class Answer:
    """What a host reported, and the local time (epoch, seconds) before and after the script ran."""

    report: Report
    clock: tuple[float, float]


async def query(
    target: Target,
    values: Mapping[str, str],
    keys: Keys,
    tunnel: asyncssh.SSHClientConnection | None,
    names: Mapping[str, str],
    *,
    deliver: bool = False,
) -> Answer | Finding:
    """Run `host/preflight.sh` with `values` on one host; takes at most CONNECT_SECONDS + SCRIPT_SECONDS.

    `names`: host key -> name of every host, to recognise hosts that are swapped. `deliver`: the host keeps
    the script that its Command runs later (busbar.hosts.scripts).
    """
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await connect(target, keys, tunnel)
    except asyncssh.HostKeyNotVerifiable as error:
        return connection_finding(target, error, await listed_as(target, tunnel, names))
    except (OSError, asyncssh.Error) as error:
        return connection_finding(target, error)
    done: asyncssh.SSHCompletedProcess
    try:
        async with asyncio.timeout(SCRIPT_SECONDS), connection:
            before = time.time()
            done = await _run(connection, target, values, hostscript.delivery(target.role) if deliver else {})
            after = time.time()
    except TimeoutError:
        return Finding(
            target.name,
            "error",
            f"preflight script timed out after {SCRIPT_SECONDS} s",
            "log in and look for what hangs (nvidia-smi, a dead mount, systemctl): dmesg | tail",
        )
    except (OSError, asyncssh.Error) as error:
        return connection_finding(target, error)
    return _read(target, done, (before, after))


async def _run(
    connection: asyncssh.SSHClientConnection,
    target: Target,
    values: Mapping[str, str],
    payload: Mapping[str, str],
) -> asyncssh.SSHCompletedProcess:
    text = hostscript.command(
        "preflight",
        values,
        user=target.user,
        timeout_seconds=SCRIPT_SECONDS,
    )
    process = await connection.create_process(text, errors="replace")
    # A sudo that refuses exits before it has read stdin; its exit status and output are what matters.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(hostscript.stdin("preflight", payload))
        process.stdin.write_eof()
    return await process.wait()


def _read(target: Target, done: asyncssh.SSHCompletedProcess, clock: tuple[float, float]) -> Answer | Finding:
    errors = _text(done.stderr).strip() or _text(done.stdout).strip()
    if done.exit_status != 0:
        if target.user != "root" and "sudo:" in errors:
            return Finding(
                target.name,
                "error",
                f"{target.user} cannot use sudo without a password: {errors.splitlines()[-1]}",
                f"echo '{target.user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/busbar, or log in as root",
            )
        return Finding(
            target.name,
            "error",
            f"preflight script failed (exit status {done.exit_status}): {errors[-400:] or 'no output'}",
            "run host/preflight.sh there by hand, as its first lines say",
        )
    lines = _text(done.stdout).strip().splitlines()
    try:
        report = Report.model_validate(hostscript_result(_text(done.stdout)))
    except ValueError as error:  # pydantic's ValidationError is one
        return Finding(
            target.name,
            "error",
            f"preflight script printed no report: got {lines[-1][:200] if lines else 'nothing'!r}, expected "
            f"one JSON line ({str(error).splitlines()[0]})",
            "run host/preflight.sh there by hand, as its first lines say; look for an `exec` in .bashrc",
        )
    return Answer(report, clock)


def _text(output: bytes | bytearray | memoryview | str | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else bytes(output).decode(errors="replace")
