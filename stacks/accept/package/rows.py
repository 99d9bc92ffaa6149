"""The rows: pure functions of the evidence. A row without its evidence is never a pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from busbar.judge.record import JOB
from busbar.models import StrictModel
from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.rails import choose
from busbar.preflight.report import Report
from busbar.text import counted, listed
from busbar.versions import release
from stacks.accept.package.criteria import KINDS, Criteria, Row
from stacks.accept.package.evidence import HOSTS, LOG_FILES, STAGE, Evidence, Judged, Untrusted
from stacks.accept.package.site import Pool

Outcome = Literal["pass", "fail", "unknown", "not run"]
# Runs of each collective, the first one included. Median and spread count, not the best.
RUNS: Mapping[str, int] = {"all_reduce": 10, "all_gather": 3, "reduce_scatter": 3, "alltoall": 3}
# NCCL_RUN_DIAGNOSTICS exists from this release on.
DIAGNOSTICS = (2, 31)
# Gates that a log with NCCL_DEBUG=WARN can pass, and those that judge a single run.
OF_REPEATS = ("job", "source", "collective", "completeness", "correctness")
OF_ONE_RUN = ("busbw", "stability")
_LINK = re.compile(r"Link \d+: (\S+)(?: GB/s)?")
_NO_VALUE = ("", "[N/A]", "N/A", "0")


class Result(StrictModel):
    """The result of a row. `evidence`: file -> sha256."""

    id: str
    measured: str
    required: bool
    threshold: float | None
    unit: str
    source: str
    result: Outcome
    value: float | None = None
    reason: str
    evidence: dict[str, str]


@dataclass(frozen=True)
class Finding:
    """What a kind has found."""

    result: Outcome
    reason: str
    value: float | None = None


@dataclass(frozen=True)
class Question:
    """A row with its evidence."""

    row: Row
    pool: Pool
    evidence: Evidence

    @property
    def reports(self) -> dict[str, Report]:
        """The reports of the pool's workers."""
        found = self.evidence.inventory
        return {name: found.hosts[name] for name in self.pool.workers if found and name in found.hosts}

    def log(self, stage: str) -> Judged | None:
        """The judged log of the pool in a stage."""
        return self.evidence.judged(stage, self.row.pool)


def results(criteria: Criteria, evidence: Evidence, hashes: Mapping[str, str]) -> list[Result]:
    """The result of every row. HASHES: file -> sha256."""
    return [_result(row, evidence, hashes) for row in criteria.rows]


def verdict(rows: Sequence[Result]) -> Literal["accepted", "refused", "undecided"]:
    """The verdict: a required row that failed refuses, one that is not known leaves it open."""
    states = {row.result for row in rows if row.required}
    if "fail" in states:
        return "refused"
    return "accepted" if states == {"pass"} else "undecided"


def _result(row: Row, evidence: Evidence, hashes: Mapping[str, str]) -> Result:
    try:
        found = _find(Question(row, evidence.begun.site.pools[row.pool], evidence))
    except Untrusted as error:
        found = Finding("unknown", str(error))
    files = {path: hashes[path] for path in _files(row, evidence) if path in hashes}
    about = row.model_dump(include={"id", "measured", "required", "threshold", "unit", "source"})
    if found.result == "pass" and not files:
        found = Finding("unknown", "there is no evidence")
    return Result(**about, result=found.result, value=found.value, reason=found.reason, evidence=files)


def _files(row: Row, evidence: Evidence) -> Iterator[str]:
    stages = ("collectives", "repeats") if row.stage == "repeats" else (row.stage,)
    for stage in stages:
        names = (HOSTS,) if stage == "inventory" else [f"{row.pool}/{name}" for name in LOG_FILES]
        yield from evidence.paths(*(f"{stage}/{name}" for name in (STAGE, *names)))


def _find(asked: Question) -> Finding:
    row = asked.row
    stage = asked.evidence.stage(row.stage)
    if stage is None:
        return Finding("not run", f"the stage {row.stage} was not run")
    if row.pool in stage.notes:
        return Finding("not run", stage.notes[row.pool])
    found = OF_KIND[row.kind](asked)
    kind = KINDS[row.kind]
    if found.result == "pass" and kind.limit is not None:
        if row.threshold is None or found.value is None:
            return Finding("unknown", "there is no value to compare with the threshold")
        is_good = found.value >= row.threshold if kind.least else found.value <= row.threshold
        side = "at least" if kind.least else "at most"
        reason = f"{found.reason}; expected {side} {row.threshold:g} {row.unit}"
        return Finding("pass" if is_good else "fail", reason, found.value)
    return found


