"""The outputs of a stack of stacks/training. They fail closed: only a plain pass is a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busbar.judge.verdict import read_verdict
from busbar.models import number
from stacks.training.package.config import Training
from stacks.training.package.target import Target
from stacks.training.package.verdict import SCHEMA, Verdict

CONTRACT_VERSION = 1
"""Raised when an output changes its meaning or is removed; a new output alone does not raise it."""

NAMES = (
    "training_contract_version",
    "cluster_name",
    "namespace",
    "training_passed",
    "training_reasons",
    "training",
)
"""The outputs, in the order of their export."""

# Decimals of an exported number: a time in seconds to the microsecond.
DIGITS = 4
SECONDS_DIGITS = 6
_TEXTS = ("verdict", "backend", "torch")
_NUMBERS = (
    "ranks", "nodes", "starts", "first_loss", "last_loss", "gradient_bytes", "step_seconds",
    "allreduce_seconds", "expected_allreduce_seconds", "allreduce_share", "exposed_share",
    "busbw_gbps", "measured_busbw_gbps", "busbw_fraction", "checkpoint_bytes", "checkpoint_seconds",
)  # fmt: skip
FIELDS = (*_TEXTS, *_NUMBERS, "simulated", "verdict_file")
"""The keys of `training[pool]`; values that were not measured have no key."""


def summarize(verdict: Verdict, *, verdict_file: str | None = None) -> dict[str, Any]:
    """The output of `busbar training collect`: FIELDS of a verdict, and `schema`, `passed`, `reasons`."""
    values = verdict.model_dump(mode="json")
    short = {
        **{key: values[key] for key in ("schema", "passed", "reasons", *_TEXTS)},
        **{key: number(values[key], digits=_digits(key)) for key in _NUMBERS},
        "verdict_file": verdict_file,
    }
    return {key: value for key, value in short.items() if value is not None}


def _digits(name: str) -> int:
    return SECONDS_DIGITS if name.endswith("_seconds") else DIGITS


def read_summary(stdout: str | None) -> dict[str, Any]:
    """The verdict that `busbar training collect` printed. Never raises: any other text is "unknown"."""
    return read_verdict(stdout, command="training collect", schema=SCHEMA)


def build_outputs(
    training: Training,
    cluster_name: str,
    targets: Mapping[str, Target],
    results: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All outputs. `results`: pool -> the result of `summarize`.

    Fails closed: a pool without a result, or with one that is anything but a plain pass, makes
    `training_passed` false, and `training_reasons` says why.
    """
    reasons = {pool: _reasons(results.get(pool), training.proof.enabled) for pool in targets}
    several = len(targets) > 1
    return {
        "training_contract_version": CONTRACT_VERSION,
        "cluster_name": cluster_name,
        "namespace": training.namespace,
        "training_passed": bool(targets) and not any(reasons.values()),
        "training_reasons": [
            f"pool {pool}: {reason}" if several else reason for pool in reasons for reason in reasons[pool]
        ],
        "training": {pool: _exported(result, targets[pool]) for pool, result in results.items()},
    }


def _exported(result: Mapping[str, Any], target: Target) -> dict[str, Any]:
    # Parts that were simulated when the fabric was measured are simulated now.
    values = {**result, "simulated": target.result.simulated}
    return {key: values[key] for key in FIELDS if values.get(key) is not None}


def _reasons(result: Mapping[str, Any] | None, enabled: bool) -> list[str]:
    """Why a pool did not pass; empty only for a result that is a pass in every respect."""
    if result is None:
        return ["no verdict: nothing was trained" if enabled else "not trained: proof.enabled is false"]
    reasons = [str(reason) for reason in result.get("reasons") or []]
    if result.get("schema") != SCHEMA:
        return [*reasons, f"unsupported verdict schema {result.get('schema')!r} (supported: {SCHEMA})"]
    if result.get("passed") is True and result.get("verdict") == "pass":
        complete = number(result.get("busbw_gbps")) is not None
        return reasons if complete else [*reasons, "the verdict is a pass without a bandwidth"]
    return reasons or [f"the verdict is {result.get('verdict')!r} and gives no reason"]
