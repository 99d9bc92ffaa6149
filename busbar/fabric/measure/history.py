"""The measurements of a stack over time: what is normal, which run is below it, what changed before it.

Pure: records come from busbar.fabric.measure.records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import median
from typing import Any

from busbar.outputs.pool import PoolResult
from busbar.text import listed

MIN_PASSES = 5
"""Passes on the same Nodes and profile from which their noise is known."""
DEVIATIONS = 4.0
SHORTFALL = 0.03
"""A run warns that is below both: the median by 4 times the median absolute deviation, and by 3 %."""

# The log says these of the software. Versions that the configuration has are settings.
_FOUND = ("nccl_version", "plugin", "transport", "busbar_version", "simulated")
# With another one of these settings, the bandwidth is another quantity.
_KEY = ("profile", "collectives", "max_bytes", "gpus_per_node", "algorithm")


@dataclass(frozen=True)
class Run:
    """One measurement of a pool. `kind`: update, measure or idle. `settings`: under which it was made."""

    id: str
    pool: str
    kind: str
    settings: Mapping[str, str]
    result: PoolResult

    @property
    def at(self) -> datetime:
        """When it was started."""
        if self.result.measured_at is None:
            raise ValueError(f"run {self.id} has no time")
        return self.result.measured_at

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that were measured, in a fixed order."""
        return tuple(sorted(self.result.nodes_measured or ()))

    @property
    def comparable(self) -> tuple[Any, ...]:
        """What runs of the same kind of bandwidth share: the Nodes, and the profile with its sizes."""
        return (self.pool, self.nodes, *(self.settings.get(key) for key in _KEY))

    @property
    def conditions(self) -> dict[str, str]:
        """Settings and what the log says of the software, by name."""
        found = {key: getattr(self.result, key) for key in _FOUND}
        return {**self.settings, **{key: value for key, value in found.items() if value}}

    def as_json(self) -> str:
        """What `read` reads."""
        result = self.result.model_dump(mode="json", exclude_none=True)
        return json.dumps({**vars(self), "result": result}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Run | None:
        """A record; None for another text, such as one of a newer busbar."""
        try:
            found = json.loads(text)
            result = PoolResult.model_validate(found["result"])
            settings = {str(key): str(value) for key, value in found["settings"].items()}
            run = cls(str(found["id"]), str(found["pool"]), str(found["kind"]), settings, result)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return run if result.measured_at else None


@dataclass(frozen=True)
class Noise:
    """Of the passes before a run on the same Nodes: bus bandwidth in GB/s, and how many passes."""

    median: float
    mad: float
    passes: int

    @classmethod
    def of(cls, values: Collection[float]) -> Noise | None:
        """None with fewer than MIN_PASSES values."""
        if len(values) < MIN_PASSES:
            return None
        middle = median(values)
        return cls(middle, median(abs(value - middle) for value in values), len(values))

    @property
    def floor(self) -> float:
        """Below it a run warns, in GB/s."""
        return min(self.median - DEVIATIONS * self.mad, self.median * (1 - SHORTFALL))


@dataclass(frozen=True)
class Entry:
    """A run among the others.

    `changes`: since the run before it on the same Nodes, else of its pool, as sentences.
    """

    run: Run
    noise: Noise | None
    changes: tuple[str, ...]

    @property
    def is_low(self) -> bool:
        """Whether it is below the noise of the passes before it."""
        busbw = self.run.result.busbw_gbps
        return self.noise is not None and busbw is not None and busbw < self.noise.floor

    @property
    def warning(self) -> str | None:
        """What to say of a run that is low."""
        busbw = self.run.result.busbw_gbps
        if self.noise is None or busbw is None or not self.is_low:
            return None
        since = "; ".join(self.changes) or "nothing that is recorded"
        return (
            f"pool {self.run.pool}: {busbw:g} GB/s is {1 - busbw / self.noise.median:.1%} below the median "
            f"of {self.noise.passes} passes on the same nodes ({self.noise.median:g} GB/s, MAD "
            f"{self.noise.mad:.2g}). Changed since the run before: {since}"
        )

    def as_object(self) -> dict[str, Any]:
        """As JSON values."""
        result = self.run.result.model_dump(mode="json", exclude_none=True, exclude={"curve"})
        noise = self.noise and {**asdict(self.noise), "floor": self.noise.floor}
        about = {"pool": self.run.pool, "kind": self.run.kind, "low": self.is_low, "noise": noise}
        return {**about, "changes": list(self.changes), "result": result, "settings": dict(self.run.settings)}


def entries(runs: Iterable[Run]) -> list[Entry]:
    """Every run once, in the order of time, with what the runs before it say of it."""
    newest = {run.id: run for run in runs}
    passes: dict[tuple[Any, ...], list[float]] = {}
    before: dict[Any, Run] = {}
    found: list[Entry] = []
    for run in sorted(newest.values(), key=lambda run: (run.at, run.id)):
        values = passes.setdefault(run.comparable, [])
        former = before.get(run.comparable) or before.get(run.pool)
        changes = () if former is None else tuple(_changes(former, run))
        found.append(Entry(run, Noise.of(values), changes))
        before[run.pool] = before[run.comparable] = run
        if run.result.verdict == "pass" and run.result.busbw_gbps is not None:
            values.append(run.result.busbw_gbps)
    return found


def _changes(former: Run, run: Run) -> Iterator[str]:
    """What differs between two runs of a pool, as sentences."""
    old, new = former.conditions, run.conditions
    # A value that a log without a table does not have counts as unchanged.
    unknown = {key for key in _FOUND if key not in old or key not in new}
    for key in {**new, **old}:
        if key not in unknown and old.get(key) != new.get(key):
            yield f"{key} {old.get(key) or 'none'} -> {new.get(key) or 'none'}"
    for text, names in (
        ("nodes added", [node for node in run.nodes if node not in former.nodes]),
        ("nodes left out", [node for node in former.nodes if node not in run.nodes]),
    ):
        if names:
            yield f"{text}: {listed(names)}"
