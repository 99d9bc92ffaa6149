"""Commands on hosts: the login, a step with its payload, and its removal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command import local, remote
from pulumi_command.remote import ConnectionArgs, ProxyConnectionArgs

from busbar import names
from busbar.components.engine.local_command import create_hosts_command
from busbar.config import Bastion, Ssh
from busbar.hosts import scripts
from busbar.hosts.inventory import Host, Login, key_digest

# Number of tries. Preflight has just reached the host, so a failing connection should fail within a minute.
DIAL_ERROR_LIMIT = 3
# A bastion has one connection per running step, and sshd resets new ones while more than MaxStartups
# (10:30:100) have not yet logged in. The pauses between the tries grow from 0.1 s by half each time.
BASTION_DIAL_ERROR_LIMIT = 30
PER_DIAL_TIMEOUT_SECONDS = 10
STEP_INPUTS = ("create", "stdin", "connection")
"""The inputs by which a Command on a host changes (create_host_command)."""


@dataclass(frozen=True, kw_only=True)
class SshLogin:
    """The text of the private key and its passphrase; neither with the ssh-agent.

    `key_file`: the file from which `busbar` commands read the key; without it they are given the text.
    `key_digest`, not secret: hosts that passed preflight with another one are checked again.
    """

    private_key: pulumi.Input[str] | None = None
    private_key_password: pulumi.Input[str] | None = None
    key_file: str | None = None
    key_digest: pulumi.Input[str] | None = None
    bastion: Bastion | None = None

    @classmethod
    def load(cls, ssh: Ssh, secrets: Mapping[str, pulumi.Output[str]], project: Path) -> SshLogin:
        """The login that a checked configuration describes: it has a key or uses the agent.

        `secrets`: those of the stack that are set; `sshPrivateKey` and `sshPrivateKeyPassword` are used.
        `ssh.key_file` is read here, relative to `project`. Raises ConfigError if it cannot be read.
        """
        login = Login.of(ssh)
        key = secrets.get("sshPrivateKey") if login.key_file is None else login.key_text(project)
        if key is None:  # the agent has it
            return cls(bastion=ssh.bastion)
        secret: pulumi.Output[str] = pulumi.Output.secret(key)
        return cls(
            private_key=secret,
            private_key_password=secrets.get("sshPrivateKeyPassword"),
            key_file=login.key_file,
            key_digest=pulumi.Output.unsecret(secret.apply(key_digest)),
            bastion=ssh.bastion,
        )

    def connection(self, host: Host) -> ConnectionArgs:
        """The connection to one host, through the bastion where there is one; host keys are always pinned.

        With the agent, `agent_socket_path` stays unset and the plugin uses SSH_AUTH_SOCK, so that a socket
        that changes with each session does not change the state.
        """
        jump = self.bastion and self._connect_to(self.bastion, BASTION_DIAL_ERROR_LIMIT)
        return ConnectionArgs(
            **self._connect_to(host, DIAL_ERROR_LIMIT), proxy=ProxyConnectionArgs(**jump) if jump else None
        )

    @cached_property
    def spec(self) -> pulumi.Output[dict[str, Any]]:
        """The `login` in the specs of `busbar` commands, which read the key file themselves if there is one.

        One Output for all commands: an Output of nested values costs a task per value, on every update.
        """
        found: pulumi.Output[dict[str, Any]] = pulumi.Output.from_input(
            {
                "key_file": self.key_file,
                "private_key": None if self.key_file else _secret(self.private_key),
                "private_key_password": _secret(self.private_key_password),
                "key_digest": self.key_digest,
                "bastion": self.bastion.model_dump() if self.bastion else None,
            }
        )
        return found

    def _connect_to(self, machine: Host | Bastion, dial_error_limit: int) -> dict[str, Any]:
        return {
            "host": machine.address,
            "port": machine.port,
            "user": machine.user,
            "host_key": machine.host_key,
            "private_key": self.private_key,
            "private_key_password": self.private_key_password,
            "dial_error_limit": dial_error_limit,
            "per_dial_timeout": PER_DIAL_TIMEOUT_SECONDS,
        }


def _secret(value: pulumi.Input[str] | None) -> pulumi.Output[str] | None:
    return None if value is None else pulumi.Output.secret(value)


def with_login(spec: Mapping[str, Any], login: SshLogin) -> pulumi.Output[str]:
    """JSON for the stdin of a `busbar` command; secret where the login has a secret."""
    return login.spec.apply(lambda known: json.dumps({**spec, "login": known}, sort_keys=True))


def with_id(spec: Mapping[str, Any], login: SshLogin, install_id: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the stdin of `with_login` with the id of the cluster in it."""
    of_cluster: pulumi.Output[str] = pulumi.Output.from_input(install_id)
    return of_cluster.apply(lambda known: with_login({**spec, "install_id": known}, login))


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
    """Register the Command that runs a script of host/ with VERB=install.

    The script runs again whenever its text, values or payload change, and itself determines what to change on
    the host. A replacement (`pulumi up --replace`) only runs it again, and its deletion does nothing: removal
    is a separate resource (`create_host_removal`).

    `payload`: secrets and contents of files, which are only sent on stdin. `logging`: the part of the output
    that is shown; stdout is the result. `delivered`: preflight delivers the script, not the Command
    (busbar.hosts.scripts). Such a Command needs the hook of components/worker_pool.py.
    """

    def text(install_id: str | None) -> str:
        mark = {"OWNER": owner_mark(on.owner), "INSTALL_ID": install_id} if install_id is not None else {}
        given = {**mark, **on.environment, **values, "VERB": "install"}
        return scripts.command(
            script, given, user=on.host.user, timeout_seconds=timeout_seconds, delivered=delivered
        )

    stdin = pulumi.Output.all(**(payload or {})).apply(
        lambda known: scripts.payload_line(known) if delivered else scripts.stdin(script, known)
    )
    secret: pulumi.Output[str] = pulumi.Output.secret(stdin)
    return remote.Command(
        name,
        connection=on.login.connection(on.host),
        create=pulumi.Output.from_input(on.install_id).apply(text),
        stdin=secret if payload else stdin,
        # sshd drops variables that are not in its AcceptEnv, so values are in the text, secrets on stdin.
        add_previous_output_in_env=False,
        logging=logging,
        opts=opts,
    )


