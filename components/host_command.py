"""One step on one host: a `remote.Command` that runs a script of `host/` over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
from pulumi_command import remote

from busbar.hosts import scripts
from busbar.hosts.inventory import Host
from components.ssh import SshLogin


@dataclass(frozen=True, kw_only=True)
class HostCommandArgs:
    """What runs where. `payload` holds secrets and contents of files; it travels on stdin only."""

    login: SshLogin
    host: Host
    script: str
    timeout_seconds: int
    values: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    install: bool = True
    """Whether the script runs with VERB=install when the resource is created or changed."""
    remove: bool = False
    """Whether the script runs with VERB=remove when the resource is deleted."""
    install_id: pulumi.Input[str] | None = None
    """Of a host that is installed and removed: part of its owner mark (host/owner.sh)."""
    logging: remote.Logging = remote.Logging.STDERR
    """What of the script's output is shown; stdout is the result."""


def create_host_command(name: str, args: HostCommandArgs, opts: pulumi.ResourceOptions) -> remote.Command:
    """Register the Command.

    The script runs again whenever its text, its values or its payload change, and finds out itself what of
    that makes a difference on the host. A replacement removes before it installs: in the other order, the
    engine's default, the removal would hit what has just been installed.
    """
    stdin = pulumi.Output.all(**args.payload).apply(lambda known: scripts.stdin(args.script, known))
    secret: pulumi.Output[str] = pulumi.Output.secret(stdin)
    return remote.Command(
        name,
        connection=args.login.connection(args.host),
        create=_command_text(name, args, "install") if args.install else None,
        delete=_command_text(name, args, "remove") if args.remove else None,
        stdin=secret if args.payload else stdin,
        # sshd drops variables that its AcceptEnv does not name: values are in the text, secrets on stdin.
        add_previous_output_in_env=False,
        logging=args.logging,
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=args.remove)),
    )


def _command_text(name: str, args: HostCommandArgs, verb: str) -> pulumi.Input[str]:
    def text(**owner: str) -> str:
        return scripts.command(
            args.script,
            {**owner, **args.values, "VERB": verb},
            user=args.host.user,
            timeout_seconds=args.timeout_seconds,
        )

    if args.install_id is None:
        return text()
    owner = f"{pulumi.get_project()}/{pulumi.get_stack()}/{name}"
    return pulumi.Output.from_input(args.install_id).apply(
        lambda install_id: text(OWNER=owner, INSTALL_ID=install_id)
    )
