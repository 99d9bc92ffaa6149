"""Warnings about k3s.authentication. The API server decides whether it is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from busbar.config.errors import Finding
from busbar.config.partial import PartialConfig

PATH = ("k3s", "authentication", "jwt")


def warnings(config: PartialConfig) -> Iterator[Finding]:
    """Issuers that could make anybody an administrator, by a group system:masters."""
    for index, each in enumerate(config.k3s.authentication.jwt):
        mappings = each.get("claimMappings")
        groups = mappings.get("groups") if isinstance(mappings, Mapping) else None
        if isinstance(groups, Mapping) and not groups.get("prefix") and not each.get("userValidationRules"):
            yield Finding(
                (*PATH, index, "claimMappings", "groups"),
                "without a prefix the issuer can name the group system:masters, which may do everything",
                "set a prefix, or add a userValidationRule with the expression "
                "user.groups.all(group, !group.startsWith('system:'))",
            )
