"""The stack outputs as tables: what was measured, against what, and where the evidence is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.units import gbps, rate, share, size
from busbar.judge.tables import check_table, kept_verdict, not_passed, notes, passed, styled, table
from busbar.outputs.contract import (
    MEASURED_ONLY,
    Details,
    PoolResult,
    check_version,
    summarize,
    unpack_details,
)
from busbar.text import counted

NOT_MEASURED = "NOT MEASURED"
# Fields that a verdict does not have: its files, time and Nodes of the measurement.
_BESIDES = {"verdict_file", "config_map", "measured_at", "nodes_measured", "stale"}


def summary(outputs: Mapping[str, Any], *, folder: Path | None = None) -> RenderableType:
    """Render the outputs of a stack (contract: busbar/outputs/contract.py) for a terminal.

    `folder` is where reports and kubeconfig were kept, such as .busbar/prod. Where the verdict.json of a pool
    is on this machine and belongs to the outputs, its checks are shown too. Missing outputs are named as
    missing, so those of a half-way update are shown too. Raises ValueError for another contract.
    """
    if "contract_version" in outputs:
        check_version(outputs)
    pools = pools_of(outputs)
    return Group(*tables(outputs, pools, folder), *notes(_notes(outputs, pools, folder)))


def pools_of(outputs: Mapping[str, Any]) -> Mapping[str, PoolResult]:
    """The results by pool; none where the update ended before them. Raises ValueError."""
    return Details.model_validate(unpack_details(outputs["details"])).nccl if "details" in outputs else {}


def tables(
    outputs: Mapping[str, Any], pools: Mapping[str, PoolResult], folder: Path | None
) -> Iterator[RenderableType]:
    """Tables of the conclusion, the pools, their collectives, and the checks of verdicts on this machine."""
    yield _headline(outputs, pools)
    verdicts = {
        name: kept_verdict(name, folder, pool.verdict_file, partial(_is_of, pool))
        for name, pool in pools.items()
    }
    if pools:
        yield from (_pool_table(pools), _collective_table(pools, verdicts))
    if any(verdicts.values()):
        yield check_table(verdicts)


def _headline(outputs: Mapping[str, Any], pools: Mapping[str, PoolResult]) -> Text:
    if outputs.get("nccl_passed") is True:
        # Over TCP no value is expected unless one is configured; Pulumi drops outputs that are None.
        busbw, expected = outputs.get("nccl_busbw_gbps"), outputs.get("nccl_expected_gbps")
        against = "" if expected is None else f", expected {gbps(expected)}"
        times = [pool.measured_at for pool in pools.values() if pool.measured_at]
        when = f", measured {min(times):%Y-%m-%d %H:%M} UTC" if times else ""
        return passed(f"{rate(busbw)} GB/s{against}{when}")
    if not pools:
        why = "" if "nccl_passed" in outputs else "the update ended before the validation"
        return not_passed(why, outputs.get("nccl_reasons"), NOT_MEASURED)
    return not_passed("NCCL validation failed", outputs.get("nccl_reasons"))


def _pool_table(pools: Mapping[str, PoolResult]) -> Table:
    rows = table("pool", "verdict", right=("busbw GB/s", "expected", "of expected"))
    for column in ("transport", "GDRDMA edges", "rails"):
        rows.add_column(column)
    for name, pool in pools.items():
        rows.add_row(
            name,
            styled(pool.verdict),
            rate(pool.busbw_gbps),
            rate(pool.expected_gbps),
            share(pool.fraction),
            pool.transport,
            f"{pool.gdrdma_edges} of {pool.network_edges}" if pool.network_edges else "-",
            _rails(pool.hosts_by_rails),
        )
    return rows


def _collective_table(
    pools: Mapping[str, PoolResult], verdicts: Mapping[str, Mapping[str, Any] | None]
) -> Table:
    """A row per collective: busbw at the largest size, and the expected one if the verdict is here."""
    rows = table("pool", "collective", right=("size", "busbw GB/s", "expected", "of expected"))
    rows.add_column("verdict")
    for name, pool in pools.items():
        for collective, curve in pool.curve.items():
            judged = ((verdicts.get(name) or {}).get("collectives") or {}).get(collective) or {}
            largest, busbw = max(curve)
            found = judged.get("passed")
            rows.add_row(
                name,
                collective,
                size(largest),
                rate(busbw),
                rate(judged.get("expected_gbps")),
                share(judged.get("fraction")),
                styled("-" if found is None else "pass" if found is True else "fail"),
            )
    return rows


def _notes(
    outputs: Mapping[str, Any], pools: Mapping[str, PoolResult], folder: Path | None
) -> Iterator[tuple[str, str]]:
    if endpoint := outputs.get("api_endpoint"):
        yield "API", str(endpoint)
    elif "details" in outputs:
        yield "note", MEASURED_ONLY
    versions = {"k3s": outputs.get("k3s_version"), **(outputs.get("versions") or {})}
    if found := [f"{name} {version}" for name, version in sorted(versions.items()) if version]:
        yield "versions", ", ".join(found)
    if folder is not None and "kubeconfig" in outputs:
        yield "kubeconfig", f"{folder}/kubeconfig"
    yield from pool_notes(pools, folder)


def pool_notes(pools: Mapping[str, PoolResult], folder: Path | None) -> Iterator[tuple[str, str]]:
    """Notes on each pool, as label and text: the place of its evidence, and its peculiarities."""
    for name, pool in pools.items():
        if folder is not None:
            yield "report", f"{folder}/{name}/report.html"
        elif pool.verdict_file:
            yield "verdict", pool.verdict_file
        if pool.config_map:
            yield "in cluster", f"ConfigMap {pool.config_map}"
        if pool.measured_at:
            yield "measured", f"{name}: {pool.measured_at:%Y-%m-%d %H:%M:%S} UTC"
        if pool.judge not in (None, JUDGE):
            yield "judged", f"{name}: by judge {pool.judge} (this busbar has judge {JUDGE})"
        for change in pool.stale or ():
            yield "stale", f"{name}: {change}"
        if pool.simulated:
            yield "simulated", f"{name}: {pool.simulated}"


def _is_of(pool: PoolResult, verdict: Mapping[str, Any]) -> bool:
    """Return whether the outputs of a pool were made from this verdict."""
    again = PoolResult.model_validate(summarize(verdict))
    return again.model_dump(exclude=_BESIDES) == pool.model_dump(exclude=_BESIDES)


def _rails(hosts_by_rails: Mapping[int, int]) -> str:
    """The number of rails in use as a text: `8 on each of 2 hosts`, or `8 on 7 hosts, 6 on 1 host`."""
    if len(hosts_by_rails) == 1:
        [(rails, hosts)] = hosts_by_rails.items()
        return f"{rails} on each of {hosts} hosts" if hosts > 1 else f"{rails} on 1 host"
    groups = sorted(hosts_by_rails.items(), reverse=True)
    return ", ".join(f"{rails} on {counted(hosts, 'host')}" for rails, hosts in groups) or "-"
