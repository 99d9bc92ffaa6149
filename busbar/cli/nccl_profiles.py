"""`busbar nccl profiles`: the known systems, their expected bandwidth, and its sources."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from busbar.cli.output import print_text
from busbar.text import counted

REFERENCES = ("confirmed by ", "floor from ", "expected from ", "none of this ")


def profiles() -> None:
    """List the profiles: each system, the all_reduce bandwidth expected of it with its floor, the sources."""
    from busbar.judge.nccl.expected.profiles import names

    print_text("\n\n".join("\n".join(_lines(name)) for name in names()))


def _lines(name: str) -> Iterator[str]:
    from busbar.judge.nccl import Expectation
    from busbar.judge.nccl.expected.profiles import load
    from busbar.judge.nccl.units import gbps

    profile = load(name)
    yield f"{name}: {profile.description}"
    known = False
    for nodes in sorted({1, 2, profile.workers, profile.nodes_per_domain}):
        found = Expectation(profile=name, nodes=nodes).bounds("all_reduce")
        if found.expected is None or found.floor is None:
            continue
        known = True
        used = [line for line in found.reasoning if line.startswith(REFERENCES)] or ["computed"]
        text = (
            f"{counted(nodes, 'host')}: {gbps(found.expected)}, floor {gbps(found.floor)}; {'; '.join(used)}"
        )
        yield from textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ")
    if not known:
        yield "  no figure is known: give --expected-busbw"
    yield f"  profile from {profile.source}"