def owner_mark(name: str) -> str:
    """The owner mark (host/owner.sh) of the installation by the resource `name`."""
    return f"{pulumi.get_project()}/{pulumi.get_stack()}/{name}"


def create_host_removal(
    on: HostArgs, script: str, timeout_seconds: int, values: Mapping[str, str], opts: pulumi.ResourceOptions
) -> local.Command:
    """Register the removal of what `on.owner` installs, also in part: `script` with `values`, VERB=remove."""
    spec = {
        "host": target(on.host),
        "script": script,
        "timeout_seconds": timeout_seconds,
        "others": [target(other) for other in on.fronts if other != on.host],
        "folder": stack_folder(),
        "resource": on.owner,
    }
    marked = {**values, "OWNER": owner_mark(on.owner)}
    # Output.all would make an Output of each part of a nested value, such as the login.
    stdin: pulumi.Output[str] = pulumi.Output.from_input(on.install_id).apply(
        lambda known: with_login({**spec, "values": {**marked, "INSTALL_ID": known}}, on.login)
    )
    return create_hosts_command(names.removal_of(on.owner), "remove host", stdin, opts, at_removal=True)


def stack_folder() -> str:
    """The folder for results of this stack's commands, relative to the project folder."""
    return f".busbar/{pulumi.get_stack()}"


def target(host: Host) -> dict[str, Any]:
    """The host as input of `busbar` commands."""
    return {key: value for key, value in host.data().items() if value is not None}