def _on_each(
    asked: Question,
    look: Callable[[Report], Iterator[str]],
    good: str,
    unknown: Callable[[Report], str] = lambda _: "",
) -> Finding:
    """A finding from the reports of all workers: a problem fails, a missing fact or report is unknown."""
    reports = asked.reports
    bad = [f"{name}: {what}" for name, report in reports.items() for what in look(report)]
    if bad:
        return Finding("fail", listed(bad, 8))
    missing = [f"{name}: no report" for name in asked.pool.workers if name not in reports]
    missing += [f"{name}: {what}" for name, report in reports.items() if (what := unknown(report))]
    if missing or not reports:
        return Finding("unknown", listed(missing, 8) or "the pool has no workers")
    return Finding("pass", f"{good} on {counted(len(reports), 'node')}")


def _also(report: Report, key: str) -> list[Any]:
    found = report.also.get(key)
    return found if isinstance(found, list) else []


def _nodes(asked: Question) -> Finding:
    reports, found = asked.reports, asked.evidence.inventory
    names = [name for name, each in reports.items() if each.also.get("machine") and each.also.get("boot_id")]
    for key in ("machine", "boot_id"):
        counts = Counter(str(reports[name].also[key]) for name in names)
        if twice := [name for name in names if counts[str(reports[name].also[key])] > 1]:
            return Finding("fail", f"the same {key} on {listed(twice)}")
    failed = found.failed if found else {}
    silent = [f"{each}: {failed.get(each, 'no report')}" for each in asked.pool.workers if each not in names]
    reason = f"{counted(len(names), 'node')}{f'; not {listed(silent)}' if silent else ''}"
    return Finding("pass" if found else "unknown", reason, len(names))


def _unique(asked: Question, key: str, fields: Sequence[str], named: Mapping[str, Sequence[Any]]) -> Finding:
    """The smallest number of devices of a node, all of which have FIELDS that no other has."""
    silent = [name for name in asked.pool.workers if name not in asked.reports]
    if silent or not named:
        return Finding("unknown", f"no report of {listed(silent)}" if silent else "the pool has no workers")
    everywhere = [each for report in asked.evidence.inventory.hosts.values() for each in _also(report, key)]  # type: ignore[union-attr]
    for name in fields:
        lacking = [
            host
            for host, devices in named.items()
            if any(each.get(name, "") in _NO_VALUE for each in devices)
        ]
        if lacking:
            return Finding("unknown", f"{name} is not known on {listed(lacking)}")
        counts = Counter(each.get(name) for each in everywhere)
        twice = [host for host, devices in named.items() if any(counts[each[name]] > 1 for each in devices)]
        if twice:
            return Finding("fail", f"the same {name} twice, on {listed(twice)}")
    fewest = min(named, key=lambda host: len(named[host]))
    number = len(named[fewest])
    return Finding("pass", f"{number} on {fewest}, the node with the fewest", number)


def _gpus(asked: Question) -> Finding:
    return _unique(
        asked, "gpus", ("uuid", "serial"), {name: _also(each, "gpus") for name, each in asked.reports.items()}
    )


def _hcas(asked: Question) -> Finding:
    named = {}
    for name, report in asked.reports.items():
        guids = {(each.get("name"), each.get("port")): each for each in _also(report, "hcas")}
        rails = choose(report.hcas, asked.pool.required).ports.values()
        named[name] = [guids.get((port.name, port.port), {}) for port in rails]
    return _unique(asked, "hcas", ("guid",), named)


def _hardware(asked: Question) -> Finding:
    def errors(report: Report) -> Iterator[str]:
        return (what for level, what, _ in check_hardware(asked.pool.required, report) if level == "error")

    return _on_each(asked, errors, "as configured")


def _health(asked: Question) -> Finding:
    def unread(report: Report) -> str:
        health = report.health
        read = health and {key: getattr(health, key) for key in ("xids", "ecc", "remapped_rows", "nvlink")}
        return "no counters" if not read else ", ".join(key for key, value in read.items() if value is None)

    def problems(report: Report) -> Iterator[str]:
        is_read = not unread(report)
        return (what for _, what, _ in check_health(asked.pool.required, report) if is_read)

    return _on_each(
        asked,
        problems,
        "no error counted",
        lambda report: f"not read: {what}" if (what := unread(report)) else "",
    )


