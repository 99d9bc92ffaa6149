"""How busbar logs in to the hosts."""

from __future__ import annotations

from pydantic import Field

from busbar.config.values import Address, HostKey, Model, NonEmpty, Port


class Bastion(Model):
    """A jump host in front of all others; it takes the same key or agent as they do."""

    address: Address = Field(description="IP address or name of the jump host.")
    user: NonEmpty = Field(default="root", description="Login on the jump host; it needs no sudo there.")
    port: Port = Field(default=22, description="SSH port of the jump host.")
    host_key: HostKey = Field(description="The jump host's ed25519 host key: `ssh-ed25519 AAAA...`.")


class Ssh(Model):
    """The login for all hosts; a host may override user and port.

    The key comes from exactly one place: `key_file`, the ssh-agent, or the secret `busbar:sshPrivateKey`.
    """

    user: NonEmpty = Field(
        default="root", description="Login on the hosts; other than root needs passwordless sudo."
    )
    port: Port = Field(default=22, description="SSH port of the hosts.")
    key_file: NonEmpty | None = Field(
        default=None,
        description="File with the private key, relative to the project folder; `~` is your home.",
    )
    agent: bool = Field(
        default=False, description="Use the ssh-agent at SSH_AUTH_SOCK: no key enters the Pulumi state."
    )
    bastion: Bastion | None = Field(default=None, description="Jump host in front of all hosts.")
