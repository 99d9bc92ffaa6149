"""The values and files that a step gives to its host."""

import base64
import json
import shlex


def values_of(text: str) -> dict[str, str]:
    """The values in a text that busbar.hosts.scripts.command made; empty for any other text."""
    try:
        words = shlex.split(text)
        pairs = words[words.index("env") + 1 : words.index("timeout")]
    except ValueError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def files_of(stdin: str) -> dict[str, str]:
    """The files in what a step sends on stdin, by name."""
    encoded = json.loads(stdin.splitlines()[0])
    return {name: base64.b64decode(text).decode() for name, text in encoded.items()}
