"""What preflight stores per host: small, and without anything that changes on its own.

The result goes into the engine's state and, as the previous result, into an environment variable (128 KiB at
most on Linux), so equal facts are stored once: 440 hosts take some 20 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class HostRecord:
    """A host that passed: fingerprint of its requirements, digest of its machine-id, and facts."""

    fingerprint: str
    machine: str
    facts: Mapping[str, Any]


def pack(hosts: Mapping[str, HostRecord]) -> str:
    """One compact JSON line; equal facts are stored once."""
    groups: list[str] = []
    index: dict[str, list[str | int]] = {}
    for name, host in hosts.items():
        text = json.dumps(host.facts, sort_keys=True)
        if text not in groups:
            groups.append(text)
        index[name] = [host.fingerprint, host.machine, groups.index(text)]
    content = {"schema": SCHEMA, "groups": [json.loads(text) for text in groups], "hosts": index}
    return json.dumps(content, separators=(",", ":"))


def unpack(text: str) -> dict[str, dict[str, Any]]:
    """Host name -> facts, from the line that `pack` wrote. Raises ValueError for anything else."""
    return {name: dict(host.facts) for name, host in read(text).items()}


def read(text: str) -> dict[str, HostRecord]:
    """All records of a result. Raises ValueError if the text is not one."""
    try:
        content = json.loads(text)
        if content["schema"] != SCHEMA:
            raise ValueError(f"is a result of preflight with schema {content['schema']!r}, expected {SCHEMA}")
        groups = content["groups"]
        return {
            name: HostRecord(fingerprint, machine, groups[group])
            for name, (fingerprint, machine, group) in content["hosts"].items()
        }
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"is not a result of preflight: {error!r}") from None
