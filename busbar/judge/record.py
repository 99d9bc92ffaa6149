"""The record of a measurement: what its verdict is about. It is made once, where the verdict is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from busbar.models import OutputModel

Settings = Mapping[str, str]
"""Under which something is measured, by name: versions, image, resources, environment, expectation."""

VERDICT = "verdict.json"
"""The file of the verdict, in the folder of the record."""
JOB = "job"
"""The setting that depends on all others: the job's name."""
# The log says these, where there is one.
_OF_THE_LOG = {"iterations", "warmup"}


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How the job ended that printed the log, as its scheduler says: None where that is not known."""

    succeeded: bool | None
    reasons: Sequence[str] = ()


class Record(OutputModel):
    """One measurement. With the log and this alone it can be judged again."""

    job_uid: str
    """What no other run of the job has."""
    pool: str
    kind: str
    """By what it was made: update, measure, idle, or run (on a cluster of others)."""
    folder: str
    """Where log, verdict and report are, relative to the project."""
    nodes: tuple[str, ...]
    """The Nodes of the job."""
    measured_at: str | None
    """When the job was created (UTC)."""
    settings: dict[str, str] = Field(default={})
    expectation: dict[str, Any] | None = None
    """As it was given. Absent in the record of an earlier release."""
    outcome: JobOutcome = JobOutcome(None)
    complete: bool = False
    """Whether the log was read to its end."""


def changes(former: Settings, new: Settings, *, of_earlier_release: bool = False) -> dict[str, str]:
    """Setting -> what differs, as `k3s v1.35.6+k3s1 -> v1.35.7+k3s1`.

    OF_EARLIER_RELEASE: one side names other settings, so that only those of both are compared, and variables.
    """
    either = {**new, **former}
    unknown = {
        key
        for key in either
        if (key in _OF_THE_LOG or (of_earlier_release and not key.startswith("env ")))
        and (key not in former or key not in new)
    }
    return {
        key: f"{key} {former.get(key) or 'none'} -> {new.get(key) or 'none'}"
        for key in either
        if key not in unknown and former.get(key) != new.get(key)
    }