def _ecc(asked: Question) -> Finding:
    def off(report: Report) -> Iterator[str]:
        modes = [each.get("ecc") for each in _also(report, "gpus")]
        if modes.count("Disabled"):
            yield f"ECC is off on {modes.count('Disabled')} of {len(modes)} GPUs"

    def unknown(report: Report) -> str:
        modes = [each.get("ecc") for each in _also(report, "gpus")]
        return "" if modes and {*modes} == {"Enabled"} else "the mode of ECC is not known"

    return _on_each(asked, off, "ECC is on", unknown)


def _nvlinks(asked: Question) -> Finding:
    speeds = {name: _speeds(report) for name, report in asked.reports.items()}
    all_ = Counter(tuple(gpu) for gpus in speeds.values() for gpu in gpus or ())
    usual = all_.most_common(1)[0][0] if all_ else ()

    def wrong(report: Report) -> Iterator[str]:
        for number, links in enumerate(_speeds(report) or ()):
            if tuple(links) != usual:
                yield f"GPU {number} has {_links(links)}, most GPUs have {_links(usual)}"
            elif len({*links}) > 1 or "<inactive>" in links:
                yield f"GPU {number} has {_links(links)}"

    def unknown(report: Report) -> str:
        found = _speeds(report)
        return "" if found and len(found) == asked.pool.required.gpus else "nvidia-smi nvlink -s was not read"

    return _on_each(asked, wrong, f"each GPU has {_links(usual)}", unknown)


def _speeds(report: Report) -> list[list[str]] | None:
    """Of each GPU the speeds of its NVLinks, as `nvidia-smi nvlink -s` prints them."""
    text = report.also.get("nvlinks")
    if not isinstance(text, str):
        return None
    return [_LINK.findall(part) for part in re.split(r"^GPU \d+:", text, flags=re.MULTILINE)[1:]]


def _links(speeds: Sequence[str]) -> str:
    kinds = Counter(speeds)
    return ", ".join(f"{count} NVLinks at {speed} GB/s" for speed, count in kinds.items()) or "no NVLink"


def _same(asked: Question) -> Finding:
    kinds: dict[str, dict[str, list[str]]] = {}
    lacking = [name for name in asked.pool.workers if name not in asked.reports]
    for name, report in asked.reports.items():
        rails = choose(report.hcas, asked.pool.required).ports.values()
        found = {
            "driver": {gpu.driver for gpu in report.gpus.list} if report.gpus else set(),
            "VBIOS": {str(each.get("vbios", "")) for each in _also(report, "gpus")},
            **({"HCA firmware": {port.fw for port in rails}} if asked.pool.required.rails else {}),
        }
        lacking += [f"{name} ({key})" for key, values in found.items() if not values or values & {*_NO_VALUE}]
        for key, values in found.items():
            for value in values - {*_NO_VALUE}:
                kinds.setdefault(key, {}).setdefault(value, []).append(name)
    if differing := {key: values for key, values in kinds.items() if len(values) > 1}:
        texts = (
            f"{key}: {'; '.join(f'{value or None} on {listed(names)}' for value, names in values.items())}"
            for key, values in differing.items()
        )
        return Finding("fail", ". ".join(texts)[:600])
    if lacking or not kinds:
        return Finding("unknown", f"not known of {listed(lacking)}" if lacking else "the pool has no workers")
    return Finding("pass", ", ".join(f"{key} {next(iter(values))}" for key, values in kinds.items()))


NO_LOG = Finding("unknown", "there is no complete log")


def _proof(asked: Question) -> Finding:
    log = asked.log("collectives")
    if log is None:
        return NO_LOG
    missing = [name for name in RUNS if name not in log.busbw]
    if missing:
        return Finding("unknown", f"no table of {listed(missing)}")
    value = log.verdict.busbw_gbps
    good = f"all gates passed; transport {log.verdict.transport}, all_reduce {value} GB/s"
    return Finding(log.verdict.verdict, good if log.verdict.passed else listed(log.verdict.reasons, 2))


def _took_part(asked: Question) -> Finding:
    log = asked.log("collectives")
    if log is None or log.verdict.nodes is None:
        return NO_LOG
    nodes = log.record.nodes
    if log.verdict.nodes != len({*nodes}):
        return Finding("fail", f"the log is of {log.verdict.nodes} nodes, its job had {len({*nodes})}")
    out = [name for name in asked.pool.workers if name not in nodes]
    return Finding(
        "pass", f"{counted(len(nodes), 'node')}{f'; not {listed(out)}' if out else ''}", len(nodes)
    )


