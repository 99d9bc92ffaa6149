"""nccl-tests' own JSON (`-J FILE`, from 2.17.3): its arguments, devices and rows as the lines that it prints.

    {"version":3,"args":["./all_reduce_perf","-J","run.json"],"config":{..,"devices":[..]},"results":[..],
     "out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":390.1,"okay":"unchecked"}}

Format: NVIDIA/nccl-tests src/util.cu; 2.17.3 to 2.17.8 misspell "bandwidith". NCCL's own output is in the
log beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from busbar.judge.nccl.log.records import Run, number, rounding

HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"(?:start_time|args)"\s*:')
ENOUGH = 256  # bytes that tell
MAX_BLOCKS = 256  # of 256 KiB; a longer one is not whole
# extensions of the log beside the JSON, in place of .json
LOGS = (".log", ".out", ".txt")
MEASUREMENTS = ("out_of_place", "in_place")


def is_results(head: bytes) -> bool:
    """Whether a file that begins with HEAD is nccl-tests' JSON."""
    return HEAD.match(head) is not None


def log_beside(path: str) -> str | None:
    """The log of the run whose JSON is PATH; it has the same name with another extension."""
    return next((str(log) for end in LOGS if (log := Path(path).with_suffix(end)).is_file()), None)


def printed(text: bytes) -> tuple[list[str], list[str]]:
    """The lines that the program prints before and after NCCL's. Raises ValueError for incomplete JSON."""
    found = json.loads(text)
    try:
        return list(_preamble(found)), list(_table(found))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from error


def difference(runs: list[Run], beside: list[Run]) -> str | None:
    """The first difference of the JSON's RUNS from the tables of the log BESIDE it; None where one agrees."""
    found = [_difference(run, other) for run in runs for other in beside]
    return None if None in found else next(iter(found), None)


def _difference(run: Run, other: Run) -> str | None:
    mine, printed = run.preamble.banner, other.preamble.banner
    if mine is not None and printed is not None:
        for name in ("min_bytes", "max_bytes", "step", "by", "iterations", "validation"):
            if getattr(mine, name) != getattr(printed, name):
                return f"its {name} is {getattr(printed, name)}, that of the JSON {getattr(mine, name)}"
    rows = {row.key: row for row in run.rows}
    for row in other.rows:
        if row.key not in rows:
            return f"it has a row of {row.size} bytes that the JSON lacks"
        for ours, theirs in zip(rows[row.key].measurements, row.measurements, strict=True):
            if any(_differ(getattr(ours, x), getattr(theirs, x)) for x in ("time", "busbw")):
                return f"{row.size} bytes: {theirs.busbw} GB/s, {ours.busbw} in the JSON"
    return None


def _differ(one: str, other: str) -> bool:
    a, b = number(one), number(other)
    return (a is None) != (b is None) or (
        a is not None and b is not None and abs(a - b) > rounding(one) + rounding(other) + 1e-5 * abs(a)
    )


def _preamble(found: dict[str, Any]) -> Iterator[str]:
    config = found["config"]
    yield f"# Collective test starting: {_name(found)}"
    step, by = (
        (config["step_factor"], "factor") if "step_factor" in config else (config["step_bytes"], "bytes")
    )
    yield (
        f"# nThread {config['nthreads']} nGpus {config['ngpus']} minBytes {config['minimum_bytes']} "
        f"maxBytes {config['maximum_bytes']} step: {step}({by}) warmup iters: {config['warmup_iters']} "
        f"iters: {config['iterations']} agg iters: {config['aggregated_iterations']} "
        f"validation: {config['validation']} graph: {config['graph']}"
    )
    for each in config["devices"]:
        yield (
            f"#  Rank {each['rank']} Group {each['group']} Pid {each['pid']} on {each['hostname']} "
            f"device {each['device']} [{each['device_hex']}] {each['device_info']}"
        )


def _table(found: dict[str, Any]) -> Iterator[str]:
    rows = found["results"]
    time = (
        "cputime" if any("cpu_time" in (row[half] or {}) for row in rows for half in MEASUREMENTS) else "time"
    )
    half = f"{time} algbw busbw #wrong"
    yield f"# size count type redop root {half} {half}"
    for row in rows:
        start = f"{row['size']} {row['count']} {row['type']} {row['redop']} {row['root']}"
        yield f"{start} {' '.join(_measurement(row[name]) for name in MEASUREMENTS)}"
    bounds = found["out_of_bounds"]
    yield f"# Out of bounds values : {bounds['count']} {_okay(bounds)}"
    average = found.get("average_bus_bandwidth") or found["average_bus_bandwidith"]
    value = float(average["bandwidth"] if "bandwidth" in average else average["bandwidith"])
    yield f"# Avg bus bandwidth    : {value:g} {_okay(average)}"
    yield f"# Collective test concluded: {_name(found)}"
    yield from (f"# error: {error}" for error in found.get("errors") or () if error)


def _name(found: dict[str, Any]) -> str:
    return str(found["args"][0]).rsplit("/", 1)[-1]


def _okay(found: dict[str, Any]) -> str:
    return {"true": "OK", "false": "FAILED"}.get(str(found["okay"]).lower(), "")


def _measurement(found: dict[str, Any] | None) -> str:
    """A measurement as printed in a table: two decimals, as the program rounds."""
    if found is None:
        return "N/A N/A N/A N/A"
    time = found["time"] if "time" in found else found["cpu_time"]
    values = (f"{float(v):.2f}" for v in (time, found["alg_bw"], found["bus_bw"]))
    wrong = found["nwrong"]
    return f"{' '.join(values)} {'N/A' if wrong is None else f'{float(wrong):g}'}"
