"""The outputs of a stack of stacks/training, also as tables. They fail closed: only a plain pass is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Group, RenderableType
from rich.table import Table

from busbar.frame import StackOutputs, headline
from busbar.judge.archive import VERDICT
from busbar.judge.nccl.units import duration, gbps, share, size
from busbar.judge.tables import check_table, kept_verdict, not_passed, notes, styled, table
from busbar.models import number
from busbar.outputs.contract import printed_object
from busbar.outputs.summary import NOT_MEASURED
from stacks.training.capability import GATE
from stacks.training.package.config import Training
from stacks.training.package.storage import described
from stacks.training.package.target import Target
from stacks.training.package.verdict import SCHEMA, Measured, Verdict


class Outputs(StackOutputs):
    """The outputs, in the order of their export. `training`: FIELDS of the result of each pool."""

    training_contract_version: int = GATE.contract
    training_passed: bool
    training_reasons: list[str]
    training: dict[str, dict[str, Any]]
    trainer_version: str | None = None
    runtimes: list[str] = Field(default=[])
    multus_version: str | None = None
    training_operator_version: str | None = None
    storage: dict[str, Any] = Field(default={})


_LOCATION, _SIMULATED = "verdict_file", "simulated"
_NOT_OF_POOLS = {"schema_", "passed", "reasons"}
FIELDS = (*(name for name in Measured.model_fields if name not in _NOT_OF_POOLS), _SIMULATED, _LOCATION)
"""The keys of `training[pool]`; values that were not measured have no key."""


def summarize(verdict: Verdict, *, verdict_file: str | None = None) -> dict[str, Any]:
    """The output of the step `collect`: FIELDS of a verdict, and `schema`, `passed`, `reasons`."""
    values = verdict.model_dump(mode="json", include={*Measured.model_fields}, exclude_none=True)
    for name, value in values.items():
        if isinstance(value, float):
            # A time in seconds to the microsecond.
            values[name] = round(value, 6 if name.endswith("_seconds") else 4)
    return {**values, _LOCATION: verdict_file} if verdict_file else values


def read_summary(stdout: str | None) -> dict[str, Any]:
    """The verdict that the step `collect` printed; any other text is "unknown"."""
    verdict = printed_object(stdout)
    if isinstance(verdict.get("passed"), bool):
        return verdict
    reason = "the output of `busbar step training collect` cannot be read: it is not a verdict"
    return {"schema": SCHEMA, "verdict": "unknown", "passed": False, "reasons": [reason]}


def build_outputs(
    training: Training,
    cluster_name: str,
    targets: Mapping[str, Target],
    results: Mapping[str, Mapping[str, Any]],
    claim: str | None = None,
    **installed: Any,
) -> dict[str, Any]:
    """All outputs. `results`: pool -> the result of `summarize`. `claim`: printed by the step `bind-claim`.

    A pool without a result, or with one that is anything but a plain pass, makes `training_passed` false.
    """
    reasons = {pool: _reasons(results.get(pool), training.proof.enabled) for pool in targets}
    several = len(targets) > 1
    return Outputs(
        cluster_name=cluster_name,
        namespace=training.namespace,
        training_passed=bool(targets) and not any(reasons.values()),
        training_reasons=[
            f"pool {pool}: {reason}" if several else reason for pool in reasons for reason in reasons[pool]
        ],
        training={pool: _exported(result, targets[pool]) for pool, result in results.items()},
        storage=described(training.storage, training.namespace, claim),
        **installed,
    ).model_dump()


def _exported(result: Mapping[str, Any], target: Target) -> dict[str, Any]:
    # Parts that were simulated when the fabric was measured are simulated now.
    values = {**result, _SIMULATED: target.result.simulated}
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


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (build_outputs) for a terminal. Raises ValueError for those of another contract.

    `folder` is where logs and verdicts were kept. Checks are shown where the verdict belongs to the outputs.
    """
    found = Outputs.read(GATE, outputs)
    pools = found.training
    verdicts = {
        pool: kept_verdict(pool, folder, entry.get(_LOCATION), partial(_is_of, entry))
        for pool, entry in pools.items()
    }
    busbw = {pool: entry["busbw_gbps"] for pool, entry in pools.items() if "busbw_gbps" in entry}
    reached = "; ".join(f"{pool}: all-reduce of the gradients {gbps(busbw[pool])}" for pool in busbw)
    parts: list[RenderableType] = [not_passed("", found.training_reasons, NOT_MEASURED)]
    if pools:
        parts = [headline(GATE, outputs, reached), _table(pools)]
    if any(verdicts.values()):
        parts.append(check_table(verdicts))
    return Group(*parts, *notes(_notes(found, folder)))


def _table(pools: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column per pool, a row per result; values that no pool has measured have no row."""
    rows = table("", *pools)
    for name, show, *fields in _ROWS:
        values = [[entry.get(field) for field in fields] for entry in pools.values()]
        found = ["" if None in each else show(*each) for each in values]
        if any(found):
            rows.add_row(name, *(each or "-" for each in found))
    return rows


def _time(seconds: float) -> str:
    return duration(float(f"{seconds * 1e6:.3g}"))


# What a row shows, and of which FIELDS: as numbers they are floats in the state of a stack.
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("verdict", styled, "verdict"),
    ("workers", "{:g}".format, "nodes"),
    ("ranks", "{:g}".format, "ranks"),
    ("starts", "{:g}".format, "starts"),
    ("loss", "{:.4g}, at the end {:.4g}".format, "first_loss", "last_loss"),
    ("gradients", lambda written: size(int(written)), "gradient_bytes"),
    ("step", _time, "step_seconds"),
    ("all-reduce", _time, "allreduce_seconds"),
    ("expected", _time, "expected_allreduce_seconds"),
    ("busbw", gbps, "busbw_gbps"),
    ("of measured", lambda part, of: f"{share(part)} of {gbps(of)}", "busbw_fraction", "measured_busbw_gbps"),
    ("checkpoint", lambda n, s: f"{size(int(n))} in {_time(s)}", "checkpoint_bytes", "checkpoint_seconds"),
    ("torch", str, "torch"),
)


def _notes(outputs: Outputs, folder: Path | None) -> Iterator[tuple[str, str]]:
    yield "cluster", outputs.cluster_name
    if outputs.runtimes:
        yield "runtimes", ", ".join(outputs.runtimes)
    if claim := outputs.storage.get("claim"):
        yield "claim", f"{outputs.storage['namespace']}/{claim}"
    for pool, entry in outputs.training.items():
        if location := entry.get(_LOCATION):
            yield "verdict", f"{folder}/{pool}/{VERDICT}" if folder else str(location)
        if simulated := entry.get(_SIMULATED):
            yield "simulated", f"{pool}: {simulated}"


def _is_of(entry: Mapping[str, Any], verdict: Any) -> bool:
    """True if the outputs of a pool were made from this verdict."""
    again = summarize(Verdict.model_validate(verdict))
    return all(again.get(key) == value for key, value in entry.items() if key not in (_LOCATION, _SIMULATED))
