"""What ~/.ssh/config says of the hosts. busbar does not read it: a stack means the same for every admin."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from busbar.config import Bastion, Cluster, HostConfig
from busbar.config.partial import GROUPS

PATH = "~/.ssh/config"
# Option -> the key of the stack file that does it for everybody.
_KEYS = {
    "Hostname": "the host's address",
    "User": "ssh.user, or the host's user",
    "Port": "ssh.port, or the host's port",
    "ProxyJump": "ssh.bastion",
    "ProxyCommand": "ssh.bastion",
    "IdentityFile": "ssh.key_file",
}


def warnings(cluster: Cluster, path: Path | None = None) -> Iterator[str]:
    """What `ssh` would do differently from busbar. Nothing for what the stack file itself says.

    `path`: by default PATH of this user.
    """
    path = path or Path(PATH).expanduser()
    if not path.is_file():
        return
    from asyncssh.config import ConfigParseError

    found: dict[tuple[str, str], list[str]] = {}
    try:
        for where, host in _configured(cluster):
            for option, value in _ignored(cluster, host, path).items():
                found.setdefault((option, value), []).append(where)
    except (ConfigParseError, OSError, UnicodeDecodeError) as error:
        yield f"ssh: {PATH} cannot be compared with the stack file: {error}"
    for (option, value), places in found.items():
        more = f" (and {len(places) - 1} more hosts)" if len(places) > 1 else ""
        yield (
            f"{places[0]}: {PATH} has {option} {value} for it{more}, which busbar does not read. "
            f"Fix: if it is needed, set {_KEYS[option]}"
        )


def _configured(cluster: Cluster) -> Iterator[tuple[str, HostConfig | Bastion]]:
    hosts = cluster.hosts
    if cluster.ssh.bastion:
        yield "ssh.bastion", cluster.ssh.bastion
    for group in GROUPS:
        for index, host in enumerate(getattr(hosts, group)):
            yield f"hosts.{group}[{index}]", host
    if hosts.nfs_server:
        yield "hosts.nfs_server", hosts.nfs_server


def _ignored(cluster: Cluster, host: HostConfig | Bastion, path: Path) -> dict[str, str]:
    """Options for this host that the stack file says nothing of, and another Hostname or IdentityFile."""
    said = _said(host, path)
    is_bastion = isinstance(host, Bastion)
    given = host.model_fields_set | (set() if is_bastion else cluster.ssh.model_fields_set)
    if said.get("Hostname") == host.address:
        del said["Hostname"]
    for option in ("User", "Port"):
        if option.lower() in given:
            said.pop(option, None)
    for option in ("ProxyJump", "ProxyCommand"):
        if cluster.ssh.bastion or str(said.get(option, "none")).lower() == "none":
            said.pop(option, None)
    names = [Path(each).name for each in said.get("IdentityFile", [])]
    # With the agent or a secret the key is not a file.
    if not cluster.ssh.key_file or Path(cluster.ssh.key_file).name in names:
        said.pop("IdentityFile", None)
    return {
        option: " ".join(value) if isinstance(value, list) else str(value) for option, value in said.items()
    }


def _said(host: HostConfig | Bastion, path: Path) -> dict[str, Any]:
    """The options for its address; else those for its name, if that leads to the same address."""
    said = _options(host.address, path)
    if said or isinstance(host, Bastion):
        return said
    by_name = _options(host.name, path)
    return by_name if by_name.get("Hostname") == host.address else {}


def _options(host: str, path: Path) -> dict[str, Any]:
    """As OpenSSH reads the file, with Include, Match and patterns. Raises ConfigParseError and OSError."""
    from asyncssh.config import SSHClientConfig

    read = SSHClientConfig.load(None, path, False, False, False, getpass.getuser(), (), host, ())
    found: Mapping[str, Any] = {option: read.get(option) for option in _KEYS}
    return {option: value for option, value in found.items() if value}
