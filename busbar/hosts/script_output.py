"""The result of a host script: one JSON object on the last line of its stdout.

The login shell of a host may print on stdout before the script does (an `echo` in .bashrc), even without a
final line break.
"""

from __future__ import annotations

import json
from typing import Any


def result(stdout: str) -> dict[str, Any]:
    """The object in the last line of `stdout`. Raises ValueError if there is none."""
    lines = stdout.strip().splitlines()
    last = lines[-1] if lines else ""
    found = json.loads(last[max(last.find('{"'), 0) :])
    if not isinstance(found, dict):
        raise ValueError("the last line is not a JSON object")
    return found
