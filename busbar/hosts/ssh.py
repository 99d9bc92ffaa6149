"""SSH connections to hosts: keys, the bastion, pinned host keys, and connection errors as findings."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator

import asyncssh

from busbar.config import Bastion
from busbar.exits import Misuse
from busbar.finding import STACK, Finding, Fix
from busbar.hosts.inventory import Host, Login

CONNECT_SECONDS = 15
AGENT_SECONDS = 5
# The agent's protocol (draft-miller-ssh-agent 3.5): a request for the keys; length, type and their number.
_LIST_KEYS = b"\0\0\0\x01\x0b"
_KEYS_HEADER_BYTES = 9
GONE = "if the machine is gone for good, take it out of hosts"
SSH_PORT = 22
# Texts of the bastion's sshd when it gets no connection to a host -> errno.
_FAR_ERRORS = {
    os.strerror(number): number
    for number in (
        *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT),
        *(errno.ECONNREFUSED, errno.ECONNRESET),
    )
}


# The private keys to offer; None: the keys of the ssh-agent.
Keys = list[asyncssh.SSHKey] | None


class UnusableKey(Misuse, ValueError):
    """The private key or the ssh-agent cannot be used; the text says why, with the fix."""


class NotForwarded(asyncssh.ChannelOpenError):
    """The bastion does not open a connection to a host, for a reason of its own."""


def load_keys(login: Login) -> Keys:
    """The key of the login. Raises UnusableKey if it cannot be used."""
    try:
        if login.key_file is not None:
            return [asyncssh.read_private_key(login.key_file, login.private_key_password)]
        if login.private_key is not None:
            return [asyncssh.import_private_key(login.private_key, login.private_key_password)]
    except OSError as error:
        raise UnusableKey(f"ssh.key_file: {login.key_file!r} cannot be read: {error.strerror}") from None
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        where = login.key_file or "the secret sshPrivateKey"
        raise UnusableKey(
            f"the SSH key in {where} cannot be used: {error}. Fix: give a private key in OpenSSH or PEM "
            "format, and its passphrase, if it has one, as the secret sshPrivateKeyPassword"
        ) from None
    return None


def check_agent(login: Login) -> None:
    """Raise UnusableKey if the ssh-agent is not responding.

    It must answer even if the key is not in the agent: pulumi-command dials a set SSH_AUTH_SOCK and fails
    if it cannot (provider/pkg/provider/remote/connection.go).
    """
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        if login.uses_agent:
            raise UnusableKey(
                "ssh.agent is true, but SSH_AUTH_SOCK is not set. Fix: start an ssh-agent and ssh-add the key"
            )
        return
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(AGENT_SECONDS)
            client.connect(path)
            if login.uses_agent:
                client.sendall(_LIST_KEYS)
                if client.recv(_KEYS_HEADER_BYTES).endswith(bytes(4)):
                    raise UnusableKey(
                        f"the ssh-agent at SSH_AUTH_SOCK={path} has no keys. Fix: ssh-add KEYFILE"
                    )
    except OSError as error:
        fix = "start an ssh-agent and ssh-add the key" if login.uses_agent else "unset SSH_AUTH_SOCK"
        raise UnusableKey(
            f"the ssh-agent at SSH_AUTH_SOCK={path} is not responding ({error.strerror or error}), and "
            f"pulumi-command would use it for every host. Fix: {fix}"
        ) from None


@contextlib.asynccontextmanager
async def bastion(login: Login, keys: Keys) -> AsyncIterator[asyncssh.SSHClientConnection | None]:
    """The connection to the bastion, shared by all hosts; None without one.

    Raises OSError or asyncssh.Error if it fails.
    """
    if login.bastion is None:
        yield None
        return
    async with await connect(login.bastion, keys, None) as connection:
        yield connection


async def connect(
    host: Host | Bastion, keys: Keys, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    """A connection that accepts only the pinned host key; ssh_config is not read.

    Raises OSError or asyncssh.Error; through a `tunnel` the same OSError as without one.
    """
    known = f"{host.address} {host.host_key}\n"
    if host.port != SSH_PORT:
        known = f"[{host.address}]:{host.port} {host.host_key}\n"
    try:
        return await asyncssh.connect(
            host.address,
            host.port,
            tunnel=tunnel or (),
            username=host.user,
            known_hosts=asyncssh.import_known_hosts(known),
            client_keys=() if keys is None else keys,
            agent_path=() if keys is None else None,
            server_host_key_algs=["ssh-ed25519"],
            preferred_auth="publickey",
            config=None,
            connect_timeout=CONNECT_SECONDS,
            login_timeout=CONNECT_SECONDS,
        )
    except asyncssh.ChannelOpenError as error:
        raise _of_host(error) from error


def _of_host(error: asyncssh.ChannelOpenError) -> Exception:
    """A bastion's error about its connection to a host, as if a direct connection had failed."""
    if error.code == asyncssh.OPEN_CONNECT_FAILED and error.reason in _FAR_ERRORS:
        return OSError(_FAR_ERRORS[error.reason], error.reason)
    return NotForwarded(error.code, error.reason)


