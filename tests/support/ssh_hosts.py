"""SSH servers of a test on loopback, in place of hosts; what a host script would print is made up."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncssh

from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import BEGUN

CLIENT = asyncssh.generate_private_key("ssh-ed25519")
HOST = asyncssh.generate_private_key("ssh-ed25519")
Handler = Callable[[asyncssh.SSHServerProcess[Any]], Any]
CLOSED_PORT = 1  # a port that was free a moment ago may be that of another test by now


def login() -> Login:
    """The login that the hosts accept."""
    return Login(private_key=CLIENT.export_private_key().decode())


def printing(facts: dict[str, Any], commands: list[str], status: int = 0, stderr: str = "") -> Handler:
    """A host that notes every command, and prints the same for all of them."""

    def handler(process: asyncssh.SSHServerProcess[str]) -> None:
        commands.append(process.command or "")
        process.stderr.write(stderr)
        process.stdout.write(json.dumps(facts) + "\n")
        process.exit(status)

    return handler


@contextlib.asynccontextmanager
async def machine(
    handler: Handler | None = None,
    key: asyncssh.SSHKey = HOST,
    login: asyncssh.SSHKey = CLIENT,
    *,
    kind: Callable[[], asyncssh.SSHServer] = asyncssh.SSHServer,
    encoding: str | None = "utf-8",
    begins: bool = True,
) -> AsyncIterator[int]:
    """An SSH server with the host key `key` that accepts the client key `login`; its port.

    `handler` runs for every command, with bytes where `encoding` is None. `kind` decides what the server
    forwards, as a bastion does. `begins`: its logins run the script, and say so.
    """

    def run(process: asyncssh.SSHServerProcess[Any]) -> Any:
        assert handler is not None
        line = f"\n{BEGUN}\n"
        if begins:
            process.stdout.write(line if encoding else line.encode())
        return handler(process)

    server = await asyncssh.create_server(
        kind,
        "127.0.0.1",
        0,
        server_host_keys=[key],
        authorized_client_keys=asyncssh.import_authorized_keys(public(login)),
        process_factory=run if handler else None,
        encoding=encoding,
    )
    async with server:
        yield server.get_port()


def public(key: asyncssh.SSHKey) -> str:
    """TYPE BASE64, as in hosts' `host_key`."""
    return " ".join(key.export_public_key().decode().split()[:2])


def at(port: int, name: str, role: str, key: asyncssh.SSHKey = HOST, address: str = "127.0.0.1") -> Host:
    """The target of a `machine`."""
    return Host(name=name, address=address, port=port, user="root", host_key=public(key), role=role)
