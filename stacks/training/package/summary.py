"""The outputs of a stack of stacks/training as tables: the training, its speed, and every check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from busbar.judge.archive import VERDICT
from busbar.judge.nccl.units import duration, gbps, share, size
from busbar.judge.tables import check_table, kept_verdict, not_passed, notes, passed, styled, table
from busbar.outputs.summary import NOT_MEASURED
from stacks.training.package.outputs import CONTRACT_VERSION, summarize
from stacks.training.package.verdict import Verdict

Render = Callable[[Mapping[str, Any]], str | Text]
_LOCATION, _SIMULATED = "verdict_file", "simulated"


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (stacks.training.package.outputs.build_outputs) for a terminal.

    `folder` is where logs and verdicts were kept, such as .busbar/prod. Where the verdict of a pool is on
    this machine and belongs to the outputs, its checks are shown too. Raises ValueError for outputs of
    another contract version.
    """
    version = outputs.get("training_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported training_contract_version {version} (supported: {CONTRACT_VERSION})")
    pools: Mapping[str, Mapping[str, Any]] = outputs.get("training") or {}
    verdicts = {
        pool: kept_verdict(pool, folder, entry.get(_LOCATION), partial(_is_of, entry))
        for pool, entry in pools.items()
    }
    parts: list[RenderableType] = [_headline(outputs)]
    if pools:
        parts.append(_table(pools))
    if any(verdicts.values()):
        parts.append(check_table(verdicts))
    return Group(*parts, *notes(_notes(outputs, pools, folder)))


def _headline(outputs: Mapping[str, Any]) -> Text:
    if outputs.get("training_passed") is True:
        pools: Mapping[str, Mapping[str, Any]] = outputs.get("training") or {}
        shown = "; ".join(
            f"{pool}: all-reduce of the gradients {gbps(entry['busbw_gbps'])}"
            for pool, entry in pools.items()
        )
        return passed(shown)
    if not outputs.get("training"):
        return not_passed("", outputs.get("training_reasons"), NOT_MEASURED)
    return not_passed("training run failed", outputs.get("training_reasons"))


def _table(pools: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column per pool, a row per result; values that no pool has measured have no row."""
    rows = table("", *pools)
    for name, render in _ROWS:
        found = [render(entry) for entry in pools.values()]
        if any(found):
            rows.add_row(name, *(each or "-" for each in found))
    return rows


def _loss(entry: Mapping[str, Any]) -> str:
    first, last = entry.get("first_loss"), entry.get("last_loss")
    return "" if first is None or last is None else f"{first:.4g}, at the end {last:.4g}"


def _allreduce(entry: Mapping[str, Any]) -> str:
    found, expected = _time(entry, "allreduce_seconds"), _time(entry, "expected_allreduce_seconds")
    return f"{found}, expected {expected}" if found and expected else found


def _busbw(entry: Mapping[str, Any]) -> str:
    found, measured = entry.get("busbw_gbps"), entry.get("measured_busbw_gbps")
    if found is None:
        return ""
    against = f", {share(entry.get('busbw_fraction'))} of the measured {gbps(measured)}" if measured else ""
    return gbps(found) + against


def _checkpoint(entry: Mapping[str, Any]) -> str:
    written = _size(entry, "checkpoint_bytes")
    return f"{written} in {_time(entry, 'checkpoint_seconds')}" if written else ""


def _size(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return "" if value is None else size(int(value))


def _time(entry: Mapping[str, Any], name: str) -> str:
    seconds = entry.get(name)
    return "" if seconds is None else duration(float(f"{seconds * 1e6:.3g}"))


def _text(name: str) -> Render:
    return lambda entry: f"{value:g}" if isinstance(value := entry.get(name, ""), int | float) else str(value)


_ROWS: tuple[tuple[str, Render], ...] = (
    ("verdict", lambda entry: styled(str(entry.get("verdict")))),
    ("workers", _text("nodes")),
    ("ranks", _text("ranks")),
    ("starts", _text("starts")),
    ("loss", _loss),
    ("gradients", lambda entry: _size(entry, "gradient_bytes")),
    ("step", lambda entry: _time(entry, "step_seconds")),
    ("all-reduce", _allreduce),
    ("busbw", _busbw),
    ("checkpoint", _checkpoint),
    ("torch", _text("torch")),
)


def _notes(
    outputs: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]], folder: Path | None
) -> list[tuple[str, str]]:
    found = [("cluster", str(outputs.get("cluster_name")))]
    if outputs.get("runtimes"):
        found.append(("runtimes", ", ".join(map(str, outputs["runtimes"]))))
    storage: Mapping[str, Any] = outputs.get("storage") or {}
    if storage.get("claim"):
        found.append(("claim", f"{storage['namespace']}/{storage['claim']}"))
    for pool, entry in pools.items():
        if entry.get(_LOCATION):
            found.append(("verdict", f"{folder}/{pool}/{VERDICT}" if folder else str(entry[_LOCATION])))
        if entry.get(_SIMULATED):
            found.append(("simulated", f"{pool}: {entry[_SIMULATED]}"))
    return found


def _is_of(entry: Mapping[str, Any], verdict: Any) -> bool:
    """Whether the outputs of a pool were made from this verdict."""
    again = summarize(Verdict.model_validate(verdict))
    return all(again.get(key) == value for key, value in entry.items() if key not in (_LOCATION, _SIMULATED))
