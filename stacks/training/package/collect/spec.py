"""stdin of `busbar training collect`: which job, and what its run must show."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stacks.training.package.config import Training
from stacks.training.package.expectation import Expectation, expectation
from stacks.training.package.target import Target

# The collector waits this much longer than the job may run, for the job that ended at its own deadline.
GRACE_SECONDS = 60


class CollectSpec(BaseModel):
    """What to collect and by which expectation to judge it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: str
    job: str = Field(description="Name of the Job.")
    folder: str = Field(description="Where log and verdict are kept, relative to the project.")
    deadline_seconds: float = Field(gt=0)
    expectation: Expectation


def collect_spec(target: Target, training: Training, job: str, *, folder: str) -> dict[str, Any]:
    """The spec of one pool's run, as plain JSON values."""
    return CollectSpec(
        namespace=training.namespace,
        job=job,
        folder=folder,
        deadline_seconds=training.proof.deadline_seconds + GRACE_SECONDS,
        expectation=expectation(target, training),
    ).model_dump(mode="json", exclude_none=True)
