"""Compares the SSH host keys that hosts offer with those that the stack file pins; nothing is trusted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import asyncssh
from pydantic import TypeAdapter, ValidationError

from busbar.config import Bastion, Hosts, Ssh, section
from busbar.config.types import HostKey
from busbar.finding import with_fix
from busbar.hosts import ssh
from busbar.hosts.inventory import Host, Login
from busbar.models import ConfigModel

CONCURRENT = 64
ROLES = {"load_balancers": "lb", "servers": "server", "workers": "worker", "nfs_server": "nfs"}
BASTION = "ssh.bastion"
# Placeholder for a host whose key is not known yet; no machine has this key.
_NONE = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()
_KEY: TypeAdapter[str] = TypeAdapter(HostKey)


@dataclass(frozen=True)
class Offer:
    """A host at `path` of the stack file, the key that it offers, and the pinned key.

    `problem`: why no key is known, with the fix.
    """

    path: str
    host: Host | Bastion
    pinned: str | None
    offered: str | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name if isinstance(self.host, Host) else "bastion"

    @property
    def has_changed(self) -> bool:
        """Whether another key than the pinned one answered."""
        return self.offered is not None and self.pinned not in (None, self.offered)


def listed(
    data: Any, model: type[ConfigModel] = Hosts, roles: Mapping[str, str] = ROLES
) -> tuple[Ssh, list[Offer]]:
    """The section `ssh` and all hosts of the object of a stack file, whose host keys may be missing.

    `model`, `roles`: of its section `hosts`, and of the hosts under each key there. An invalid host key, such
    as the example's, counts as missing. The rest of the object is ignored. Raises ConfigError.
    """
    pinned: dict[str, str | None] = {}
    given = data if isinstance(data, Mapping) else {}
    hosts = section(model, "hosts", _with_keys(_mapping(given.get("hosts")), "hosts", pinned, roles))
    login = section(Ssh, "ssh", _with_keys(_mapping(given.get("ssh")), "ssh", pinned, ["bastion"]))
    found = [Offer(BASTION, login.bastion, pinned[BASTION])] if login.bastion else []
    for group, role in roles.items():
        members = getattr(hosts, group)
        for index, host in enumerate(members if isinstance(members, list) else [members] if members else []):
            path = f"hosts.{group}[{index}]" if isinstance(members, list) else f"hosts.{group}"
            user, port = host.user or login.user, host.port or login.port
            target = Host(
                name=host.name, address=host.address, port=port, user=user, host_key=host.host_key, role=role
            )
            found.append(Offer(path, target, pinned[path]))
    return login, found


async def fetch(offers: Sequence[Offer], login: Callable[[], Login]) -> list[Offer]:
    """Query the keys of all hosts in parallel, each for ssh.CONNECT_SECONDS; through the bastion, if any.

    The bastion is queried first; `login` is called then. Raises ValueError (unusable key), as `login`.
    """
    jump = [await _ask(each, None) for each in offers if each.path == BASTION]
    others = [each for each in offers if each.path != BASTION]
    if not jump:
        return await _ask_all(others, None)
    if jump[0].offered is None or jump[0].offered != jump[0].pinned:
        why = "not asked: it is behind the bastion. Fix: set host_key of ssh.bastion first, and run again"
        return jump + [replace(each, problem=why) for each in others]
    known = login()
    ssh.check_agent(known)
    try:
        async with ssh.bastion(known, ssh.load_keys(known)) as tunnel:
            return jump + await _ask_all(others, tunnel)
    except (OSError, asyncssh.Error) as error:
        why = f"not asked: {_why(jump[0].host, error)}"
        return jump + [replace(each, problem=why) for each in others]


def fingerprint(key: str) -> str:
    """The fingerprint of a key, SHA256:..., as `ssh-keygen -l` prints it."""
    return asyncssh.import_public_key(key).get_fingerprint()


async def _ask_all(offers: Sequence[Offer], tunnel: asyncssh.SSHClientConnection | None) -> list[Offer]:
    limit = asyncio.Semaphore(CONCURRENT)

    async def one(offer: Offer) -> Offer:
        async with limit:
            return await _ask(offer, tunnel)

    return [*await asyncio.gather(*map(one, offers))]


async def _ask(offer: Offer, tunnel: asyncssh.SSHClientConnection | None) -> Offer:
    try:
        return replace(offer, offered=await ssh.offered_key(offer.host, tunnel))
    except (OSError, asyncssh.Error) as error:
        return replace(offer, problem=_why(offer.host, error))


def _why(host: Host | Bastion, error: Exception) -> str:
    found = ssh.connection_finding(host, error)
    return with_fix(found.what, found.fix)


def _with_keys(
    part: Mapping[str, Any], path: str, pinned: dict[str, str | None], groups: Collection[str]
) -> dict[str, Any]:
    """The section with a host key for every host of `groups`; those of the file are noted in `pinned`."""

    def filled(host: Any, place: str) -> Any:
        if not isinstance(host, Mapping):
            return host
        try:
            pinned[place] = _KEY.validate_python(host.get("host_key"))
        except ValidationError:
            pinned[place] = None
        return {**host, "host_key": pinned[place] or _NONE}

    made = dict(part)
    for key, value in part.items():
        if isinstance(value, list):
            made[key] = [filled(host, f"{path}.{key}[{index}]") for index, host in enumerate(value)]
        elif key in groups:
            made[key] = filled(value, f"{path}.{key}")
    return made


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
