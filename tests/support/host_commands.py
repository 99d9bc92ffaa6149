"""The values in the command of a step on a host."""

from __future__ import annotations

import shlex


def values_of(text: str) -> dict[str, str]:
    """The values in a text that busbar.hosts.scripts.command made; empty for any other text."""
    try:
        words = shlex.split(text)
        pairs = words[words.index("env") + 1 : words.index("timeout")]
    except ValueError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
