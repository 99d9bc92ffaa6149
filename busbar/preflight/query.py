"""Runs the preflight script on one host over SSH; a failure becomes a finding, never an exception."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import asyncssh

from busbar.hosts import scripts
from busbar.hosts.finding import Finding
from busbar.hosts.host import Host
from busbar.hosts.remote import run_script
from busbar.hosts.script_output import result
from busbar.hosts.ssh import CONNECT_SECONDS, Keys, connect, connection_finding, listed_as
from busbar.preflight.report import Report

# nvidia-smi alone may take 60 s (host/preflight-hardware.sh).
SCRIPT_SECONDS = 75


@dataclass(frozen=True)
class Answer:
    """What a host reported, and the local time (epoch, seconds) before and after the script ran."""

    report: Report
    clock: tuple[float, float]


async def query(
    host: Host,
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
            connection = await connect(host, keys, tunnel)
    except asyncssh.HostKeyNotVerifiable as error:
        return connection_finding(host, error, await listed_as(host, tunnel, names))
    except (OSError, asyncssh.Error) as error:
        return connection_finding(host, error)
    done: asyncssh.SSHCompletedProcess
    try:
        async with asyncio.timeout(SCRIPT_SECONDS), connection:
            before = time.time()
            payload = scripts.delivery(host.role) if deliver else {}
            process = await run_script(connection, host, "preflight", values, payload, seconds=SCRIPT_SECONDS)
            done = await process.wait()
            after = time.time()
    except TimeoutError:
        return Finding(
            host.name,
            "error",
            f"preflight script timed out after {SCRIPT_SECONDS} s",
            "log in and look for what hangs (nvidia-smi, a dead mount, systemctl): dmesg | tail",
        )
    except (OSError, asyncssh.Error) as error:
        return connection_finding(host, error)
    return _read(host, done, (before, after))


def _read(host: Host, done: asyncssh.SSHCompletedProcess, clock: tuple[float, float]) -> Answer | Finding:
    errors = _text(done.stderr).strip() or _text(done.stdout).strip()
    if done.exit_status != 0:
        if host.user != "root" and "sudo:" in errors:
            return Finding(
                host.name,
                "error",
                f"{host.user} cannot use sudo without a password: {errors.splitlines()[-1]}",
                f"echo '{host.user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/busbar, or log in as root",
            )
        return Finding(
            host.name,
            "error",
            f"preflight script failed (exit status {done.exit_status}): {errors[-400:] or 'no output'}",
            "run host/preflight.sh there by hand, as its first lines say",
        )
    lines = _text(done.stdout).strip().splitlines()
    try:
        report = Report.model_validate(result(_text(done.stdout)))
    except ValueError as error:  # pydantic's ValidationError is one
        return Finding(
            host.name,
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
