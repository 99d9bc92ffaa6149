"""What was read from made and real logs, to be compared."""

from dataclasses import asdict
from functools import cache
from typing import Any

from busbar.judge.nccl import Expectation, Verdict, judge_log, read_lines
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.log.records import Run
from busbar.judge.nccl.log.tables import infer
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

BESIDE = {"rows", "largest_row", "lines", "bytes", "sha256", "truncated"}  # not stated of every log


@cache
def parsed(name: str) -> ParsedLog:
    """The made log of a case, as it is read."""
    return read_lines(Log(cases()[name]).lines)


@cache
def verdict_of(name: str) -> Verdict:
    """The verdict on the made log of a case, as on two hosts with eight rails."""
    return judge_log(parsed(name), Expectation(profile="h100-ib-8x400", nodes=2))


def as_object(log: ParsedLog) -> dict[str, Any]:
    """The tables and the main evidence of a log, with the names that the sidecars of real logs use."""
    evidence = log.evidence
    return {
        "runs": [_run(run) for run in log.runs],
        "transport": list(evidence.networks),
        "via": {label: edges.count for label, edges in evidence.edges.items()},
        "gdrdma": evidence.gdrdma,
        "nccl_version": list(evidence.versions),
        "topo_file": list(evidence.topology_set),
        "warnings": sorted({text[:140] for text in evidence.warnings})[:6],
        "test_failures": list(evidence.test_failures),
        **{name: getattr(log, name) for name in ("lines", "bytes", "sha256", "truncated")},
    }


def _run(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {
        "error_column": run.error_column,
        "n_rows": len(run.rows),
        "avg_bus_bandwidth_as_printed": run.avg,
        "out_of_bounds": run.out_of_bounds,
        "out_of_bounds_status": run.out_of_bounds_status,
        "collective_printed": run.preamble.name or run.preamble.command,
        "collective": infer(run).name,
        "rows": [{**asdict(row), "at": row.at.line} for row in run.rows],
    }
    if run.rows:
        first, second = run.largest_row.measurements
        found["largest_row"] = {
            "oop_time": first.time,
            "oop_algbw": first.algbw,
            "oop_busbw": first.busbw,
            "oop_err": first.errors,
            "ip_busbw": second.busbw,
            "ip_err": second.errors,
        }
        counted = run.error_column == "#wrong" and run.rows
        found["rows_with_wrong"] = len(run.wrong_rows) if counted else None
        found["check_disabled"] = all(m.unchecked for m in run.measurements) if run.rows else None
        found["avg_matches_rows"] = run.average_matches
    return found


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """The paths at which GOT differs from WANT, which may state more."""
    if isinstance(want, dict) and isinstance(got, dict):
        unstated = [f"{path}.{key} is not expected" for key in got if key not in {*want, *BESIDE}]
        both = [key for key in got if key in want]
        return unstated + [text for key in both for text in differences(want[key], got[key], f"{path}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [text for i, (w, g) in pairs for text in differences(w, g, f"{path}[{i}]")]
    return [] if want == got else [f"{path}: want {want!r}, got {got!r}"]
