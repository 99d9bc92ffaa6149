"""The engine's login to the hosts: the one place that turns configuration into SSH connections."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command.remote import ConnectionArgs, ProxyConnectionArgs

from busbar.config import Bastion, Ssh
from busbar.hosts.host import Host
from busbar.hosts.login import Login, key_digest

# Number of tries. Preflight has just reached the host, so a failing connection should fail soon: 3 x 10 s and
# the pauses between them stay below a minute.
DIAL_ERROR_LIMIT = 3
# A bastion has one connection per running step, and sshd resets new ones while more than MaxStartups
# (10:30:100) have not yet logged in. The pauses between the tries grow from 0.1 s by half each time.
BASTION_DIAL_ERROR_LIMIT = 30
PER_DIAL_TIMEOUT_SECONDS = 10


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
    def load(cls, ssh: Ssh, secrets: Mapping[str, pulumi.Output[str]], project: Path) -> "SshLogin":
        """The login that a checked configuration describes: it has a key or uses the agent.

        `secrets`: those of the stack that are set; `sshPrivateKey` and `sshPrivateKeyPassword` are used.
        `ssh.key_file` is read here, relative to `project`. Raises ConfigError if it cannot be read.
        """
        login = Login.of(ssh)
        key = secrets.get("sshPrivateKey") if login.key_file is None else login.key_text(project)
        if key is None:  # the agent has it
            return cls(bastion=ssh.bastion)
        secret: pulumi.Output[str] = pulumi.Output.secret(key)
        digest = key_digest(key) if isinstance(key, str) else pulumi.Output.unsecret(secret.apply(key_digest))
        return cls(
            private_key=secret,
            private_key_password=secrets.get("sshPrivateKeyPassword"),
            key_file=login.key_file,
            key_digest=digest,
            bastion=ssh.bastion,
        )

    def connection(self, host: Host) -> ConnectionArgs:
        """The connection to one host, through the bastion where there is one; host keys are always pinned.

        With the agent, `agent_socket_path` stays unset and the plugin uses SSH_AUTH_SOCK, so that a socket
        that changes with each session does not change the state.
        """
        proxy = None
        if self.bastion:
            proxy = ProxyConnectionArgs(**self._connect_to(self.bastion, BASTION_DIAL_ERROR_LIMIT))
        return ConnectionArgs(**self._connect_to(host), proxy=proxy)

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

    def _connect_to(
        self, machine: Host | Bastion, dial_error_limit: int = DIAL_ERROR_LIMIT
    ) -> dict[str, Any]:
        """The common arguments of ConnectionArgs and ProxyConnectionArgs."""
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
