"""The kinds of rows: pure functions of the evidence. A row without its evidence is never a pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field

from busbar.config.values import Float, Text
from busbar.models import ConfigModel
from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.rails import choose
from busbar.preflight.report import Report
from busbar.text import counted, listed
from busbar.versions import release
from stacks.accept.package.evidence import Evidence, Judged, Untrusted
from stacks.accept.package.site import Pool

Outcome = Literal["pass", "fail", "unknown", "not run"]
# Runs of each collective, the first one included. Median and spread count, not the best.
RUNS: Mapping[str, int] = {"all_reduce": 10, "all_gather": 3, "reduce_scatter": 3, "alltoall": 3}
# Of ten runs of a healthy rack the spread was 0.05 % (NVIDIA/aicr#2573); a wobble of 5 % is a fault.
SPREAD_PERCENT = 5.0
# NCCL_RUN_DIAGNOSTICS exists from this release on.
DIAGNOSTICS = (2, 31)
# Gates that a log with NCCL_DEBUG=WARN can pass, and those that judge a single run.
OF_REPEATS = ("job", "source", "collective", "completeness", "correctness")
OF_ONE_RUN = ("busbw", "stability")
# The parts of preflight's report; each is None where its program failed.
COUNTERS = ("xids", "ecc", "remapped_rows", "nvlink")
LINK = re.compile(r"Link \d+: (\S+)")
NO_VALUE = {"", "[N/A]", "N/A", "0"}


class Row(ConfigModel):
    """One criterion."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_-]+(\.[a-z0-9_-]+){2,3}$", max_length=200)] = Field(
        description="STAGE.POOL.KIND, or STAGE.POOL.COLLECTIVE.KIND."
    )
    measured: Text = Field(default="", description="The meaning of the row, for people.")
    threshold: Float | None = Field(default=None, description="Limit of the value; the kind has its side.")
    unit: Text = Field(default="", description="Unit of the threshold.")
    source: Text = Field(default="", description="The origin of the threshold.")
    required: bool = Field(default=True, description="If false, the row does not decide on the acceptance.")

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Stage, pool, collective or an empty text, and STAGE.KIND, a key of KINDS."""
        stage, pool, *collective, kind = self.id.split(".")
        return stage, pool, "".join(collective), f"{stage}.{kind}"


@dataclass(frozen=True)
class Finding:
    """The finding of a kind. With a value the threshold decides on a pass."""

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

    def log(self, stage: str) -> Judged:
        """The judged log of the pool in a stage. Raises Untrusted without a complete one."""
        _, pool, _, _ = self.row.parts
        if found := self.evidence.judged(stage, pool):
            return found
        raise Untrusted(f"{stage}/{pool} has no complete log")


Find = Callable[[Question], Finding]
Look = Callable[[Pool, Report], Iterator[tuple[Outcome, str]]]


@dataclass(frozen=True)
class Kind:
    """A kind of row. `least`: the value must reach the threshold; else it must not exceed it.

    `limit`: the default threshold of a pool; None: the kind has no threshold. `ceiling`: the highest one that
    makes sense; None: the default. `uses`: other stages whose evidence it needs.
    """

    find: Find
    measured: str
    unit: str = ""
    limit: Callable[[Pool], float] | None = None
    source: str = ""
    ceiling: float | None = None
    least: bool = True
    per_collective: bool = False
    required: bool = True
    uses: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {}
"""STAGE.KIND -> its kind, stage by stage."""


def kind(name: str, *about: Any, **more: Any) -> Callable[[Find], Find]:
    """Register a kind STAGE.KIND; the other arguments are those of Kind after `find`."""

    def add(find: Find) -> Find:
        KINDS[name] = Kind(find, *about, **more)
        return find

    return add


def on_each(look: Look) -> Find:
    """A kind that looks at each worker. The worst counts: a problem, then a missing fact or report."""

    def find(asked: Question) -> Finding:
        reports, pool = asked.reports, asked.pool
        said = [(state, f"{name}: {what}") for name in reports for state, what in look(pool, reports[name])]
        said += [("unknown", f"{name}: no report") for name in pool.workers if name not in reports]
        for state in ("fail", "unknown"):
            if texts := [text for each, text in said if each == state]:
                return Finding(state, listed(texts, 8))
        good = Finding("pass", f"good on {counted(len(reports), 'node')}")
        return good if reports else Finding("unknown", "the pool has no workers")

    return find


def _also(report: Report, key: str) -> list[dict[str, str]]:
    """The devices that the script of accept has reported, all values as texts."""
    found = report.also.get(key)
    devices = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return [{name: "" if value is None else str(value) for name, value in each.items()} for each in devices]


def _twice(named: Mapping[str, Sequence[str]]) -> list[str]:
    """The names with a value that is there more than once."""
    counts = Counter(value for values in named.values() for value in values)
    return [name for name, values in named.items() if any(counts[value] > 1 for value in values)]


def _but(missing: Sequence[str]) -> str:
    return f"; not {listed(missing)}" if missing else ""


def _workers(pool: Pool) -> float:
    return len(pool.workers)


_ACCEPTED = "hosts.workers, without those in quarantine"


@kind("inventory.nodes", "nodes that answer, with machine id and boot id", "nodes", _workers, _ACCEPTED)
def _nodes(asked: Question) -> Finding:
    reports, found = asked.reports, asked.evidence.inventory
    if found is None:
        return Finding("unknown", "there is no inventory")
    names = [name for name, each in reports.items() if each.also.get("machine") and each.also.get("boot_id")]
    for key in ("machine", "boot_id"):
        if twice := _twice({name: [str(reports[name].also[key])] for name in names}):
            return Finding("fail", f"the same {key} on {listed(twice)}")
    silent = [name for name in asked.pool.workers if name not in names]
    why = _but([f"{name}: {found.failed.get(name, 'no report')}" for name in silent])
    return Finding("pass", f"{counted(len(names), 'node')}{why}", len(names))


Devices = Mapping[str, Sequence[Mapping[str, str]]]


def _unique(asked: Question, key: str, fields: Sequence[str], named: Devices) -> Finding:
    """The smallest number of devices of a node, all of which have FIELDS that no other of the cluster has."""
    found = asked.evidence.inventory
    silent = [name for name in asked.pool.workers if name not in asked.reports]
    if found is None or silent or not named:
        return Finding("unknown", f"no report of {listed(silent) or 'any node'}")
    for field in fields:
        lacking = [
            name for name, each in named.items() if any(one.get(field, "") in NO_VALUE for one in each)
        ]
        if lacking:
            return Finding("unknown", f"{field} is not known on {listed(lacking)}")
        all_ = {name: [one.get(field, "") for one in _also(each, key)] for name, each in found.hosts.items()}
        if twice := [name for name in _twice(all_) if name in named]:
            return Finding("fail", f"the same {field} twice, on {listed(twice)}")
    fewest = min(named, key=lambda name: len(named[name]))
    return Finding("pass", f"{len(named[fewest])} on {fewest}, the node with the fewest", len(named[fewest]))


@kind(
    "inventory.gpus", "GPUs with serial and UUID", "GPUs per node", lambda pool: pool.required.gpus,
    "pools.gpus",
)  # fmt: skip
def _gpus(asked: Question) -> Finding:
    named = {name: _also(report, "gpus") for name, report in asked.reports.items()}
    return _unique(asked, "gpus", ("uuid", "serial"), named)


@kind(
    "inventory.hcas", "rails at their rate, with GUID", "rails per node", lambda pool: pool.required.rails,
    "pools.rails",
)  # fmt: skip
def _hcas(asked: Question) -> Finding:
    named = {}
    for name, report in asked.reports.items():
        guids = {(each.get("name"), each.get("port")): each for each in _also(report, "hcas")}
        rails = choose(report.hcas, asked.pool.required).ports.values()
        named[name] = [guids.get((port.name, str(port.port)), {}) for port in rails]
    return _unique(asked, "hcas", ("guid",), named)


@kind("inventory.hardware", "GPUs, HCAs, Fabric Manager and GPUDirect RDMA as configured")
@on_each
def _hardware(pool: Pool, report: Report) -> Iterator[tuple[Outcome, str]]:
    for level, what, _ in check_hardware(pool.required, report):
        if level == "error":
            yield "fail", what


@kind("inventory.health", "no Xid, ECC error, remapped row, NVLink error, narrow PCIe link or port error")
@on_each
def _health(pool: Pool, report: Report) -> Iterator[tuple[Outcome, str]]:
    if unread := [key for key in COUNTERS if getattr(report.health, key, None) is None]:
        yield "unknown", f"not read: {', '.join(unread)}"
    for _, what, _ in () if unread else check_health(pool.required, report):
        yield "fail", what


@kind("inventory.ecc", "ECC is on for every GPU")
@on_each
def _ecc(pool: Pool, report: Report) -> Iterator[tuple[Outcome, str]]:
    modes = Counter(each.get("ecc") for each in _also(report, "gpus"))
    if modes["Disabled"]:
        yield "fail", f"ECC is off on {modes['Disabled']} of {modes.total()} GPUs"
    if {mode for mode, count in modes.items() if count} - {"Disabled"} != {"Enabled"}:
        yield "unknown", "the mode of ECC is not known"


@kind("inventory.nvlinks", "every NVLink is up, those of a GPU at one speed")
@on_each
def _nvlinks(pool: Pool, report: Report) -> Iterator[tuple[Outcome, str]]:
    gpus = _speeds(report)
    if len(gpus) != pool.required.gpus:
        yield "unknown", f"nvidia-smi nvlink -s tells of {len(gpus)} GPUs"
    for number, speeds in enumerate(gpus):
        if len({*speeds}) > 1 or "<inactive>" in speeds:
            kinds = ", ".join(f"{count} at {speed}" for speed, count in Counter(speeds).items())
            yield "fail", f"NVLinks of GPU {number}: {kinds} (GB/s)"


def _speeds(report: Report) -> list[list[str]]:
    """The speeds of the NVLinks of each GPU, as `nvidia-smi nvlink -s` prints them."""
    parts = re.split(r"^GPU \d+:", str(report.also.get("nvlinks")), flags=re.MULTILINE)[1:]
    return [LINK.findall(part) for part in parts]


@kind("inventory.same", "the same driver, VBIOS, HCA firmware and number of NVLinks on all nodes")
def _same(asked: Question) -> Finding:
    kinds: dict[str, dict[str, list[str]]] = {}
    lacking = [name for name in asked.pool.workers if name not in asked.reports]
    for name, report in asked.reports.items():
        rails = choose(report.hcas, asked.pool.required).ports.values()
        found = {
            "driver": {gpu.driver for gpu in report.gpus.list} if report.gpus else set(),
            "VBIOS": {str(each.get("vbios", "")) for each in _also(report, "gpus")},
            "NVLinks per GPU": {f"{len(each)}x" for each in _speeds(report)},
            **({"HCA firmware": {port.fw for port in rails}} if asked.pool.required.rails else {}),
        }
        lacking += [f"{name} ({key})" for key, values in found.items() if not values or values & NO_VALUE]
        for key, value in ((key, value) for key, values in found.items() for value in values - NO_VALUE):
            kinds.setdefault(key, {}).setdefault(value, []).append(name)
    for key, by_value in kinds.items():
        if len(by_value) > 1:
            texts = (f"{value} on {listed(names)}" for value, names in by_value.items())
            return Finding("fail", f"{key}: {'; '.join(texts)}")
    if lacking or not kinds:
        return Finding("unknown", f"not known of {listed(lacking) or 'any node'}")
    return Finding("pass", ", ".join(f"{key} {next(iter(values))}" for key, values in kinds.items()))


@kind("collectives.proof", "the first run of each collective passes every gate, transport included")
def _proof(asked: Question) -> Finding:
    log = asked.log("collectives")
    if missing := [name for name in RUNS if name not in log.busbw]:
        return Finding("unknown", f"no table of {listed(missing)}")
    good = f"all gates passed; transport {log.verdict.transport}, all_reduce {log.verdict.busbw_gbps} GB/s"
    return Finding(log.verdict.verdict, good if log.verdict.passed else listed(log.verdict.reasons, 2))


@kind("collectives.nodes", "nodes that took part", "nodes", _workers, _ACCEPTED)
def _took_part(asked: Question) -> Finding:
    log = asked.log("collectives")
    nodes = {*log.record.nodes}
    if log.verdict.nodes != len(nodes):
        return Finding("unknown", f"the log is of {log.verdict.nodes} nodes, its job had {len(nodes)}")
    out = [name for name in asked.pool.workers if name not in nodes]
    return Finding("pass", f"{counted(len(nodes), 'node')}{_but(out)}", len(nodes))


@kind("collectives.diagnostics", "NCCL's own diagnostics (NCCL 2.31 and newer)", required=False)
def _diagnostics(asked: Question) -> Finding:
    found = asked.log("collectives").verdict
    if bad := [each.evidence for each in found.diagnoses if each.name == "nccl-diagnostics"]:
        return Finding("fail", listed(bad))
    if any(each.name == "nccl-diagnostics-passed" for each in found.diagnoses):
        return Finding("pass", "NCCL's diagnostics passed")
    known = release(found.nccl_version or "")
    if known is None or known.release[:2] >= DIAGNOSTICS:
        return Finding("unknown", f"NCCL {found.nccl_version} printed no `NCCL DIAG`")
    return Finding("not run", f"NCCL {found.nccl_version} has no diagnostics, NCCL 2.31 and newer have")


@kind("repeats.log", "the repeated runs are whole, and their data is correct")
def _repeats(asked: Question) -> Finding:
    log = asked.log("repeats")
    checks = {each.name: each for each in log.verdict.checks if each.name not in OF_ONE_RUN}
    if failed := [f"{each.name}: {each.reason}" for each in checks.values() if each.status == "fail"]:
        return Finding("fail", listed(failed, 2))
    if open_ := [name for name in OF_REPEATS if name not in checks or checks[name].status != "pass"]:
        return Finding("unknown", f"gates without their evidence: {', '.join(open_)}")
    if few := [name for name, runs in RUNS.items() if len(log.busbw.get(name, [])) != runs - 1]:
        return Finding("unknown", f"other than the planned number of runs: {', '.join(few)}")
    return Finding("pass", f"{sum(map(len, log.busbw.values()))} runs, whole and correct")


def _values(asked: Question) -> list[float]:
    """busbw of all runs of the row's collective, in GB/s. Raises Untrusted where there are not as many."""
    first, more, (_, _, name, _) = asked.log("collectives"), asked.log("repeats"), asked.row.parts
    if first.record.nodes != more.record.nodes:
        raise Untrusted("the repeats ran on other nodes than the first run")
    found = [*first.busbw.get(name, []), *more.busbw.get(name, [])]
    if len(found) != RUNS[name] or median(found) <= 0:
        raise Untrusted(f"{len(found)} runs with a bandwidth, expected {RUNS[name]}")
    return found


