"""A pool: identical workers, and what each of them must have."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from busbar.config.hardware import MeasuredPool
from busbar.config.kubernetes_values import LabelKey, LabelValue, NodeLabelKey
from busbar.config.validation import PoolValidation
from busbar.config.values import Int, Matching, invalid
from busbar.models import ConfigModel

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MaxUnavailable = Annotated[
    str,
    Matching(
        r"[1-9][0-9]{0,3}|(?:[1-9][0-9]?|100)%", "a number of workers or a percentage, such as 4 or 10%"
    ),
    WithJsonSchema({"type": ["integer", "string"]}),
]


FlowControl = Literal["warn", "require", "ignore"]


class Taint(ConfigModel):
    """A taint of a pool's workers."""

    key: LabelKey = Field(description="Key of the taint.")
    value: LabelValue = Field(default="", description="Value of the taint; may be empty.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(description="Effect of the taint.")

    @classmethod
    def parse(cls, text: str) -> Taint:
        """From KEY=VALUE:EFFECT or KEY:EFFECT, as K3s and kubectl take it. Raises ValueError."""
        pair, _, effect = text.rpartition(":")
        key, _, value = pair.partition("=")
        return cls.model_validate({"key": key, "value": value, "effect": effect})

    @property
    def blocks(self) -> bool:
        """True if it keeps away pods that do not tolerate it."""
        return self.effect != "PreferNoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


def _distinct(taints: list[Taint]) -> list[Taint]:
    """Refuse a pair of key and effect that is listed twice, as the API server does (core/validation)."""
    seen: set[tuple[str, str]] = set()
    for taint in taints:
        if (taint.key, taint.effect) in seen:
            raise invalid(f"key {taint.key!r} with effect {taint.effect!r} is listed twice", "keep one")
        seen.add((taint.key, taint.effect))
    return taints


class Pool(MeasuredPool):
    """Requirements for every worker of the pool, and how K3s is updated on it."""

    labels: dict[NodeLabelKey, LabelValue] = Field(
        default={}, description="Labels of the workers; a change is applied to running ones too."
    )
    taints: Annotated[list[Taint], AfterValidator(_distinct)] = Field(
        default=[], description="Taints of the workers; a change is applied to running ones too."
    )
    min_disk_gb: Annotated[Int, Field(ge=1)] = Field(
        default=50, description="Free space per worker in GB (10^9 bytes) where K3s keeps images."
    )
    flow_control: FlowControl = Field(
        default="warn",
        description="RoCE rails: what preflight reports where the priority of NCCL's traffic class has "
        "neither PFC nor ECN on the host, or where this cannot be read. warn: a warning. require: an error. "
        "ignore: nothing.",
    )
    max_unavailable: MaxUnavailable = Field(
        default="10%",
        description="How many running agents of the pool may restart at the same time when their version or "
        "configuration changes: a number, or a percentage of the pool, rounded up.",
    )
    pause_seconds: Annotated[Int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="How long a worker must have been Ready after a restart of its agent before the next "
        "ones restart. Without it: 60 where more than one may restart at the same time, else 0.",
    )
    drain: Literal["never", "upgrade", "always"] = Field(
        default="upgrade",
        description="When a worker is drained before its agent restarts: never, for another version of K3s, "
        "or always. Disruption budgets are honoured. Pods of jobs, of DaemonSets and without a controller "
        "stay, and keep running.",
    )
    drain_timeout_seconds: Annotated[Int, Field(ge=10, le=3600)] = Field(
        default=600,
        description="How long a drain may take. A worker that is not drained by then is uncordoned, its "
        "agent does not restart, and the update fails.",
    )
    running_jobs: Literal["keep", "wait", "refuse"] = Field(
        default="keep",
        description="What an agent that has to restart does while pods of a job (Job, MPIJob) run on its "
        "worker. keep: it restarts, and they keep running; no drain evicts them. wait: it waits for their "
        "end, an hour at most. refuse: the update fails at this worker.",
    )
    quarantine_cordon: bool = Field(
        default=False,
        description="Also cordon the Nodes of workers in quarantine, for schedulers that heed no taint of "
        "Kubernetes, such as that of Slinky.",
    )
    quarantine_limit: MaxUnavailable = Field(
        default="10%",
        description="How many workers of the pool `busbar diagnose --quarantine` may put in quarantine at "
        "once: a number, or a percentage of the pool, rounded down, at least 1.",
    )
    validation: PoolValidation | None = Field(
        default=None, description="What differs in the NCCL validation of this pool, by its hardware."
    )

    def restarts_at_once(self, workers: int) -> int:
        """`max_unavailable` as a number, for a pool with this number of workers."""
        if self.max_unavailable.endswith("%"):
            return math.ceil(workers * int(self.max_unavailable[:-1]) / 100)
        return int(self.max_unavailable)

    def quarantined_at_once(self, workers: int) -> int:
        """`quarantine_limit` as a number, for a pool with this number of workers."""
        if self.quarantine_limit.endswith("%"):
            return max(1, workers * int(self.quarantine_limit[:-1]) // 100)
        return int(self.quarantine_limit)

    def pause_after_restart(self, workers: int) -> int:
        """`pause_seconds`, or its default for a pool of so many workers: a Node stays Ready for 40 to 50 s
        after its kubelet has failed."""
        if self.pause_seconds is not None:
            return self.pause_seconds
        return 60 if self.restarts_at_once(workers) > 1 else 0
