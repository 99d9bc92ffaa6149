"""Hours of load and samples: what they show. Pure functions; the evidence reads the files."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median, pstdev
from typing import Any

from busbar.preflight.health_checks import NEVER, SATURATED

# An interval is one run of nccl-tests with as many iterations as fill this time.
INTERVAL_SECONDS = 300
SAMPLE_SECONDS = 30
# A run of low intervals is named if chance gives it in less than one of so many soaks. With a spread that
# needs longer runs than MOST_LOW, a wobble of half an hour may pass.
SOAKS, LEAST_LOW, MOST_LOW = 1000, 2, 5
# Fewer intervals do not show their spread.
LEAST_INTERVALS = 10
# A sampler's file has room for fewer.
MOST_EVENTS = 100_000
# Bits of NVML: slowdown by hardware, by software for heat, by hardware for heat, and by the power brake.
THROTTLED = {0x08: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat", 0x80: "power brake"}


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
                found.events += (
                    Event(at, *event) for event in _READ.get(key, _nothing)(value, state.get(key))
                )
                state[key] = value
            (found.unread.add if value is None else found.unread.discard)(key)
        if heat := sample.get("heat"):
            clock = int(heat[1])
        found.clocks[clock] += 1
        if len(found.events) > MOST_EVENTS:
            raise ValueError("too many changes")
    return found


_Changes = Iterator[tuple[str, str, str, int]]


def _nothing(now: Any, before: Any) -> _Changes:
    yield from ()


def _restarts(now: str, before: str | None) -> _Changes:
    if before not in (None, now):
        yield "reboots", "k3s", "K3s restarted", 1


def _ports(now: Any, before: Any) -> _Changes:
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


def _lines(what: str) -> Any:
    """New lines of a text, or of a list of texts."""

    def read(now: Any, before: Any) -> _Changes:
        if before is not None:
            old, new = (text.splitlines() if isinstance(text, str) else text for text in (before, now))
            for line in sorted({*new} - {*old}):
                yield "gpus", str(line)[:120], f"{what}{str(line).strip()[:200]}", 1

    return read


def _gpus(now: Any, before: Any) -> _Changes:
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


_READ = {
    "k3s": _restarts,
    "ports": _ports,
    "xids": _lines(""),
    "nvlink": _lines("NVLink errors: "),
    "gpus": _gpus,
}
