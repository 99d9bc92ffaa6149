"""One step on one host: a `remote.Command` that runs a script of `host/` over SSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi_command import remote

from busbar.components.engine.ssh import SshLogin
from busbar.hosts import scripts
from busbar.hosts.host import Host


@dataclass(frozen=True, kw_only=True)
class HostArgs:
    """A host, and what installs it.

    `owner`: the resource that installs it, and `install_id`: they are its owner mark (host/owner.sh).
    `fronts`: all load balancers and servers. By them a host that is not responding is known to be gone.
    `environment`: what the scripts that install it run with (busbar.hosts.proxy).
    """

    login: SshLogin
    host: Host
    owner: str = ""
    install_id: pulumi.Input[str] | None = None
    fronts: Sequence[Host] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def create_host_command(
    name: str,
    on: HostArgs,
    script: str,
    timeout_seconds: int,
    values: Mapping[str, str],
    opts: pulumi.ResourceOptions,
    *,
    payload: Mapping[str, pulumi.Input[str]] | None = None,
    logging: remote.Logging = remote.Logging.STDERR,
    delivered: bool = False,
) -> remote.Command:
    """Register the Command.

    The script runs again whenever its text, its values or its payload change, and finds out itself what of
    that makes a difference on the host. A replacement (`pulumi up --replace`) only runs it again, and its
    deletion does nothing: removal is a resource of its own (components/engine/removal.py).

    `payload` holds secrets and contents of files; it travels on stdin only. `logging`: what of the output is
    shown; stdout is the result. `delivered`: the script does not travel with the Command: preflight delivers
    it (busbar.hosts.scripts). Such a Command needs the hook of components/engine/script_delivery.py.
    """

    def text(**owner: str) -> str:
        given = {**owner, **on.environment, **values, "VERB": "install"}
        return scripts.command(
            script, given, user=on.host.user, timeout_seconds=timeout_seconds, delivered=delivered
        )

    stdin = pulumi.Output.all(**(payload or {})).apply(
        lambda known: scripts.payload_line(known) if delivered else scripts.stdin(script, known)
    )
    secret: pulumi.Output[str] = pulumi.Output.secret(stdin)
    mark = owner_mark(on.owner)
    return remote.Command(
        name,
        connection=on.login.connection(on.host),
        create=text()
        if on.install_id is None
        else pulumi.Output.from_input(on.install_id).apply(
            lambda install_id: text(OWNER=mark, INSTALL_ID=install_id)
        ),
        stdin=secret if payload else stdin,
        # sshd drops variables that its AcceptEnv does not name: values are in the text, secrets on stdin.
        add_previous_output_in_env=False,
        logging=logging,
        opts=opts,
    )


def owner_mark(name: str) -> str:
    """The owner mark (host/owner.sh) of what the resource `name` installs."""
    return f"{pulumi.get_project()}/{pulumi.get_stack()}/{name}"
