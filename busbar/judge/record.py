"""The record of a measurement: the facts about it that a verdict needs. It is made once, with the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from busbar.models import OutputModel

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
