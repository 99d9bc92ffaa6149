"""Asks one host over SSH, with its key pinned; a failure becomes a finding, never an exception."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncssh
from pydantic import ValidationError

from busbar.hosts import scripts as hostscript
from busbar.preflight.report import Report
from busbar.preflight.spec import Finding, Spec, Target

CONNECT_SECONDS = 15
SCRIPT_SECONDS = 35
PORT_OF_SSH = 22


@dataclass(frozen=True)
class Answer:
    """What a host reported, and the operator's time (epoch, seconds) before and after it."""

    report: Report
    clock: tuple[float, float]


@dataclass(frozen=True)
class Keys:
    """The private keys to offer; None means those of the ssh-agent."""

    client: list[asyncssh.SSHKey] | None


def load_keys(spec: Spec) -> Keys:
    """The key that the spec names. Raises ValueError, with the cure, where it cannot be used."""
    login = spec.login
    try:
        if login.key_file is not None:
            return Keys([asyncssh.read_private_key(login.key_file, login.private_key_password)])
        if login.private_key is not None:
            return Keys([asyncssh.import_private_key(login.private_key, login.private_key_password)])
    except OSError as error:
        raise ValueError(f"ssh.key_file: {login.key_file} cannot be read: {error.strerror}") from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        where = login.key_file or "the secret busbar:sshPrivateKey"
        raise ValueError(
            f"the SSH key in {where} cannot be used: {error}. Is it a private key in OpenSSH or PEM "
            "format, and is busbar:sshPrivateKeyPassword set where it has a password?"
        ) from None
    return Keys(None)


@contextlib.asynccontextmanager
async def bastion(spec: Spec, keys: Keys) -> AsyncIterator[asyncssh.SSHClientConnection | None]:
    """The connection to the jump host, shared by all; None where there is none.

    Raises OSError or asyncssh.Error where it cannot be made.
    """
    jump = spec.login.bastion
    if jump is None:
        yield None
        return
    target = Target(
        name="bastion",
        address=jump.address,
        port=jump.port,
        user=jump.user,
        host_key=jump.host_key,
        role="lb",
    )
    async with await connect(target, keys, None) as connection:
        yield connection


async def ask(
    spec: Spec, target: Target, keys: Keys, tunnel: asyncssh.SSHClientConnection | None
) -> Answer | Finding:
    """Run `host/preflight.sh` on one host; ends within CONNECT_SECONDS + SCRIPT_SECONDS."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await connect(target, keys, tunnel)
    except (OSError, asyncssh.Error) as error:
        return explain(target, error)
    done: asyncssh.SSHCompletedProcess
    try:
        async with asyncio.timeout(SCRIPT_SECONDS), connection:
            before = time.time()
            done = await _run(connection, target)
            after = time.time()
    except TimeoutError:
        return Finding(
            target.name,
            "error",
            f"did not finish looking at itself within {SCRIPT_SECONDS} s",
            "Log in and look for what hangs (nvidia-smi? a dead mount? systemctl?): dmesg | tail",
        )
    except (OSError, asyncssh.Error) as error:
        return explain(target, error)
    return _read(target, done, (before, after))


async def _run(connection: asyncssh.SSHClientConnection, target: Target) -> asyncssh.SSHCompletedProcess:
    text = hostscript.command(
        "preflight",
        {"NODE_NAME": target.name, "ROLE": target.role},
        user=target.user,
        timeout_seconds=SCRIPT_SECONDS,
    )
    process = await connection.create_process(text)
    # A sudo that refuses is gone before it has read anything; its exit status and words are what counts.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(hostscript.stdin("preflight"))
        process.stdin.write_eof()
    return await process.wait()


async def connect(
    target: Target, keys: Keys, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    """A connection that accepts the pinned host key and no other; no ssh_config is read."""
    known = f"{target.address} {target.host_key}\n"
    if target.port != PORT_OF_SSH:
        known = f"[{target.address}]:{target.port} {target.host_key}\n"
    return await asyncssh.connect(
        target.address,
        target.port,
        tunnel=tunnel or (),
        username=target.user,
        known_hosts=asyncssh.import_known_hosts(known),
        client_keys=keys.client if keys.client is not None else (),
        agent_path=None if keys.client is not None else (),
        server_host_key_algs=["ssh-ed25519"],
        preferred_auth="publickey",
        config=None,
        connect_timeout=CONNECT_SECONDS,
        login_timeout=CONNECT_SECONDS,
    )


def explain(target: Target, error: Exception) -> Finding:
    """A failed connection as a finding that names the host and the cure."""
    where = f"{target.user}@{target.address}:{target.port}"
    match error:
        case asyncssh.HostKeyNotVerifiable():
            what = f"shows another host key than the one that is pinned, at {where}"
            cure = (
                f"If the host was installed anew: ssh-keyscan -p {target.port} -t ed25519 {target.address}, "
                "compare it on the host's console, and put it into host_key; else somebody is in between"
            )
        case asyncssh.PermissionDenied():
            what = f"refuses the SSH key for {where}"
            cure = "Put the public key into ~/.ssh/authorized_keys there, or correct ssh.user and the key"
        case asyncssh.KeyExchangeFailed():
            what = f"offers no ed25519 host key, at {where}"
            cure = "ssh-keygen -A on the host, restart sshd, and pin the new ed25519 key"
        case TimeoutError():
            what = f"cannot be reached at {where}: no answer within {CONNECT_SECONDS} s"
            cure = "Is it switched on, the address right, and TCP to that port open from here?"
        case ConnectionRefusedError():
            what = f"refuses the connection to {where}"
            cure = "Is sshd running there, and on that port?"
        case OSError():
            reason = os.strerror(error.errno) if error.errno else str(error)
            what = f"cannot be reached at {where}: {reason}"
            cure = "Is it switched on, the address right, and a route there from here?"
        case _:
            what = f"broke off the SSH connection to {where}: {error}"
            cure = "Look at the host's log: journalctl -u ssh"
    return Finding(target.name, "error", what, cure)


def _read(target: Target, done: asyncssh.SSHCompletedProcess, clock: tuple[float, float]) -> Answer | Finding:
    errors = _text(done.stderr).strip() or _text(done.stdout).strip()
    if done.exit_status != 0:
        if target.user != "root" and "sudo:" in errors:
            return Finding(
                target.name,
                "error",
                f"does not let {target.user} use sudo without a password: {errors.splitlines()[-1]}",
                f"echo '{target.user} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/busbar, or log in as root",
            )
        return Finding(
            target.name,
            "error",
            f"could not look at itself (status {done.exit_status}): {errors[-400:] or 'no message'}",
            "Run host/preflight.sh there by hand, as its first lines say",
        )
    lines = _text(done.stdout).strip().splitlines()
    try:
        report = Report.model_validate(json.loads(lines[-1] if lines else ""))
    except (ValidationError, json.JSONDecodeError) as error:
        return Finding(
            target.name,
            "error",
            f"gave an answer that is no report: {lines[-1][:200] if lines else 'nothing'!r} "
            f"({str(error).splitlines()[0]})",
            "Does a login script of that user print something? Nothing may be printed without a terminal",
        )
    return Answer(report, clock)


def _text(output: bytes | bytearray | memoryview | str | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else bytes(output).decode(errors="replace")
