"""The soak: hours of load in jobs that outlive this process, while each host writes samples."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from statistics import NormalDist, median, pstdev
from typing import Any

from pydantic import AwareDatetime

from busbar.exits import Misuse
from busbar.fabric.localise.groups import GOOD
from busbar.fabric.measure import CannotMeasure
from busbar.fabric.measure.run import find
from busbar.judge.nccl.log.records import Run, amount
from busbar.judge.nccl.report.svg import Dot
from busbar.preflight.health_checks import NEVER, SATURATED, SYMBOL_ERRORS_PER_HOUR
from busbar.text import counted, listed
from busbar.zstd import ZstdFile
from stacks.accept.package import evidence as kept
from stacks.accept.package.evidence import SEGMENT, SOAK, Evidence, Judged, OfRun, Untrusted, time_of
from stacks.accept.package.kinds import Finding, Question, but, kind, sentences
from stacks.accept.package.running import START_SECONDS, Planned, Running, keep_logs, now
from stacks.accept.package.site import validation_of
from stacks.accept.package.subjects.collectives import RUN_SECONDS, not_whole
from stacks.accept.package.subjects.nodes import by_node

# An interval is one run of nccl-tests with as many iterations as fill this time.
INTERVAL_SECONDS, SAMPLE_SECONDS = 300, 30
# A run of low intervals is named if chance gives it in less than one of so many soaks. With a spread that
# needs longer runs than MOST_LOW, a wobble of half an hour may pass.
SOAKS, LEAST_LOW, MOST_LOW = 1000, 2, 5
# Fewer intervals do not show their spread.
LEAST_INTERVALS = 10
# A sampler's file has room for fewer changes, and a line of it for 100 Xids.
MOST_EVENTS, MAX_SAMPLE = 100_000, 256 << 10
SAMPLES = ".samples.zst"
# Part of a GPU's sample -> its place.
_OF_GPUS = {"ecc": 1, "throttling": 2}
# Bits of NVML: slowdown by hardware, by software for heat, by hardware for heat, and by the power brake.
THROTTLED = {0x08: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat", 0x80: "power brake"}


class Segment(OfRun):
    """A job of a soak, written before it begins. `ended`: by the cluster's clock, once it has.

    `failed`: how an interval has ended; the job was removed then, and its log is not kept.
    """

    nodes: tuple[str, ...]
    runs: int
    iterations: int
    ended: AwareDatetime | None = None
    failed: str = ""


@dataclass(frozen=True)
class Interval:
    """One run. `at`: its begin (epoch). `seconds`: of load, in `span` seconds of wall time."""

    at: float
    span: float
    seconds: float
    busbw: float


@dataclass(frozen=True)
class Event:
    """A change in the samples of a node. `kind`: the row that it belongs to. `key`: what has changed."""

    at: int
    kind: str
    key: str
    text: str
    amount: int = 1


@dataclass
class Watched:
    """The samples of a node. `unread`: by the last one. `clocks`: MHz of the slowest GPU -> how often."""

    times: array[int] = field(default_factory=lambda: array("q"))
    events: list[Event] = field(default_factory=list)
    clocks: Counter[int] = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Soak:
    """The evidence of the soak of a pool. All that read it raise Untrusted."""

    evidence: Evidence
    pool: str

    @cached_property
    def segments(self) -> list[tuple[Segment | None, Judged | None]]:
        """The jobs in order, each with its log; None for a log that is not complete."""
        where, parts = f"{SOAK}/{self.pool}", self.evidence.parts(SOAK, self.pool)
        if parts != [f"{number:03}" for number in range(len(parts))]:
            raise Untrusted(f"{where} has the segments {', '.join(parts)[:80]}, expected 000 and on")
        read, judged = self.evidence.read, self.evidence.judged
        return [(read(Segment, f"{where}/{part}/{SEGMENT}"), judged(SOAK, self.pool, part)) for part in parts]

    @cached_property
    def intervals(self) -> list[Interval]:
        """The intervals in order of time: those of a segment share its time evenly."""
        found, stage = list[Interval](), self.evidence.stage(SOAK)
        for index, (segment, log) in enumerate(self.segments):
            runs = log.runs.get("all_reduce") if log else None
            if not (log and runs and segment and segment.ended):
                continue
            where, loads = f"{SOAK}/{self.pool}/{index:03}", [load_of(run) for run in runs]
            began, ended = time_of(log.record.measured_at or ""), segment.ended.timestamp()
            # The times of the cluster are whole seconds.
            if sum(loads) > ended - began + 2:
                raise Untrusted(f"{where} has {sum(loads):.0f} s of load in {ended - began:.0f} s")
            if not stage or ended > stage.limits[1]:
                raise Untrusted(f"{where} ended at {segment.ended}, not in its stage")
            if found and began < found[-1].at + found[-1].span - 2:
                raise Untrusted(f"{where} began before the end of the segment before it")
            span = (ended - began) / len(runs)
            found += [
                Interval(began + place * span, span, load, busbw)
                for place, (load, busbw) in enumerate(zip(loads, log.busbw("all_reduce"), strict=True))
            ]
        return found

    @cached_property
    def watched(self) -> dict[str, Watched]:
        """The samples by node; without a node that has none."""
        found = dict[str, Watched]()
        for path in sorted((self.evidence.folder / SOAK / self.pool).glob("*")):
            name, where = path.name.removesuffix(SAMPLES), f"{SOAK}/{self.pool}/{path.name}"
            if path.is_dir():
                continue
            if name == path.name or name not in self.evidence.begun.site.pools[self.pool].workers:
                raise Untrusted(f"{where} is not of a worker of the pool")
            with kept.judging(where), ZstdFile(path) as file:
                lines = iter(partial(file.readline, MAX_SAMPLE), b"")
                found[name] = watch(self._samples(lines, where, name))
        return found

    def _samples(self, lines: Iterable[bytes], where: str, node: str) -> Iterator[dict[str, Any]]:
        stage, report = self.evidence.stage(SOAK), self.evidence.inventory.hosts.get(node)
        first, last = stage.limits if stage else (0, 0)
        for number, line in enumerate(lines):
            sample: dict[str, Any] = json.loads(line)
            if number == 0 or "run" in sample:
                whose, wanted = (sample.get("run"), sample.get("node")), (self.evidence.begun.run, node)
                if whose != wanted:
                    raise Untrusted(f"{where} is of {whose!r}, expected {wanted!r}")
                if report and report.machine != sample["machine"]:
                    raise Untrusted(f"{where} is of another machine than the inventory's {node}")
            if not first <= sample["t"] <= last:
                raise Untrusted(f"{where} has a sample of {sample['t']!r}, not in its stage")
            yield sample

    def events(self, begin: float = 0, end: float = float("inf"), of: str = "") -> list[str]:
        """The events of all nodes in this time, as texts; of the kind OF, or of all."""
        found = [
            (each.at, f"{name}: {each.text} at {_at(each.at)}")
            for name, node in self.watched.items()
            for each in node.events
            if begin <= each.at <= end and (each.kind == of if of else each.kind != "saturated")
        ]
        return [text for _, text in sorted(found)]


soak_of = lru_cache(maxsize=4)(Soak)


def _soak_of(asked: Question) -> Soak:
    return soak_of(asked.evidence, asked.name)


def load_of(run: Run) -> float:
    """The seconds of load of a run: its iterations at each size."""
    iterations = run.preamble.banner.iterations if run.preamble.banner else None
    return (iterations or 0) * sum(amount(each.time) for each in run.measurements) / 1e6


def spread(values: Sequence[float]) -> float:
    """The deviation of an interval by the median, without those that are low or high for a reason."""
    middle = median(values)
    usual = 3 * 1.4826 * median(abs(value - middle) for value in values)
    kept = [value for value in values if abs(value - middle) <= usual]
    # Few values show less than their spread.
    return pstdev(kept) / middle * (1 + 3 / len(values))


def low_run(count: int, deviation: float, low: float) -> int:
    """How many intervals in a row must be lower than LOW (a share of the median) to be named; 0: too many."""
    chance = NormalDist().cdf(-low / deviation) if deviation else 0.0
    runs = range(LEAST_LOW, MOST_LOW + 1)
    return next((length for length in runs if count * chance**length * SOAKS < 1), 0)


def wobble(values: Sequence[float], length: int) -> tuple[float, int]:
    """The loss of the lowest run of LENGTH intervals, of which each is as low, and where it begins."""
    middle = median(values)
    tops = [max(values[first : first + length]) for first in range(len(values) - length + 1)]
    worst = min(range(len(tops)), key=tops.__getitem__)
    return max(1 - tops[worst] / middle, 0.0), worst


def drift(values: Sequence[float]) -> tuple[float, float]:
    """The loss from begin to end, by the medians of the outer thirds, and three deviations of it."""
    third, middle = len(values) // 3, median(values)
    loss = (median(values[:third]) - median(values[-third:])) / middle * 1.5
    flat = [value + loss * middle * place / len(values) for place, value in enumerate(values)]
    return loss, 3 * 1.5 * 1.2533 * spread(flat) * (2 / third) ** 0.5


def covered(intervals: Sequence[Interval], watched: Mapping[str, Watched]) -> float:
    """Seconds of load for which each node has at least half of its samples."""
    total = 0.0
    for each in intervals:
        least = max(1, int(each.span / SAMPLE_SECONDS / 2))
        times = (node.times for node in watched.values())
        if all(bisect_left(t, each.at + each.span) - bisect_left(t, each.at) >= least for t in times):
            total += each.seconds
    return total


def worst_hour(events: Iterable[Event]) -> tuple[int, str]:
    """The most that a counter has grown in an hour, and which one; 0 without events."""
    by_key: dict[str, list[Event]] = {}
    for each in events:
        if each.kind == "counters":
            by_key.setdefault(each.key, []).append(each)
    worst = (0, "")
    for key, found in by_key.items():
        times, totals = [each.at for each in found], [0, *accumulate(each.amount for each in found)]
        sums = (total - totals[bisect(times, at - 3600)] for at, total in zip(times, totals[1:], strict=True))
        worst = max(worst, (max(sums), key))
    return worst


def watch(samples: Iterable[Mapping[str, Any]]) -> Watched:
    """The findings in the samples of a node. A sample has only changes; a value of null was not read."""
    found, state, clock = Watched(), dict[str, Any](), 0
    for sample in samples:
        at = sample["t"]
        if not isinstance(at, int) or (found.times and at < found.times[-1]):
            raise ValueError("the times of samples are not in order")
        found.times.append(at)
        if "boot" in sample and state.get("boot") not in (None, sample["boot"]):
            found.events.append(Event(at, "reboots", "boot", "rebooted"))
            state = {}  # its counters began again
        for key, value in sample.items():
            if value is not None:
                found.events += (Event(at, *each) for each in _changes(key, value, state.get(key)))
                state[key] = value
            dark = {key: value is None}
            if key == "gpus":
                dark |= {part: any(gpu[at] is None for gpu in value or ()) for part, at in _OF_GPUS.items()}
            found.unread = (found.unread | {*dark}) - {part for part in dark if not dark[part]}
        clock = int((sample["heat"] or (0, 0))[1]) if "heat" in sample else clock
        found.clocks[clock] += 1
        if len(found.events) > MOST_EVENTS:
            raise ValueError("too many changes")
    return found


def _changes(key: str, now: Any, before: Any) -> Iterator[tuple[Any, ...]]:
    """The fields of an Event after its time, of each change of a value."""
    if key == "k3s" and before not in (None, now):
        yield "reboots", "k3s", "K3s restarted"
    elif key == "ports":
        yield from _ports(now, before)
    elif key == "gpus":
        yield from _gpus(now, before)
    elif key in ("xids", "nvlink") and before is not None:
        old, new = (text.splitlines() if isinstance(text, str) else text for text in (before, now))
        what = "NVLink errors: " if key == "nvlink" else ""
        for line in sorted({*new} - {*old}):
            yield "gpus", str(line)[:120], f"{what}{str(line).strip()[:200]}"


def _ports(now: Any, before: Any) -> Iterator[tuple[Any, ...]]:
    """Counters that are not 0, as preflight reports them. One that is lower than before was cleared."""
    former = {(each["hca"], each["port"], each["counter"]): int(each["value"]) for each in before or ()}
    for each in now:
        counter, value = str(each["counter"]), int(each["value"])
        key = f"{counter} of {each['hca']} port {each['port']}"[:120]
        old = former.get((each["hca"], each["port"], counter), 0)
        grown = value - old if value >= old else value
        if before is None and value == SATURATED.get(counter):
            yield "saturated", key, f"{key} is {value}, its maximum"
        elif before is not None and grown:
            kind = "links" if counter == "link_downed" or counter in NEVER else "counters"
            yield kind, key, f"{key} grew by {grown}", grown


def _gpus(now: Any, before: Any) -> Iterator[tuple[Any, ...]]:
    """[PCI address, uncorrected ECC errors, bits of reasons for throttling], each null where unread."""
    former = {bus: (errors, bits) for bus, errors, bits in before or ()}
    for bus in former.keys() - {bus for bus, _, _ in now}:
        yield "gpus", f"gone {bus}", f"GPU {bus} is not listed any more"
    for bus, errors, bits in now:
        old_errors, old_bits = former.get(bus, (None, 0))
        if old_errors is not None and errors is not None and int(errors) > int(old_errors):
            yield "gpus", f"ecc {bus}", f"GPU {bus} has {int(errors)} uncorrected ECC errors"
        for bit, reason in THROTTLED.items():
            if int(bits or 0) & bit & ~int(old_bits or 0):
                yield "throttling", f"{bus} {reason}", f"GPU {bus} is throttled: {reason}"


# A wobble of 5 % is searched for at half of it: a threshold on the fault finds half of them. An interval that
# is as low as LOWEST_PERCENT counts alone.
LOW_PERCENT, LOWEST_PERCENT, DRIFT_PERCENT, CLOCK_PERCENT = 2.5, 10.0, 2.0, 5.0
_SHOWN, MOST_DOTS = 6, 500


_row = partial(kind, when=lambda pool: pool.soak_hours > 0, uses=("collectives",))
_below = partial(_row, least=False)


@_row("soak.load", "each job of the soak is whole, its data is correct, and all planned intervals ran")
def _load(asked: Question) -> Finding:
    jobs, nodes = _soak_of(asked).segments, list[set[str]]()
    for number, (segment, log) in enumerate(jobs, 1):
        job = f"job {number} of {len(jobs)}"
        if segment and segment.failed:
            return Finding("fail", f"job {number}: {segment.failed}")
        if log is None or segment is None or not segment.ended:
            return Finding("unknown", f"{job} has no complete log")
        if bad := not_whole(log):
            return Finding(bad.result, f"{job}: {bad.reason}")
        ran = len(log.busbw("all_reduce"))
        if ran != segment.runs or log.record.nodes != segment.nodes:
            return Finding("fail", f"job {number}: {ran} of {segment.runs} intervals")
        nodes.append({*log.record.nodes})
    fewest = counted(min(map(len, nodes), default=0), "node")
    out = [name for name in asked.pool.workers if any(name not in each for each in nodes)]
    if not jobs or out:
        return Finding("unknown", f"{fewest} in every job{but(out)}")
    return Finding("pass", f"{counted(len(jobs), 'job')} on {fewest}")


@_row("soak.hours", "load for which every node has samples", "h", lambda pool: pool.soak_hours, "--soak")
def _hours(asked: Question) -> Finding:
    intervals = _soak_of(asked).intervals
    hours = round(covered(intervals, _watched(asked)) / 3600, 6)
    load = f"{sum(each.seconds for each in intervals) / 3600:.4g} h in {counted(len(intervals), 'interval')}"
    is_enough = hours >= (asked.row.threshold or 0)
    return Finding("pass" if is_enough else "unknown", f"{hours:g} h with samples, of {load}", hours)


@_below(
    "soak.wobble", "lowest run of low intervals, longer than by chance, or one that is 10 % low",
    "% below the median", lambda pool: LOW_PERCENT, "half of 5 %: a threshold on the fault misses half",
)  # fmt: skip
def _wobble(asked: Question) -> Finding:
    intervals, deviation = _series(asked)
    values = [each.busbw for each in intervals]
    low = (asked.row.threshold or LOW_PERCENT) / 100
    length = low_run(len(values), deviation, low)
    if not length:
        return Finding("unknown", f"the spread of {deviation:.2%} is too wide to see a wobble")
    loss, first = wobble(values, length)
    lowest = 1 - min(values) / median(values)
    if lowest > LOWEST_PERCENT / 100:
        loss, first, length = lowest, values.index(min(values)), 1
    worst, last = intervals[first], intervals[first + length - 1]
    text = f"{loss:.1%} in {counted(length, 'interval')} from {_at(worst.at)}, at a spread of {deviation:.2%}"
    if loss > low and (seen := _soak_of(asked).events(worst.at, last.at + last.span)):
        text += f"; meanwhile {sentences(seen, 2)}"
    return Finding("pass", text, round(100 * loss, 2))


@_below(
    "soak.drift", "loss of busbw from the begin to the end", "%", lambda pool: DRIFT_PERCENT,
    "a healthy rack: 0.05 % in three runs (NVIDIA/aicr#2573)",
)  # fmt: skip
def _drift(asked: Question) -> Finding:
    intervals, _ = _series(asked)
    loss, noise = drift([each.busbw for each in intervals])
    if noise > (asked.row.threshold or DRIFT_PERCENT) / 100:
        return Finding("unknown", f"{len(intervals)} intervals show a drift of more than {noise:.2%} only")
    return Finding("pass", f"{loss:.2%} from the first to the last third", round(max(100 * loss, 0), 2))


def _of_samples(name: str, measured: str, keys: Sequence[str]) -> None:
    """A row that fails by the events of its name, and is unknown while a node has not read these keys."""

    @_row(f"soak.{name}", measured)
    def _find(asked: Question) -> Finding:
        watched = _watched(asked)
        if seen := _soak_of(asked).events(of=name):
            return Finding("fail", sentences(seen, _SHOWN))
        _watched(asked, *keys)
        full = [each.text for node in watched.values() for each in node.events if each.kind == "saturated"]
        if full and name == "links":
            return Finding("unknown", f"{sentences(full)}. Fix: clear it with perfquery -R, and run again")
        return Finding("pass", f"nothing in the samples of {counted(len(watched), 'node')}")


_of_samples("links", "no link goes down, also for a moment, and no port loses its integrity", ["ports"])
_of_samples("gpus", "no new Xid, uncorrected ECC error or NVLink error", ["xids", "nvlink", "ecc", "gpus"])
_of_samples("throttling", "no GPU is throttled by heat or power brake", ["throttling", "gpus"])
_of_samples("reboots", "no node reboots, and K3s does not restart", ["boot", "k3s"])


@_below(
    "soak.counters", "growth of an error counter of a port in its worst hour", "per hour",
    lambda pool: SYMBOL_ERRORS_PER_HOUR, "NVSentinel: fatal for symbol errors",
)  # fmt: skip
def _counters(asked: Question) -> Finding:
    grown = {name: worst_hour(node.events) for name, node in _watched(asked, "ports").items()}
    name = max(grown, key=lambda each: grown[each][0])
    most, key = grown[name]
    return Finding("pass", f"{name}: {key} grew by {most} in an hour" if most else "no counter grew", most)


@_below(
    "soak.slowest", "SM clock of the slowest node below that of the others", "%", lambda pool: CLOCK_PERCENT,
    "a wobble of 5 % is a fault", nodes=2,
)  # fmt: skip
def _slowest(asked: Question) -> Finding:
    clocks = {name: median(node.clocks.elements()) for name, node in _watched(asked, "heat").items()}
    if dark := [name for name, clock in clocks.items() if clock <= 0]:
        return Finding("unknown", f"the clocks of GPUs could not be read on {listed(dark)}")
    if len(clocks) < 2:
        return Finding("unknown", "no second node to compare with")
    name = min(clocks, key=lambda each: clocks[each])
    others = median(clock for each, clock in clocks.items() if each != name)
    loss = round(max(100 * (1 - clocks[name] / others), 0), 2)
    return Finding("pass", f"{name}: {clocks[name]:g} MHz, the others {others:g}", loss)


@_below(
    "after.nodes", "loss of a node against before the soak, alone and in pairs", "%",
    lambda pool: round(100 * (1 - GOOD), 1), "the rule for a slow node", uses=("nvlink", "pairs"),
    required=lambda pool: "in_group" in pool.group_gbps, nodes=2,
)  # fmt: skip
def _after(asked: Question) -> Finding:
    before, after = by_node(asked, "nvlink", "pairs"), by_node(asked, "after")
    known = [key for key in before if before[key] and key in after]
    lost = {key: round(100 * (1 - after[key] / before[key]), 2) for key in known}
    gone = {name for name, how in before.keys() - after.keys() if how == "alone"}
    if silent := [name for name in asked.pool.workers if name in gone or (name, "pairs") not in lost]:
        return Finding("unknown", f"no runs of {listed(silent, _SHOWN)} before and after")
    (name, how), most = max(lost.items(), key=lambda each: (each[1], each[0]))
    text = f"{name} {how}: {after[name, how]:g} GB/s, {before[name, how]:g} before"
    bad = {node for (node, _), loss in lost.items() if loss > (asked.row.threshold or 0)}
    return Finding("pass", text, max(most, 0), sorted(bad))


def dots(evidence: Evidence, pool: str) -> list[Dot]:
    """The intervals for the page: low ones, those with a change, and MOST_DOTS others. Raises Untrusted."""
    soak, made = soak_of(evidence, pool), list[Dot]()
    middle = median([each.busbw for each in soak.intervals] or [0])
    low, step = middle * (1 - LOW_PERCENT / 100), len(soak.intervals) // MOST_DOTS + 1
    changes = sorted(event.at for node in soak.watched.values() for event in node.events)
    for place, each in enumerate(soak.intervals):
        happened = bisect(changes, each.at) < bisect(changes, each.at + each.span)
        if each.busbw < low or happened or place % step == 0:
            at, text = datetime.fromtimestamp(each.at, UTC), f"{each.seconds:.0f} s of load"
            made.append(Dot(at, each.busbw, each.busbw < low, text, middle, low, happened))
    return made


def _series(asked: Question) -> tuple[list[Interval], float]:
    """The intervals and their spread. Raises Untrusted where they are too few."""
    found = _soak_of(asked).intervals
    if len(found) < LEAST_INTERVALS or min(each.busbw for each in found) <= 0:
        raise Untrusted(f"{counted(len(found), 'interval')}, at least {LEAST_INTERVALS} are needed")
    return found, spread([each.busbw for each in found])


def _watched(asked: Question, *keys: str) -> dict[str, Watched]:
    """The samples of all workers. Raises Untrusted where one has none, or has not read KEYS in the end."""
    found = _soak_of(asked).watched
    if silent := [name for name in asked.pool.workers if name not in found or not found[name].times]:
        raise Untrusted(f"no samples of {listed(silent)}")
    if dark := [name for name, node in found.items() if node.unread & {*keys}]:
        raise Untrusted(f"{', '.join(keys)} could not be read on {listed(dark)}")
    return found


def _at(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%m-%d %H:%M:%S}"


LEAST_HOURS, MOST_HOURS = 1, 168
# kubelet serves only the current file of a log, of 10 MiB. A run prints 92 bytes per rank, and its table.
LOG_BYTES, RANK_BYTES, RUN_BYTES, SEGMENT_SECONDS = 8 << 20, 92, 4096, 12 * 3600
FAILED = re.compile(r"^\w+ ended with exit code [1-9]")
SCRIPT_SECONDS, MOST_BYTES = 60, 16 << 20


def hours_of(text: str) -> float:
    """The length of a soak, from a text such as 72h. Raises Misuse."""
    if not re.fullmatch(r"[0-9]+h", text) or not LEAST_HOURS <= int(text[:-1]) <= MOST_HOURS:
        raise Misuse(f"--soak {text}: expected {LEAST_HOURS}h to {MOST_HOURS}h, such as 72h")
    return float(text[:-1])


def runs_of(ranks: int, seconds: float) -> int:
    """How many intervals the next job has, for SECONDS of load."""
    of_log = LOG_BYTES // (RANK_BYTES * ranks + RUN_BYTES)
    wanted = -(-seconds // INTERVAL_SECONDS)
    return int(max(min(wanted, of_log, SEGMENT_SECONDS // INTERVAL_SECONDS), 1))


def soak_all(on: Running) -> dict[str, str]:
    """Soak pool after pool, from where an earlier call has ended. Raises NoVerdict."""
    notes, before = dict[str, str](), Evidence(on.folder)
    for pool in on.pools:
        first = before.judged("collectives", pool)
        if first and (runs := first.runs.get("all_reduce")):
            seconds = sum(amount(each.time) for each in runs[0].largest_row.measurements) / 1e6
            _soak(on, pool, max(round(INTERVAL_SECONDS / max(seconds, 1e-6)), 1))
        else:
            notes[pool] = "the stage collectives has no complete all_reduce of this pool"
    return notes


def _soak(on: Running, pool: str, iterations: int) -> None:
    wanted, evidence = on.pools[pool], Evidence(on.folder)
    asked = 3600 * wanted.soak_hours
    while True:
        evidence.running = kept.Stage(run=on.begun.run, stage=SOAK, began=on.begun.began, ended=now())
        soak = Soak(evidence, pool)
        try:
            jobs, intervals, watched = soak.segments, soak.intervals, soak.watched
        except Untrusted as error:
            on.say(f"warning: {error}")
            break
        load = sum(each.seconds for each in intervals)
        left = asked - (covered(intervals, watched) if watched else load)
        on.say(f"pool {pool}: {load / 3600:.3g} of {asked / 3600:g} h of load")
        # The last job may not have ended. One that has failed is the end of the soak.
        last = jobs[-1][0] if jobs else None
        ended = jobs[:-1] if last and not last.ended else jobs
        has_failed = any(not (log and log.record.outcome.succeeded) for _, log in ended)
        if has_failed or left <= 0 or load > 1.1 * asked + INTERVAL_SECONDS:
            break
        segment = last if last and not last.ended else None
        if segment is None:
            runs = runs_of(len(wanted.workers) * wanted.required.gpus, left)
            segment = Segment(run=on.begun.run, nodes=(), runs=runs, iterations=iterations)
        limit = round(START_SECONDS + segment.runs * (1.5 * INTERVAL_SECONDS + RUN_SECONDS))
        _sample(on, pool, "start", LIMIT_SECONDS=str(2 * limit), SAMPLE_SECONDS=str(SAMPLE_SECONDS))
        _run(on, pool, f"{len(ended):03}", segment, limit)
        for name, facts in _sample(on, pool, "fetch").items():
            # The files that were fetched before are kept for a host that is not responding.
            if text := kept.unpacked(facts["samples"], MOST_BYTES):
                kept.write_packed(on.at(SOAK) / pool / f"{name}{SAMPLES}", text)
    # A process that was killed after the end of a job has left it.
    on.clean_up(on.begun.job(SOAK, pool))
    _sample(on, pool, "stop")


def _run(on: Running, pool: str, part: str, segment: Segment, limit: int) -> None:
    """Run a job, or follow the one that an earlier call has left, and keep its log."""
    folder, job = on.at(SOAK) / pool / part, on.begun.job(SOAK, pool, part)
    own = on.cluster.validation_of(pool)
    made = validation_of(own, ["all_reduce"] * segment.runs, NCCL_DEBUG="WARN", NCCL_RUN_DIAGNOSTICS="1")
    size = {"min_bytes": own.max_bytes, "iterations": segment.iterations, "deadline_seconds": limit}
    begun_on = segment.nodes if any(each.run == job for each in find(on.api)) else ()
    planned = on.plan(pool, job, made.model_copy(update=size), begun_on=begun_on)
    failed: list[str] = []

    def note(**values: Any) -> None:
        kept.write_json(folder / SEGMENT, segment.model_copy(update={"nodes": planned.job.nodes, **values}))

    def note_end(_: object) -> None:
        path, manifest = planned.objects({})[-1]
        status = on.api.get(f"{path}/{manifest['metadata']['name']}").get("status") or {}
        conditions = [each.get("lastTransitionTime") or "" for each in status.get("conditions") or ()]
        ended = status.get("completionTime") or max(conditions, default="") or now()
        note(ended=datetime.fromisoformat(ended))

    def say(text: str) -> None:
        on.say(text)
        # Without a node each further interval would wait for it until its logins time out.
        if FAILED.search(text):
            failed.append(text)
            raise CannotMeasure(failed)

    note()
    try:
        on.measure(planned, folder, say, keep=note_end, outlives=True)
    except CannotMeasure:
        if not failed:
            raise
        note(ended=datetime.fromisoformat(now()), failed=failed[0])
        keep_logs(folder)


def _sample(on: Running, pool: str, verb: str, **values: str) -> dict[str, dict[str, Any]]:
    """Run the sampler's script on the workers of a pool. Returns the facts of those that have run it."""
    names, values = on.pools[pool].workers, {"RUN": on.begun.run, **values}
    found = on.on_hosts(names, verb, SCRIPT_SECONDS, script="soak", **values)
    if found.failed:
        on.say(f"warning: sampler: {verb}: {sentences([*found.failed.values()], 3)}")
    return found.hosts


STAGE = Planned(SOAK, soak_all, True, lambda nodes: START_SECONDS, continues=True, logs_in=True)
