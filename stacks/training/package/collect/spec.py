"""Stdin of `busbar training collect`: the job, and the expectation of its run."""

from __future__ import annotations

from typing import Any

from busbar.collect.spec import GRACE_SECONDS, JobSpec
from stacks.training.package.config import Training
from stacks.training.package.expectation import Expectation, expectation
from stacks.training.package.target import Target


class CollectSpec(JobSpec):
    """The Job of a training run."""

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
