"""The stack outputs as a table for a person: what was measured, against what, and why it counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from busbar.nccl.units import gbps, rate, share, size

_STYLES = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-required": "dim"}


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs of a stack (see busbar/outputs.py) for a terminal.

    `folder` is where reports and kubeconfig were kept, if anywhere. Missing outputs are said to be
    missing: a bring-up that stopped half-way shows what there is.
    """
    parts: list[RenderableType] = [_headline(outputs)]
    pools = (outputs.get("nccl") or {}).get("pools") or {}
    if pools:
        parts += [_bandwidth(pools), _checks(pools)]
    parts += [Text(f"{name:>12}  {value}") for name, value in _places(outputs, pools, folder)]
    return Group(*parts)


def _headline(outputs: Mapping[str, Any]) -> Text:
    if outputs.get("nccl_passed") is True:
        # Over TCP nothing is expected unless somebody says so; Pulumi drops outputs that are None.
        busbw, expected = outputs.get("nccl_busbw_gbps"), outputs.get("nccl_expected_gbps")
        against = "" if expected is None else f", expected {gbps(expected)}"
        text = Text(f"PASS  {rate(busbw)} GB/s{against}", "bold green")
    elif "nccl_passed" in outputs:
        text = Text("FAIL  the fabric has not been shown to be what it should be", "bold red")
        for reason in outputs.get("nccl_reasons") or []:
            text.append(f"\n      {reason}", "red")
    else:
        text = Text("NOT MEASURED  the bring-up ended before the validation", "bold red")
    return text


def _bandwidth(pools: Mapping[str, Any]) -> Table:
    table = Table("pool", "collective", box=None, pad_edge=False, header_style="bold")
    for column in ("size", "busbw GB/s", "expected", "of expected"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for pool, verdict in pools.items():
        for name, result in (verdict.get("collectives") or {}).items():
            passed = "pass" if result.get("passed") else "fail"
            curve = result.get("curve") or []
            table.add_row(
                pool,
                name,
                size(int(max(row["size_bytes"] for row in curve))) if curve else "-",
                rate(result.get("busbw_gbps")),
                rate(result.get("expected_gbps")),
                share(result.get("fraction")),
                Text(passed, _STYLES[passed]),
            )
    return table


def _checks(pools: Mapping[str, Any]) -> Table:
    """One row a check that was made; the others, which this measurement does not need, in one row."""
    table = Table("pool", "check", "status", "why", box=None, pad_edge=False, header_style="bold")
    for pool, verdict in pools.items():
        idle = []
        for check in verdict.get("checks") or []:
            name, status = str(check.get("name")), str(check.get("status"))
            if status == "not-required":
                idle.append(name)
            else:
                why = Text(str(check.get("reason") or ""))
                table.add_row(pool, name, Text(status, _STYLES.get(status, "")), why)
        if idle:
            table.add_row(pool, "(not required)", "", Text(", ".join(idle)), style=_STYLES["not-required"])
    return table


def _places(
    outputs: Mapping[str, Any], pools: Mapping[str, Any], folder: Path | None
) -> Iterator[tuple[str, str]]:
    if endpoint := outputs.get("api_endpoint"):
        yield "API", str(endpoint)
    if versions := outputs.get("versions"):
        yield "versions", ", ".join(f"{name} {found}" for name, found in sorted(versions.items()) if found)
    if folder is not None:
        if "kubeconfig" in outputs:
            yield "kubeconfig", f"{folder}/kubeconfig"
        for pool in pools:
            yield "report", f"{folder}/{pool}/report.html"
    for pool, verdict in pools.items():
        if simulated := verdict.get("simulated"):
            yield "simulated", f"{pool}: {simulated}"
