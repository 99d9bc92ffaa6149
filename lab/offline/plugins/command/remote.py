"""remote.Command: run a command on a host over SSH."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import asyncssh

from lab.offline.plugins.command import connection_input
from lab.offline.plugins.command.base import CommandResource, failure_text, logs, previous_environment
from lab.offline.plugins.command.output import Output
from lab.offline.plugins.command.ssh_dial import dial
from lab.offline.plugins.command.ssh_loop import wait_for
from lab.offline.plugins.sdk.resource import Call, Failure, ProviderError, unique
from lab.offline.plugins.sdk.values import Properties

# As in the official plugin: one connection per command, open until the plugin exits.
_open_connections: list[asyncssh.SSHClientConnection] = []


class RemoteCommand(CommandResource):
    """Runs the text through the login shell of `connection.user`."""

    fields = frozenset(
        {
            *("triggers", "create", "update", "delete", "stdin", "logging", "connection", "environment"),
            "addPreviousOutputInEnv",
        }
    )

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        return connection_input.check(news)

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        return unique(call.name), self.new_state(call, inputs)

    def run(self, call: Call, text: str, inputs: Properties, previous: Mapping[str, str]) -> Properties:
        return wait_for(_run(call, text, inputs, previous))


async def _run(call: Call, text: str, inputs: Properties, previous: Mapping[str, str]) -> Properties:
    connection = await dial(inputs["connection"], call.show, call.cancelled)
    _open_connections.append(connection)
    environment = await _accepted_environment(call, connection, inputs, previous)
    output = Output(call.show, frozenset(name for name in ("stdout", "stderr") if logs(inputs, name)))

    class Session(asyncssh.SSHClientSession[bytes]):
        def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
            output.write("stderr" if datatype == asyncssh.EXTENDED_DATA_STDERR else "stdout", data)

    try:
        channel, _ = await connection.create_session(
            Session, text, env=list(environment.items()), encoding=None
        )
        if inputs.get("stdin"):
            channel.write(inputs["stdin"].encode())
        channel.write_eof()
        await channel.wait_closed()
    except asyncssh.Error as error:
        raise ProviderError(failure_text(error.reason or str(error), text, output.both)) from error
    reason = _reason(channel)
    if reason:
        raise ProviderError(failure_text(reason, text, output.both))
    output.finish()
    return output.outputs()


def _reason(channel: asyncssh.SSHClientChannel[Any]) -> str | None:
    caught = channel.get_exit_signal()
    if caught:
        number = getattr(signal, f"SIG{caught[0]}", 0)
        return f"Process exited with status {128 + number} from signal {caught[0]}"
    status = channel.get_exit_status()
    if status is None:
        return "wait: remote command exited without exit status or exit signal"
    return f"Process exited with status {status}" if status else None


async def _accepted_environment(
    call: Call, connection: asyncssh.SSHClientConnection, inputs: Properties, previous: Mapping[str, str]
) -> dict[str, str]:
    """The variables to send; raises ProviderError if the host does not accept a requested one.

    A server drops what its AcceptEnv does not name. asyncssh does not ask for the server's answer, so a first
    command reads the variables back.
    """
    wanted: dict[str, str] = inputs.get("environment") or {}
    former = previous_environment(inputs, previous)
    if not wanted and not former:
        return {}
    everything = {**wanted, **former}
    accepted = {}
    for name, value in everything.items():
        seen = await connection.run(
            f"printenv {name}", env=everything, stdin=asyncssh.DEVNULL, encoding="utf-8", errors="replace"
        )
        if str(seen.stdout).removesuffix("\n") == value:
            accepted[name] = value
    hint = (
        "Unable to set '{}'. This only works if your SSH server is configured to accept these variables via "
        "AcceptEnv. Alternatively, if a Bash-like shell runs the command on the remote host, you could "
        "prefix the command itself with the variables in the form 'VAR=value command'"
    )
    for name in wanted:
        if name not in accepted:
            call.log_message("error", hint.format(name))
            raise ProviderError(f'could not set environment variable "{name}": ssh: setenv failed')
    for name in former:
        if name not in accepted:
            call.log_message("warning", hint.format(name))
    return accepted
