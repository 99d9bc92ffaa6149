"""The record of hosts that could not be cleaned: one file per host in `.busbar/<stack>/uncleaned`."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from busbar.hosts.host import Host
from busbar.writing import write_whole

FOLDER = "uncleaned"


@dataclass(frozen=True)
class Record:
    """A host that could not be cleaned: the software that is still installed on it, and the time."""

    host: str
    address: str
    reason: str
    resource: str
    time: str
    path: Path

    def __str__(self) -> str:
        return (
            f"could not be cleaned: {self.host} ({self.reason}, {self.time}). "
            "Fix: before the machine is used again, uninstall it (busbar docs hosts 'By hand') or wipe it; "
            f"then remove {self.path}"
        )


def write(folder: Path, resource: str, host: Host, reason: str) -> Path:
    """Record one host, on which nothing could be removed; returns the file."""
    path = folder / FOLDER / f"{resource}.json"
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = {"host": host.name, "address": host.address, "reason": reason}
    write_whole(path, json.dumps({**found, "resource": resource, "time": time}) + "\n")
    return path


def recorded(folder: Path) -> bool:
    """Whether a host is recorded, without asking whether its resource exists again."""
    return any((folder / FOLDER).glob("*.json"))


def read(folder: Path, *, listed: Collection[str]) -> list[Record]:
    """The records of a stack. Those of `listed` resources, which exist again, are dropped."""
    records = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        if path.stem in listed:
            path.unlink()
        else:
            records.append(Record(**json.loads(path.read_text()), path=path))
    return records
