"""The record of a measurement, and the files of one job on the machine that collects it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from busbar.models import OutputModel
from busbar.writing import write_whole
from busbar.zstd import ZstdFile

Settings = Mapping[str, str]
"""Settings of a measurement by name: versions, image, resources, environment, expectation."""

VERDICT = "verdict.json"
"""The file of the verdict, in the folder of the record."""
JOB = "job"
"""The setting that depends on all others: the job's name."""
# Settings that are read from the log, if there is one.
_OF_THE_LOG = {"iterations", "warmup"}


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of the job that printed the log, from its scheduler; `succeeded` is None if unknown."""

    succeeded: bool | None
    reasons: Sequence[str] = ()


class Record(OutputModel):
    """One measurement. With its log and this record alone it can be judged again."""

    job_uid: str
    """Uid of this run of the job; every run has another one."""
    pool: str
    kind: str
    """The origin of the measurement: update, measure, idle, or run (on a foreign cluster)."""
    folder: str
    """Folder of log, verdict and report, relative to the project."""
    nodes: tuple[str, ...]
    """The Nodes of the job."""
    measured_at: str | None
    """Time of the job's creation (UTC)."""
    settings: dict[str, str] = Field(default={})
    expectation: dict[str, Any]
    """The expectation as given to the judge."""
    outcome: JobOutcome = JobOutcome(None)
    complete: bool = False
    """Whether the log was read to its end."""


def changes(former: Settings, new: Settings) -> dict[str, str]:
    """Setting -> its change, such as `k3s v1.35.6+k3s1 -> v1.35.7+k3s1`."""
    either = {**new, **former}
    unknown = {key for key in _OF_THE_LOG if key not in former or key not in new}
    return {
        key: f"{key} {former.get(key) or 'none'} -> {new.get(key) or 'none'}"
        for key in either
        if key not in unknown and former.get(key) != new.get(key)
    }


LOG = "nccl.log.zst"
REPORT = "report.html"
SOURCE = "source.json"
# Little compressed data may be one endless line.
MAX_LINE = 16 << 20


class Archive:
    """The folder of one pool, such as .busbar/dev/h100. Files are replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def log(self) -> Path:
        """The raw log, compressed."""
        return self.folder / LOG

    @property
    def report(self) -> Path:
        """The report for a browser."""
        return self.folder / REPORT

    @property
    def complete_log_of(self) -> str | None:
        """Uid of the job whose complete log is stored; None without a complete log."""
        source = self._read(SOURCE) if self.log.is_file() else None
        return source.get("job_uid") if source else None

    def verdict(self) -> dict[str, Any] | None:
        """The stored verdict; None if there is none, or the file is not a verdict."""
        return self._read(VERDICT)

    def log_lines(self) -> Iterator[bytes]:
        """The lines of the stored log. One that is longer than MAX_LINE comes in parts."""
        with ZstdFile(self.folder / LOG) as file:
            yield from iter(partial(file.readline, MAX_LINE), b"")

    @contextmanager
    def new_log(self) -> Iterator[BinaryIO]:
        """A file for the compressed log; it replaces the former one when the block ends without an error."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # The note about the old log must not be read as a note about the new one.
        (self.folder / SOURCE).unlink(missing_ok=True)
        unfinished = self.folder / f".{LOG}.{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                yield file
            unfinished.replace(self.folder / LOG)
        finally:
            unfinished.unlink(missing_ok=True)

    def record(self) -> dict[str, Any]:
        """The record of the measurement whose complete log is stored; empty where there is none."""
        return self._read(SOURCE) or {}

    def mark_complete(self, job_uid: str, record: Mapping[str, Any] | None = None) -> None:
        """Note that the stored log is the complete one of this job, with its RECORD once there is a verdict.

        Only the owner can read it, because it has the environment of the ranks.
        """
        self._write(SOURCE, {**(record or {}), "job_uid": job_uid}, mode=0o600)

    def save_verdict(self, verdict: dict[str, Any]) -> None:
        """Store the verdict."""
        self._write(VERDICT, verdict)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, value: dict[str, Any], mode: int = 0o666) -> None:
        write_whole(self.folder / name, json.dumps(value, indent=2, sort_keys=True) + "\n", mode)
