"""The measurements of a stack over time: the normal bandwidth, runs below it, and changes before them.

The cluster has the last ones of each pool (busbar.collect.result), and `history.jsonl` in .busbar/STACK/POOL
has all that were made from this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from busbar.collect.result import Results
from busbar.judge.archive import JOB, Record, changes
from busbar.kube.client import Api
from busbar.kube.nodes import NODES
from busbar.kube.wait import ProgressCallback
from busbar.outputs.contract import FORMAT, PoolResult
from busbar.text import counted, listed

# Number of passes on the same Nodes and profile that are needed to know their noise.
MIN_PASSES = 5
# A run warns that is below both: the median by 4 times the median absolute deviation, and by 3 %.
DEVIATIONS = 4.0
SHORTFALL = 0.03

FILE = "history.jsonl"
# Facts about the software from the log. Configured versions are settings.
_FOUND = ("nccl_version", "plugin", "transport", "busbar_version", "simulated")
# Settings with which the bandwidth is another quantity.
_KEY = ("profile", "collectives", "max_bytes", "gpus_per_node", "algorithm", "transport", "rails")
# Settings that differ between an update and `busbar measure`, without an effect on the bandwidth.
_NO_CONDITIONS = (JOB, "run", "deadline_seconds", "tolerations")


@dataclass(frozen=True)
class Run:
    """One measurement of a pool. `at`: its start."""

    record: Record
    result: PoolResult
    at: datetime

    @property
    def nodes(self) -> tuple[str, ...]:
        """The measured Nodes, in a fixed order."""
        return tuple(sorted(self.record.nodes))

    @property
    def comparable(self) -> tuple[Any, ...]:
        """The key of runs whose bandwidths are comparable: the Nodes, and the settings of _KEY."""
        return (self.record.pool, self.nodes, *(self.record.settings.get(key) for key in _KEY))

    def of(self, joined: Mapping[str, datetime]) -> frozenset[str]:
        """The Nodes of this run that are still the same machines."""
        return frozenset(node for node in self.nodes if node not in joined or joined[node] <= self.at)

    @property
    def conditions(self) -> dict[str, str]:
        """Settings, and facts about the software from the log, by name."""
        settings = {key: value for key, value in self.record.settings.items() if key not in _NO_CONDITIONS}
        return settings | {key: value for key in _FOUND if (value := getattr(self.result, key))}

    @classmethod
    def read(cls, found: Any) -> Run | None:
        """A measurement as `summarize` gives it, also as JSON; None for anything else, and without a time."""
        try:
            found = json.loads(found) if isinstance(found, str) else found
            record, result = Record.model_validate(found["record"]), PoolResult.model_validate(found)
            is_known = found["format"] == FORMAT
        except (KeyError, TypeError, ValueError):
            return None
        return cls(record, result, result.measured_at) if is_known and result.measured_at else None


@dataclass(frozen=True)
class Noise:
    """Noise of the passes before a run on the same Nodes: busbw in GB/s, and the number of passes."""

    median: float
    mad: float
    passes: int

    @classmethod
    def of(cls, values: Collection[float]) -> Noise | None:
        """The noise of values; None with fewer than MIN_PASSES."""
        if len(values) < MIN_PASSES:
            return None
        middle = median(values)
        return cls(middle, median(abs(value - middle) for value in values), len(values))

    @property
    def floor(self) -> float:
        """Bandwidth in GB/s below which a run warns."""
        return min(self.median - DEVIATIONS * self.mad, self.median * (1 - SHORTFALL))


@dataclass(frozen=True)
class Entry:
    """A run, compared with those before it.

    `changes`: since the previous run on the same Nodes, else of its pool, as sentences.
    """

    run: Run
    noise: Noise | None
    changes: tuple[str, ...]

    @property
    def warning(self) -> str | None:
        """The warning about a run that is low; None for others."""
        noise, busbw = self.noise, self.run.result.busbw_gbps
        if noise is None or busbw is None or busbw >= noise.floor:
            return None
        since = "; ".join(self.changes) or "nothing that is recorded"
        return (
            f"pool {self.run.record.pool}: {busbw:g} GB/s is {1 - busbw / noise.median:.1%} below the median "
            f"of {noise.passes} passes on the same nodes ({noise.median:g} GB/s, MAD {noise.mad:.2g}). "
            f"Changed since the run before: {since}"
        )

    def as_object(self) -> dict[str, Any]:
        record, nodes = self.run.record, {"nodes_measured": list(self.run.nodes)}
        result = self.run.result.model_dump(mode="json", exclude_none=True, exclude={"curve"}) | nodes
        noise = self.noise and {**asdict(self.noise), "floor": self.noise.floor}
        about = {"pool": record.pool, "kind": record.kind, "low": bool(self.warning), "noise": noise}
        return {**about, "changes": list(self.changes), "result": result, "settings": record.settings}


def entries(runs: Iterable[Run], joined: Mapping[str, datetime] = MappingProxyType({})) -> list[Entry]:
    """An entry per run, in the order of time, compared with the runs before it.

    `joined`: as the function gives it. Runs before that are not compared with those after it.
    """
    newest = {run.record.job_uid: run for run in runs}
    passes: dict[tuple[Any, ...], list[float]] = {}
    before: dict[Any, Run] = {}
    found: list[Entry] = []
    for run in sorted(newest.values(), key=lambda run: (run.at, run.record.job_uid)):
        key = (run.of(joined), *run.comparable)
        values = passes.setdefault(key, [])
        former = before.get(key) or before.get(run.record.pool)
        changes = () if former is None else tuple(_changes(former, run))
        found.append(Entry(run, Noise.of(values), changes))
        before[run.record.pool] = before[key] = run
        if run.result.verdict == "pass" and run.result.busbw_gbps is not None:
            values.append(run.result.busbw_gbps)
    return found


def _changes(former: Run, run: Run) -> Iterator[str]:
    """The differences between two runs of a pool, as sentences."""
    old, new = former.conditions, run.conditions
    # A value that a log without a table does not have counts as unchanged.
    unknown = {key for key in _FOUND if key not in old or key not in new}
    yield from (text for key, text in changes(old, new).items() if key not in unknown)
    for text, names in (
        ("nodes added", [node for node in run.nodes if node not in former.nodes]),
        ("nodes left out", [node for node in former.nodes if node not in run.nodes]),
    ):
        if names:
            yield f"{text}: {listed(names)}"


def append(folder: Path, found: Mapping[str, Any], progress: ProgressCallback) -> None:
    """Add a measurement, the result of `summarize` with its record, to the file in FOLDER, that of its pool.

    A failed write only prints a message, because there is a verdict.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Only the owner may read the file, because it has the environment of the ranks.
        for_owner = partial(os.open, mode=0o600)
        with open(folder / FILE, "a", encoding="utf-8", opener=for_owner) as file:
            file.write(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")
    except OSError as error:
        progress(f"the measurement is not in {folder / FILE}, for busbar history: {error}")


def read_folder(folder: Path, note: ProgressCallback = lambda _: None) -> list[Run]:
    """The measurements in the folders of all pools of a stack, .busbar/STACK.

    NOTE gets a sentence on lines that are none, such as one that a full disk has cut.
    """
    runs: list[Run] = []
    for file in sorted(folder.glob(f"*/{FILE}")):
        lines = file.read_text(encoding="utf-8").splitlines()
        found = [run for line in lines if (run := Run.read(line))]
        runs += found
        if unread := len(lines) - len(found):
            note(f"note: {counted(unread, 'line')} of {file} cannot be read as a measurement")
    return runs


def joined(api: Api) -> dict[str, datetime]:
    """Node -> when it joined: before that its name was another machine's. Raises ApiError."""
    nodes = (node["metadata"] for node in api.list(NODES))
    return {node["name"]: datetime.fromisoformat(node["creationTimestamp"]) for node in nodes}


def read_cluster(api: Api, namespace: str) -> list[Run]:
    """The measurements in the cluster. Raises ApiError."""
    return list(filter(None, map(Run.read, Results(api, namespace).all())))
