"""The outputs of a stack of stacks/training as tables: what was trained, how fast, and every check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from busbar.nccl.units import duration, gbps, rate, share, size
from busbar.outputs.tables import check_table, styled, table
from busbar.training.outputs import CONTRACT_VERSION, summarize
from busbar.training.verdict import Verdict

VERDICT = "verdict.json"
_LOCATION, _SIMULATED = "verdict_file", "simulated"


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs (busbar.training.outputs.build_outputs) for a terminal.

    `folder` is where logs and verdicts were kept, such as .busbar/prod. Where the verdict of a pool is on
    this machine and belongs to the outputs, its checks are shown too. Raises ValueError for outputs of
    another contract version.
    """
    version = outputs.get("training_contract_version")
    if version != CONTRACT_VERSION:
        raise ValueError(f"unsupported training_contract_version {version} (supported: {CONTRACT_VERSION})")
    pools: Mapping[str, Mapping[str, Any]] = outputs.get("training") or {}
    verdicts = {pool: _kept_verdict(pool, entry, folder) for pool, entry in pools.items()}
    parts: list[RenderableType] = [_headline(outputs)]
    if pools:
        parts += [_run_table(pools), _time_table(pools)]
    if any(verdicts.values()):
        parts.append(check_table(verdicts))
    parts += [Text(f"{name:>12}  {value}") for name, value in _notes(outputs, pools, folder)]
    return Group(*parts)


def _headline(outputs: Mapping[str, Any]) -> Text:
    if outputs.get("training_passed") is True:
        pools: Mapping[str, Mapping[str, Any]] = outputs.get("training") or {}
        shown = "; ".join(
            f"{pool}: all-reduce of the gradients {gbps(entry['busbw_gbps'])}"
            for pool, entry in pools.items()
        )
        return Text(f"PASS  {shown}", "bold green")
    text = Text("FAIL  training run failed", "bold red")
    for reason in outputs.get("training_reasons") or []:
        text.append(f"\n      {reason}", "red")
    return text


def _run_table(pools: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = table("pool", "verdict", right=("workers", "ranks", "first loss", "last loss"))
    for column in ("checkpoint", "starts", "torch"):
        rows.add_column(column)
    for pool, entry in pools.items():
        written, seconds = entry.get("checkpoint_bytes"), entry.get("checkpoint_seconds")
        rows.add_row(
            pool,
            styled(str(entry.get("verdict"))),
            _count(entry.get("nodes")),
            _count(entry.get("ranks")),
            _loss(entry.get("first_loss")),
            _loss(entry.get("last_loss")),
            "-" if written is None else f"{size(int(written))} in {_time(seconds)}",
            _count(entry.get("starts")),
            str(entry.get("torch") or "-"),
        )
    return rows


def _time_table(pools: Mapping[str, Mapping[str, Any]]) -> Table:
    """Times and bandwidth; `measured` is the busbw of nccl-tests at this size."""
    right = (
        "gradients",
        "step",
        "all-reduce",
        "expected",
        "exposed",
        "busbw GB/s",
        "measured",
        "of measured",
    )
    rows = table("pool", right=right)
    for pool, entry in pools.items():
        gradients = entry.get("gradient_bytes")
        rows.add_row(
            pool,
            "-" if gradients is None else size(int(gradients)),
            *(_time(entry.get(f"{name}_seconds")) for name in ("step", "allreduce", "expected_allreduce")),
            share(entry.get("exposed_share")),
            *(rate(entry.get(name)) for name in ("busbw_gbps", "measured_busbw_gbps")),
            share(entry.get("busbw_fraction")),
        )
    return rows


def _notes(
    outputs: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]], folder: Path | None
) -> list[tuple[str, str]]:
    notes = [("cluster", str(outputs.get("cluster_name")))]
    if outputs.get("runtimes"):
        notes.append(("runtimes", ", ".join(map(str, outputs["runtimes"]))))
    for pool, entry in pools.items():
        if entry.get(_LOCATION):
            notes.append(("verdict", f"{folder}/{pool}/{VERDICT}" if folder else str(entry[_LOCATION])))
        if entry.get(_SIMULATED):
            notes.append(("simulated", f"{pool}: {entry[_SIMULATED]}"))
    return notes


def _kept_verdict(pool: str, entry: Mapping[str, Any], folder: Path | None) -> Mapping[str, Any] | None:
    """The whole verdict, where it is on this machine and is the one that the outputs were made of."""
    path = folder / pool / VERDICT if folder else Path(str(entry.get(_LOCATION)))
    try:
        verdict = Verdict.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    again = summarize(verdict)
    same = all(again.get(key) == value for key, value in entry.items() if key not in (_LOCATION, _SIMULATED))
    return verdict.model_dump(mode="json") if same else None


def _count(value: Any) -> str:
    return "-" if value is None else f"{value:g}"


def _loss(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


def _time(seconds: Any) -> str:
    return "-" if seconds is None else duration(float(seconds) * 1e6)
