"""How the engine logs in to the hosts: the one place that turns configuration into SSH connections."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command.remote import ConnectionArgs, ProxyConnectionArgs

from busbar.config import Bastion, Ssh
from busbar.hosts.host import Host
from busbar.hosts.login import Login, key_digest

# Preflight has just reached the host, so a connection that fails now fails soon: 3 x 10 s and the pauses
# between them stay below a minute.
DIAL_ERROR_LIMIT = 3
# A bastion has one connection per running step, and sshd resets new ones while more than MaxStartups
# (10:30:100) have not yet logged in. The pauses between the tries grow from 0.1 s by half each time.
BASTION_DIAL_ERROR_LIMIT = 30
PER_DIAL_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class SshLogin:
    """The login of the configuration, its secrets as Outputs. Build it with `SshLogin.load`.

    `login` has no secrets. `private_key` and its digest (not secret) are None with the ssh-agent.
    """

    login: Login
    private_key: pulumi.Output[str] | None
    private_key_password: pulumi.Output[str] | None
    key_digest: pulumi.Input[str] | None

    @classmethod
    def load(
        cls,
        ssh: Ssh,
        *,
        secret_key: pulumi.Output[str] | None,
        key_password: pulumi.Output[str] | None,
        project: Path,
    ) -> SshLogin:
        """The login that a checked `busbar:cluster` describes: it has a key or uses the agent.

        `secret_key` and `key_password` are the stack's `busbar:sshPrivateKey` and `...Password`, where set.
        `ssh.key_file` is read here, relative to `project`. Raises ConfigError where it cannot be read.
        """
        login = Login.of(ssh)
        key = secret_key if login.key_file is None else login.key_text(project)
        if key is None:  # the agent has it
            return cls(login=login, private_key=None, private_key_password=None, key_digest=None)
        secret: pulumi.Output[str] = pulumi.Output.secret(key)
        digest = key_digest(key) if isinstance(key, str) else pulumi.Output.unsecret(secret.apply(key_digest))
        return cls(login=login, private_key=secret, private_key_password=key_password, key_digest=digest)

    def connection(self, host: Host) -> ConnectionArgs:
        """The connection to one host, through the bastion where there is one; host keys are always pinned.

        With the agent, `agent_socket_path` stays unset: the plugin takes SSH_AUTH_SOCK, and a socket that
        changes from session to session makes no difference in the state.
        """
        bastion = self.login.bastion
        proxy = (
            ProxyConnectionArgs(**self._connect_to(bastion, BASTION_DIAL_ERROR_LIMIT)) if bastion else None
        )
        return ConnectionArgs(**self._connect_to(host), proxy=proxy)

    @cached_property
    def spec(self) -> pulumi.Output[dict[str, Any]]:
        """`login` in the specs of `busbar` commands, which read the key file themselves where there is one.

        One Output for all commands: an Output of nested values costs a task per value, on every update.
        """
        found: pulumi.Output[dict[str, Any]] = pulumi.Output.from_input(
            {
                **self.login.model_dump(),
                "private_key": None if self.login.key_file else self.private_key,
                "private_key_password": self.private_key_password,
                "key_digest": self.key_digest,
            }
        )
        return found

    def _connect_to(
        self, machine: Host | Bastion, dial_error_limit: int = DIAL_ERROR_LIMIT
    ) -> dict[str, Any]:
        """What ConnectionArgs and ProxyConnectionArgs have in common."""
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
