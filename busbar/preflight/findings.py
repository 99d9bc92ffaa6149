"""Findings as lines to read: what many hosts share is said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from busbar.preflight.spec import Finding


def lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """(level, "<hosts>: <what>. To do: <cure>") with errors first, else in the order of the hosts."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        hosts.setdefault((finding.level, finding.what, finding.cure), []).append(finding.host)
    # sorted() is stable, and "error" comes before "warning".
    for (level, what, cure), names in sorted(hosts.items(), key=lambda item: item[0][0]):
        yield level, f"{', '.join(names)}: {what}. To do: {cure}"
