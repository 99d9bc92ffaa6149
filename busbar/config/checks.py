"""All checks that no single part can make alone; each yields findings as sentences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from busbar.config import check_hosts, check_software
from busbar.config.draft import Draft

CHECKS: tuple[Callable[[Draft], Iterator[str]], ...] = (
    check_hosts.duplicates,
    check_hosts.resource_names,
    check_hosts.quorum,
    check_hosts.virtual_ip,
    check_hosts.pools,
    check_hosts.networks,
    check_hosts.labels,
    check_software.versions,
    check_software.checksums,
    check_software.images,
    check_software.own_keys,
    check_software.measurement,
)


def findings(draft: Draft, secrets: Collection[str]) -> Iterator[str]:
    """All findings; `secrets` names the secret keys that the stack has set, such as sshPrivateKey."""
    for check in CHECKS:
        yield from check(draft)
    yield from check_hosts.login(draft, secrets)
    yield from check_software.bucket(draft, secrets)