@kind(
    "repeats.busbw", "median busbw of all runs", "% of the expected busbw",
    lambda pool: round(100 * (1 - pool.tolerance), 3), "validation.tolerance", 100, per_collective=True,
    uses=("collectives",),
)  # fmt: skip
def _busbw(asked: Question) -> Finding:
    found = _values(asked)
    known = asked.log("collectives").verdict.collectives.get(asked.row.parts[2])
    expected, middle = known.expected_gbps if known else None, median(found)
    text = f"median of {len(found)} runs {middle:g} GB/s"
    if known is None or not expected:
        return Finding("unknown", f"{text}; no expected value exists")
    if known.ceiling_gbps and max(found) > known.ceiling_gbps:
        above = f"{max(found):g} GB/s is above the ceiling of {known.ceiling_gbps:g}"
        return Finding("fail", f"{above}: not credible")
    share = 100 * middle / expected
    return Finding("pass", f"{text}, {share:.1f} % of {expected:g}", round(share, 2))


@kind(
    "repeats.spread", "highest minus lowest busbw of all runs", "% of the median",
    lambda pool: SPREAD_PERCENT, "a healthy rack: 0.05 % (NVIDIA/aicr#2573)", 100, least=False,
    per_collective=True, uses=("collectives",),
)  # fmt: skip
def _spread(asked: Question) -> Finding:
    found = _values(asked)
    value = round(100 * (max(found) - min(found)) / median(found), 2)
    return Finding("pass", f"{min(found):g} to {max(found):g} GB/s in {len(found)} runs, {value:g} %", value)
