"""The settings of the SSH login to the hosts."""

from __future__ import annotations

from pydantic import Field

from busbar.config.network_values import Address, HostKey, Port, UserName
from busbar.config.values import NonEmpty, Url
from busbar.models import ConfigModel


class Bastion(ConfigModel):
    """A jump host in front of all others; the same key or agent is used for it."""

    address: Address = Field(description="IP address or name of the jump host.")
    user: UserName = Field(default="root", description="Login on the jump host; sudo is not needed there.")
    port: Port = Field(default=22, description="SSH port of the jump host.")
    api_proxy_url: Url | None = Field(
        default=None,
        description="HTTP proxy to the Kubernetes API (proxy-url of the kubeconfig), where this machine "
        "cannot reach the load balancer directly, such as http://127.0.0.1:3128.",
    )
    host_key: HostKey = Field(description="The jump host's ed25519 host key: `ssh-ed25519 AAAA...`.")


class Ssh(ConfigModel):
    """The login for all hosts; a host may override user and port.

    The key comes from exactly one source: `key_file`, the ssh-agent, or the secret `busbar:sshPrivateKey`.
    """

    user: UserName = Field(
        default="root", description="Login on the hosts; a user other than root needs passwordless sudo."
    )
    port: Port = Field(default=22, description="SSH port of the hosts.")
    key_file: NonEmpty | None = Field(
        default=None,
        description="File with the private key, relative to the project folder; `~` is your home.",
    )
    agent: bool = Field(
        default=False, description="Use the ssh-agent at SSH_AUTH_SOCK: no key is stored in the Pulumi state."
    )
    bastion: Bastion | None = Field(default=None, description="Jump host in front of all hosts.")
