"""One step on one host: a `remote.Command` that runs a script of `host/` over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
from pulumi_command import remote

from busbar.hosts import scripts as hostscript
from busbar.hosts.inventory import Host
from components.ssh import Login


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """What runs where. `payload` holds secrets and contents of files; it travels on stdin only."""

    login: Login
    host: Host
    script: str
    timeout_seconds: int
    values: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    removable: bool = False
    """Whether the script knows VERB=remove and is to run so when the resource goes."""
    create: bool = True
    """False for a step that only acts when the resource goes."""


def host_command(
    name: str,
    step: HostStep,
    opts: pulumi.ResourceOptions,
    *,
    logging: remote.Logging = remote.Logging.STDERR,
) -> remote.Command:
    """Register the Command of a step.

    The script runs again whenever its text, its values or its payload change, and finds out itself what of
    that makes a difference on the host.
    """
    stdin = pulumi.Output.all(**step.payload).apply(lambda known: hostscript.stdin(step.script, known))
    secret: pulumi.Output[str] = pulumi.Output.secret(stdin)
    return remote.Command(
        name,
        connection=step.login.connection(step.host),
        create=_text(step, "install") if step.create else None,
        delete=_text(step, "remove") if step.removable else None,
        stdin=secret if step.payload else stdin,
        # sshd drops variables that its AcceptEnv does not name; values go by the text, secrets by stdin.
        add_previous_output_in_env=False,
        logging=logging,
        opts=opts,
    )


def _text(step: HostStep, verb: str) -> str:
    return hostscript.command(
        step.script,
        {**step.values, "VERB": verb},
        user=step.host.user,
        timeout_seconds=step.timeout_seconds,
    )
