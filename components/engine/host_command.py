"""One step on one host: a `remote.Command` that runs a script of `host/` over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
from pulumi_command import remote

from busbar.hosts import scripts
from busbar.hosts.host import Host
from components.engine.removal import owner_mark
from components.engine.ssh import SshLogin


@dataclass(frozen=True, kw_only=True)
class HostCommandArgs:
    """What runs where. `payload` holds secrets and contents of files; it travels on stdin only."""

    login: SshLogin
    host: Host
    script: str
    timeout_seconds: int
    values: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    install_id: pulumi.Input[str] | None = None
    """Of a host that is installed: part of its owner mark (host/owner.sh)."""
    owner: str | None = None
    """The resource that the host is marked as owned by, if not the Command itself."""
    logging: remote.Logging = remote.Logging.STDERR
    """What of the script's output is shown; stdout is the result."""
    delivered: bool = False
    """The script does not travel with the Command: preflight delivers it (busbar.hosts.scripts). Such a
    Command needs the hook of components/engine/script_delivery.py."""


def create_host_command(name: str, args: HostCommandArgs, opts: pulumi.ResourceOptions) -> remote.Command:
    """Register the Command.

    The script runs again whenever its text, its values or its payload change, and finds out itself what of
    that makes a difference on the host. A replacement (`pulumi up --replace`) only runs it again, and its
    deletion does nothing: removal is a resource of its own (components/engine/removal.py).
    """
    stdin = pulumi.Output.all(**args.payload).apply(
        lambda known: scripts.payload_line(known) if args.delivered else scripts.stdin(args.script, known)
    )
    secret: pulumi.Output[str] = pulumi.Output.secret(stdin)
    return remote.Command(
        name,
        connection=args.login.connection(args.host),
        create=_command_text(name, args),
        stdin=secret if args.payload else stdin,
        # sshd drops variables that its AcceptEnv does not name: values are in the text, secrets on stdin.
        add_previous_output_in_env=False,
        logging=args.logging,
        opts=opts,
    )


def _command_text(name: str, args: HostCommandArgs) -> pulumi.Input[str]:
    def text(**owner: str) -> str:
        return scripts.command(
            args.script,
            {**owner, **args.values, "VERB": "install"},
            user=args.host.user,
            timeout_seconds=args.timeout_seconds,
            delivered=args.delivered,
        )

    if args.install_id is None:
        return text()
    return pulumi.Output.from_input(args.install_id).apply(
        lambda install_id: text(OWNER=owner_mark(args.owner or name), INSTALL_ID=install_id)
    )
