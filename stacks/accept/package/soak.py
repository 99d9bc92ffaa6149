"""Hours of load and samples of the hosts: how they are read from the evidence, and what they show."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from statistics import NormalDist, median, pstdev
from typing import Any

from busbar.preflight.health_checks import NEVER, SATURATED
from busbar.zstd import ZstdFile
from stacks.accept.package.evidence import (
    SEGMENT,
    SKEW_SECONDS,
    SOAK,
    Evidence,
    Judged,
    OfRun,
    Untrusted,
    time_of,
)

# An interval is one run of nccl-tests with as many iterations as fill this time.
INTERVAL_SECONDS = 300
SAMPLE_SECONDS = 30
# A run of low intervals is named if chance gives it in less than one of so many soaks. With a spread that
# needs longer runs than MOST_LOW, a wobble of half an hour may pass.
SOAKS, LEAST_LOW, MOST_LOW = 1000, 2, 5
# Fewer intervals do not show their spread.
LEAST_INTERVALS = 10
# A sampler's file has room for fewer changes, and a line of it for 100 Xids.
MOST_EVENTS, MAX_SAMPLE = 100_000, 256 << 10
SAMPLES = ".samples.zst"
# Bits of NVML: slowdown by hardware, by software for heat, by hardware for heat, and by the power brake.
THROTTLED = {0x08: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat", 0x80: "power brake"}


class Segment(OfRun):
    """A job of a soak, written before it begins. `ended`: by the cluster's clock; empty until then.

    `failed`: how an interval has ended; the job was removed then, and its log is not kept.
    """

    nodes: tuple[str, ...]
    runs: int
    iterations: int
    ended: str = ""
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
    """The samples of a node. `unread`: what the last one could not read.

    `clocks`: MHz, the lowest of all GPUs -> number of samples.
    """

    times: array[int] = field(default_factory=lambda: array("q"))
    events: list[Event] = field(default_factory=list)
    clocks: Counter[int] = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)


def segments(evidence: Evidence, pool: str) -> list[tuple[Segment | None, Judged | None]]:
    """The jobs of a pool, in order, each with its log; None for a log that is not complete.

    Raises Untrusted, as all that read the evidence.
    """
    parts = evidence.parts(SOAK, pool)
    if parts != [f"{number:03}" for number in range(len(parts))]:
        raise Untrusted(f"{SOAK}/{pool} has the segments {', '.join(parts)[:80]}, expected 000 and on")
    files = (f"{SOAK}/{pool}/{part}/{SEGMENT}" for part in parts)
    return [
        (evidence.read(Segment, file), evidence.judged(SOAK, pool, part))
        for file, part in zip(files, parts, strict=True)
    ]


def intervals(evidence: Evidence, pool: str) -> list[Interval]:
    """The intervals of a pool in order of time: those of a segment share its time evenly."""
    found: list[Interval] = []
    for index, (segment, log) in enumerate(segments(evidence, pool)):
        if log is None or segment is None or not segment.ended or "all_reduce" not in log.busbw:
            continue
        where, stage = f"{SOAK}/{pool}/{index:03}", evidence.stage(SOAK)
        try:
            texts = (log.record.measured_at or "", segment.ended, stage.ended if stage else "")
            began, ended, latest = (time_of(text) for text in texts)
        except ValueError:
            raise Untrusted(f"{where} ended at {segment.ended!r}, not a time in its stage") from None
        loads = [seconds for _, seconds in log.seconds["all_reduce"]]
        span = (ended - began) / len(loads)
        # The times of the cluster are whole seconds.
        if sum(loads) > ended - began + 2:
            raise Untrusted(f"{where} has {sum(loads):.0f} s of load in {ended - began:.0f} s")
        if ended > latest + SKEW_SECONDS:
            raise Untrusted(f"{where} ended at {segment.ended!r}, not a time in its stage")
        if found and began < found[-1].at + found[-1].span - 2:
            raise Untrusted(f"{where} began before the end of the segment before it")
        found += [
            Interval(began + place * span, span, seconds, busbw)
            for place, (seconds, busbw) in enumerate(zip(loads, log.busbw["all_reduce"], strict=True))
        ]
    return found


@lru_cache(maxsize=4)
def watched(evidence: Evidence, pool: str) -> dict[str, Watched]:
    """The samples of a pool by node; without a node that has none."""
    folder, found = evidence.folder / SOAK / pool, dict[str, Watched]()
    files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
    for path in files:
        name = path.name.removesuffix(SAMPLES)
        if name == path.name or name not in evidence.begun.site.pools[pool].workers:
            raise Untrusted(f"{SOAK}/{pool}/{path.name} is not of a worker of the pool")
        try:
            with ZstdFile(path) as file:
                lines = iter(partial(file.readline, MAX_SAMPLE), b"")
                found[name] = watch(_samples(evidence, lines, path.name, name))
        except Untrusted:
            raise
        except Exception as error:  # as for logs
            raise Untrusted(f"{path.name} is not what a sampler writes: {type(error).__name__}") from None
    return found


def _samples(evidence: Evidence, lines: Iterable[bytes], file: str, node: str) -> Iterator[dict[str, Any]]:
    stage = evidence.stage(SOAK)
    first, last = stage.limits if stage else (0, 0)
    report = evidence.inventory.hosts.get(node) if evidence.inventory else None
    for number, line in enumerate(lines):
        sample: dict[str, Any] = json.loads(line)
        if number == 0 or "run" in sample:
            whose = sample.get("run"), sample.get("node")
            if whose != (evidence.begun.run, node):
                raise Untrusted(f"{file} is of {whose!r}, expected {(evidence.begun.run, node)!r}")
            if report and report.machine != sample["machine"]:
                raise Untrusted(f"{file} is of another machine than the inventory's {node}")
        if not first <= sample["t"] <= last:
            raise Untrusted(f"{file} has a sample of {sample['t']!r}, not in its stage")
        yield sample


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
        found = (
            bisect_left(node.times, each.at + each.span) - bisect_left(node.times, each.at)
            for node in watched.values()
        )
        total += each.seconds if all(count >= least for count in found) else 0
    return total


def worst_hour(events: Iterable[Event]) -> tuple[int, str]:
    """The most that a counter has grown in an hour, and which one; 0 without events."""
    by_key: dict[str, list[Event]] = {}
    for each in events:
        by_key.setdefault(each.key, []).append(each)
    worst = (0, "")
    for key, found in by_key.items():
        first = total = 0
        for each in found:
            total += each.amount
            while found[first].at <= each.at - 3600:
                total -= found[first].amount
                first += 1
            worst = max(worst, (total, key))
    return worst


def watch(samples: Iterable[Mapping[str, Any]]) -> Watched:
    """The findings in the samples of a node. A sample has only changes; a value of null was not read."""
    found, state = Watched(), dict[str, Any]()
    clock = 0
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
                found.events += (Event(at, *event) for event in _changes(key, value, state.get(key)))
                state[key] = value
            (found.unread.add if value is None else found.unread.discard)(key)
        if heat := sample.get("heat"):
            clock = int(heat[1])
        found.clocks[clock] += 1
        if len(found.events) > MOST_EVENTS:
            raise ValueError("too many changes")
    return found


def _changes(key: str, now: Any, before: Any) -> Iterator[tuple[str, str, str, int]]:
    """The events of a value of the samples: kind, key, text, amount."""
    if key == "k3s" and before not in (None, now):
        yield "reboots", "k3s", "K3s restarted", 1
    elif key == "ports":
        yield from _ports(now, before)
    elif key == "gpus":
        yield from _gpus(now, before)
    elif key in ("xids", "nvlink") and before is not None:
        old, new = (text.splitlines() if isinstance(text, str) else text for text in (before, now))
        what = "NVLink errors: " if key == "nvlink" else ""
        for line in sorted({*new} - {*old}):
            yield "gpus", str(line)[:120], f"{what}{str(line).strip()[:200]}", 1


def _ports(now: Any, before: Any) -> Iterator[tuple[str, str, str, int]]:
    """Counters that are not 0, as preflight reports them. One that is lower than before was cleared."""
    former = {(each["hca"], each["port"], each["counter"]): int(each["value"]) for each in before or ()}
    for each in now:
        counter, value = str(each["counter"]), int(each["value"])
        key = f"{counter} of {each['hca']} port {each['port']}"[:120]
        old = former.get((each["hca"], each["port"], counter), 0)
        grown = value - old if value >= old else value
        if before is None and value == SATURATED.get(counter):
            yield "saturated", key, f"{key} is {value}, its maximum", 1
        elif before is not None and grown:
            kind = "links" if counter == "link_downed" or counter in NEVER else "counters"
            yield kind, key, f"{key} grew by {grown}", grown


def _gpus(now: Any, before: Any) -> Iterator[tuple[str, str, str, int]]:
    """[PCI address, uncorrected ECC errors, bits of reasons for throttling], each null where unread."""
    former = {str(bus)[:40]: (errors, bits) for bus, errors, bits in before or ()}
    for place, errors, bits in now:
        bus = str(place)[:40]
        old_errors, old_bits = former.get(bus, (None, 0))
        if old_errors is not None and errors is not None and int(errors) > int(old_errors):
            yield "gpus", f"ecc {bus}", f"GPU {bus} has {int(errors)} uncorrected ECC errors", 1
        for bit, reason in THROTTLED.items():
            if int(bits or 0) & bit & ~int(old_bits or 0):
                yield "throttling", f"{bus} {reason}", f"GPU {bus} is throttled: {reason}", 1
