"""How the engine logs in to the hosts: the one place that turns configuration into SSH connections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command.remote import ConnectionArgs, ProxyConnectionArgs

from busbar.config import Bastion, ConfigError, Ssh
from busbar.hosts.inventory import Host
from busbar.hosts.login import key_digest

# Preflight has just reached the host, so a connection that fails now fails soon: 3 x 10 s and the pauses
# between them stay below a minute.
DIAL_ERROR_LIMIT = 3
# A bastion has one connection per running step, and sshd resets new ones while more than MaxStartups
# (10:30:100) have not yet logged in. The pauses between the tries grow from 0.1 s by half each time.
BASTION_DIAL_ERROR_LIMIT = 30
PER_DIAL_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Login:
    """The key (or agent) and the way to all hosts. Build it with `Login.load`."""

    ssh: Ssh
    private_key: pulumi.Output[str] | None = None
    private_key_password: pulumi.Output[str] | None = None
    key_file: Path | None = None
    key_digest: pulumi.Input[str] | None = None
    """Of the private key; not secret. None with the agent."""

    @classmethod
    def load(
        cls,
        ssh: Ssh,
        *,
        secret_key: pulumi.Output[str] | None,
        key_password: pulumi.Output[str] | None,
        project: Path,
    ) -> Login:
        """The login that `busbar:cluster` describes.

        `secret_key` and `key_password` are the stack's `busbar:sshPrivateKey` and `...Password`, where set.
        `ssh.key_file` is read here, relative to `project`. Raises ConfigError where no key, or an unreadable
        one, is configured.
        """
        if ssh.agent:
            return cls(ssh=ssh)
        key: pulumi.Input[str] | None = secret_key
        path = None if ssh.key_file is None else project / Path(ssh.key_file).expanduser()
        if path is not None:
            try:
                key = path.read_text()
            except OSError as error:
                raise ConfigError(
                    [f"ssh.key_file: {ssh.key_file!r} cannot be read ({error.strerror}): {path}"]
                ) from None
        if key is None:
            raise ConfigError(
                [
                    "ssh: no key. Fix: set ssh.key_file or ssh.agent, or run "
                    "`pulumi config set --secret busbar:sshPrivateKey < FILE`"
                ]
            )
        secret: pulumi.Output[str] = pulumi.Output.secret(key)
        return cls(
            ssh=ssh,
            private_key=secret,
            private_key_password=key_password,
            key_file=path,
            key_digest=key_digest(key)
            if isinstance(key, str)
            else pulumi.Output.unsecret(secret.apply(key_digest)),
        )

    def connection(self, host: Host) -> ConnectionArgs:
        """The connection to one host, through the bastion where there is one; host keys are always pinned.

        With the agent, `agent_socket_path` stays unset: the plugin takes SSH_AUTH_SOCK, and a socket that
        changes from session to session makes no difference in the state.
        """
        bastion = self.ssh.bastion
        proxy = ProxyConnectionArgs(**self._login_to(bastion, BASTION_DIAL_ERROR_LIMIT)) if bastion else None
        return ConnectionArgs(**self._login_to(host), proxy=proxy)

    def preflight_spec(self) -> dict[str, Any]:
        """The same login for `busbar preflight`: the key's file where there is one, else the secret key."""
        bastion = self.ssh.bastion
        return {
            "key_file": str(self.ssh.key_file) if self.key_file else None,
            "private_key": None if self.key_file else self.private_key,
            "private_key_password": self.private_key_password,
            "bastion": bastion.model_dump() if bastion else None,
            "key_digest": self.key_digest,
        }

    def _login_to(self, machine: Host | Bastion, dial_error_limit: int = DIAL_ERROR_LIMIT) -> dict[str, Any]:
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
