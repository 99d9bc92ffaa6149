"""Findings as lines to read: what many hosts share is said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from busbar.preflight.spec import Finding


def lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """(level, "<hosts>: <what>. <cure>") with errors first; every host is named."""
    same = attrgetter("level", "what", "cure")
    for (level, what, cure), group in groupby(sorted(findings, key=same), same):
        hosts = ", ".join(finding.host for finding in group)
        yield level, f"{hosts}: {what}. To do: {cure}"