async def offered_key(host: Host | Bastion, tunnel: asyncssh.SSHClientConnection | None) -> str:
    """The ed25519 host key that answers, `ssh-ed25519 AAAA...`; nobody logs in. Raises as `connect`."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            key = await asyncssh.get_server_host_key(
                host.address,
                host.port,
                tunnel=tunnel or (),
                server_host_key_algs=["ssh-ed25519"],
                config=None,
            )
    except asyncssh.ChannelOpenError as error:
        raise _of_host(error) from error
    if key is None:
        raise asyncssh.KeyExchangeFailed("no host key")
    return " ".join(key.export_public_key().decode().split()[:2])


def connection_finding(host: Host | Bastion, error: Exception) -> Finding:
    """A failed connection as a finding."""
    name = host.name if isinstance(host, Host) else "bastion"
    where = f"{host.user}@{host.address}:{host.port}"
    unreachable = False
    fix: Fix | str
    match error:
        case asyncssh.HostKeyNotVerifiable():
            what = f"{where} has another host key than the pinned one (possible man-in-the-middle)"
            fix = Fix("see which key answers, and whose it is", ("hosts", "keys", STACK))
        case asyncssh.PermissionDenied():
            what = f"{where} refuses the SSH key"
            fix = "add the public key to ~/.ssh/authorized_keys there, or correct ssh.user or the key"
        case asyncssh.DisconnectError() if "too many authentication failures" in str(error).lower():
            what = f"{where} refuses the login after too many keys of the ssh-agent"
            fix = "set ssh.key_file to the key of this login, or leave only that one in the agent: ssh-add -D"
        case asyncssh.KeyExchangeFailed():
            what = f"{where} offers no ed25519 host key"
            fix = "ssh-keygen -A on the host, restart sshd, and set host_key to the new ed25519 key"
        case TimeoutError():
            unreachable = True
            what = f"connection to {where} timed out after {CONNECT_SECONDS} s"
            fix = f"check that the host is running, its address, and that the port is open from here; {GONE}"
        case ConnectionRefusedError():
            what = f"{where} refuses the connection"
            fix = "check that sshd is running there, on that port"
        case NotForwarded():
            what = f"the bastion does not open a connection to {where}: {error.reason}"
            fix = "allow it in the bastion's sshd_config: AllowTcpForwarding yes, PermitOpen any"
        case OSError():
            reason = os.strerror(error.errno) if error.errno else str(error)
            unreachable = True
            what = f"connection to {where} failed: {reason}"
            fix = f"check that the host is running, its address, and the route to it from here; {GONE}"
        case _:
            what = f"SSH connection to {where} failed: {error}"
            fix = f"see where it ends: ssh -v -p {host.port} {host.user}@{host.address} id"
    return Finding((name,), what, fix, unreachable=unreachable)
