"""The package `command`: local.Command, remote.Command, remote.CopyToRemote and the function local.run."""

from __future__ import annotations

from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import ProviderError, Resource
from lab.offline.plugins.sdk.values import Properties, reveal


class CommandProvider(Provider):
    """Behaves as pulumi-command 1.2.1."""

    name = "command"
    version = "1.2.1"

    def resource(self, type_token: str) -> Resource:
        if type_token == "command:local:Command":
            from lab.offline.plugins.command.local import LocalCommand

            return LocalCommand()
        if type_token == "command:remote:Command":
            from lab.offline.plugins.command.remote import RemoteCommand

            return RemoteCommand()
        if type_token == "command:remote:CopyToRemote":
            from lab.offline.plugins.command.copy_to_remote import CopyToRemote

            return CopyToRemote()
        raise ProviderError(f"this replacement of the command plugin has no resource {type_token!r}")

    def invoke(self, token: str, args: Properties) -> Properties:
        if token != "command:local:run":
            return super().invoke(token, args)
        from lab.offline.plugins.command.local import run_local

        plain = reveal(args)
        ran = run_local(
            plain["command"], plain, previous={}, show=lambda text: None, cancelled=self.cancelled
        )
        return {**args, **ran}