def _diagnostics(asked: Question) -> Finding:
    log = asked.log("collectives")
    if log is None:
        return NO_LOG
    found = [each for each in log.verdict.diagnoses if each.name == "nccl-diagnostics"]
    if found:
        return Finding("fail", listed([str(each.evidence) for each in found]))
    if any(each.name == "nccl-diagnostics-passed" for each in log.verdict.diagnoses):
        return Finding("pass", "NCCL's diagnostics passed")
    known = release(log.verdict.nccl_version or "")
    if known is None or known.release[:2] >= DIAGNOSTICS:
        return Finding("unknown", f"NCCL {log.verdict.nccl_version} printed no `NCCL DIAG`")
    return Finding("not run", f"NCCL {log.verdict.nccl_version} has no diagnostics, NCCL 2.31 and newer have")


def _repeats(asked: Question) -> Finding:
    log = asked.log("repeats")
    if log is None:
        return NO_LOG
    checks = {each.name: each for each in log.verdict.checks if each.name not in OF_ONE_RUN}
    if failed := [f"{each.name}: {each.reason}" for each in checks.values() if each.status == "fail"]:
        return Finding("fail", listed(failed, 2))
    if open_ := [name for name in OF_REPEATS if name not in checks or checks[name].status != "pass"]:
        return Finding("unknown", f"gates without their evidence: {', '.join(open_)}")
    if few := [name for name, runs in RUNS.items() if len(log.busbw.get(name, [])) != runs - 1]:
        return Finding("unknown", f"other than the planned number of runs: {', '.join(few)}")
    return Finding("pass", f"{sum(map(len, log.busbw.values()))} runs, whole and correct")


def _values(asked: Question) -> list[float] | Finding:
    """busbw of all runs of the row's collective, in GB/s."""
    first, more = asked.log("collectives"), asked.log("repeats")
    if first is None or more is None:
        return NO_LOG
    name = asked.row.collective
    if first.record.nodes != more.record.nodes or first.record.settings[JOB] == more.record.settings[JOB]:
        return Finding("unknown", "the repeats ran on other nodes than the first run")
    found = [*first.busbw.get(name, []), *more.busbw.get(name, [])]
    return (
        found if len(found) == RUNS[name] else Finding("unknown", f"{len(found)} runs, expected {RUNS[name]}")
    )


def _busbw(asked: Question) -> Finding:
    found, first = _values(asked), asked.log("collectives")
    if isinstance(found, Finding) or first is None:
        return found if isinstance(found, Finding) else NO_LOG
    of_judge = first.verdict.collectives.get(asked.row.collective)
    expected = of_judge.expected_gbps if of_judge else None
    middle = median(found)
    if of_judge is None or not expected:
        return Finding("unknown", f"median of {len(found)} runs {middle:g} GB/s; no expected value exists")
    if of_judge.ceiling_gbps and max(found) > of_judge.ceiling_gbps:
        return Finding(
            "fail", f"{max(found):g} GB/s is above the ceiling of {of_judge.ceiling_gbps:g}: not credible"
        )
    reason = f"median of {len(found)} runs {middle:g} GB/s, {100 * middle / expected:.1f} % of {expected:g}"
    return Finding("pass", reason, round(100 * middle / expected, 2))


def _spread(asked: Question) -> Finding:
    found = _values(asked)
    if isinstance(found, Finding):
        return found
    middle = median(found)
    if middle <= 0:
        return Finding("unknown", "the median is 0")
    value = round(100 * (max(found) - min(found)) / middle, 2)
    return Finding("pass", f"{min(found):g} to {max(found):g} GB/s in {len(found)} runs, {value:g} %", value)


OF_KIND: Mapping[str, Callable[[Question], Finding]] = {
    "inventory.nodes": _nodes,
    "inventory.gpus": _gpus,
    "inventory.hcas": _hcas,
    "inventory.hardware": _hardware,
    "inventory.same": _same,
    "inventory.ecc": _ecc,
    "inventory.nvlinks": _nvlinks,
    "inventory.health": _health,
    "collectives.proof": _proof,
    "collectives.nodes": _took_part,
    "collectives.diagnostics": _diagnostics,
    "repeats.log": _repeats,
    "repeats.busbw": _busbw,
    "repeats.spread": _spread,
}
