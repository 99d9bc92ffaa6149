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
    """A host, and the resource that installs it.

    `owner`: the resource that installs it, and `install_id`: they are its owner mark (host/owner.sh).
    `fronts`: all load balancers and servers; they tell whether a host that is not responding is gone.
    `environment`: variables of the scripts that install it (busbar.hosts.proxy).
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

    The script runs again whenever its text, values or payload change, and itself determines what to change on
    the host. A replacement (`pulumi up --replace`) only runs it again, and its deletion does nothing: removal
    is a separate resource (components/engine/removal.py).

    `payload`: secrets and contents of files, which are only sent on stdin. `logging`: the part of the output
    that is shown; stdout is the result. `delivered`: preflight delivers the script, not the Command
    (busbar.hosts.scripts). Such a Command needs the hook of components/engine/script_delivery.py.
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
        # sshd drops variables that are not in its AcceptEnv, so values are in the text, secrets on stdin.
        add_previous_output_in_env=False,
        logging=logging,
        opts=opts,
    )


def owner_mark(name: str) -> str:
    """The owner mark (host/owner.sh) of the installation by the resource `name`."""
    return f"{pulumi.get_project()}/{pulumi.get_stack()}/{name}"
