"""A row, its kind, which is a pure function of the evidence, and the results of all rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from busbar.config.types import Float, Text
from busbar.models import ConfigModel
from busbar.text import counted, listed
from stacks.accept.package import evidence as kept
from stacks.accept.package.site import Pool

# The stages that name single nodes, which later stages leave out.
OF_NODES = ("nvlink", "pairs", "rails")
Outcome = Literal["pass", "fail", "unknown", "not run"]


class Row(ConfigModel):
    """One criterion."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_-]+(\.[a-z0-9_-]+){2,3}$", max_length=200)] = Field(
        description="STAGE.POOL.KIND, or STAGE.POOL.COLLECTIVE.KIND."
    )
    measured: Text = Field(default="", description="The meaning of the row, for people.")
    threshold: Float | None = Field(default=None, description="Limit of the value; the kind has its side.")
    unit: Text = Field(default="", description="Unit of the threshold.")
    source: Text = Field(default="", description="The origin of the threshold.")
    expected: dict[str, Float | Text] = Field(default={}, description="Yardstick: GB/s, transport, rate.")
    required: bool = Field(default=True, description="If false, the row does not decide on the acceptance.")

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Stage, pool, collective or an empty text, and STAGE.KIND, a key of KINDS."""
        stage, pool, *collective, kind = self.id.split(".")
        return stage, pool, "".join(collective), f"{stage}.{kind}"

    @property
    def kind(self) -> Kind:
        """The kind of the row. Raises KeyError where this release has none."""
        return KINDS[self.parts[3]]


@dataclass(frozen=True)
class Finding:
    """The finding of a kind. With a value the threshold decides on a pass. `nodes`: those that fail it."""

    result: Outcome
    reason: str
    value: float | None = None
    nodes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, bad: Sequence[str], unknown: Sequence[str], good: str, *nodes: str) -> Finding:
        """A failure that names what is bad, else unknown with what is not known, else a pass."""
        if bad:
            return cls("fail", sentences(bad, 8), nodes=[*nodes])
        return cls("unknown", f"not known: {sentences(unknown, 8)}") if unknown else cls("pass", good)


@dataclass(frozen=True)
class Question:
    """A row with its evidence."""

    row: Row
    pool: Pool
    evidence: kept.Evidence

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self.row.parts[1]

    @property
    def reports(self) -> dict[str, kept.Told]:
        """The reports of the pool's workers."""
        return self.evidence.reports(self.name)

    def log(self, stage: str) -> kept.Judged:
        """The judged log of the pool in a stage. Raises Untrusted without a complete one."""
        if found := self.evidence.judged(stage, self.name):
            return found
        raise kept.Untrusted(f"{stage}/{self.name} has no complete log")

    def took_part(self, nodes: Collection[str]) -> Finding:
        """How many nodes took part, and which workers did not."""
        out = [name for name in self.pool.workers if name not in nodes]
        return Finding("pass", f"{counted(len(nodes), 'node')}{but(out)}", len(nodes))


Find = Callable[[Question], Finding]
Look = Callable[[Pool, Any], Iterator[tuple[Outcome, str]]]


@dataclass(frozen=True)
class Kind:
    """A kind of row. `least`: the value must reach the threshold; else it must not exceed it.

    `nodes`: the fewest workers with which it is a default row. `limit`: the default threshold of a pool;
    None: the kind has none. `ceiling`: the highest one that makes sense; None: the default. `source`: of the
    threshold. `uses`: stages whose evidence it needs. `when`: if a pool has it. `expects`: the yardstick.
    """

    find: Find
    measured: str
    unit: str = ""
    limit: Callable[[Pool], float] | None = None
    source: str = ""
    ceiling: float | None = None
    least: bool = True
    per_collective: bool = False
    required: bool | Callable[[Pool], bool] = True
    uses: tuple[str, ...] = ()
    when: Callable[[Pool], bool] = lambda pool: True
    nodes: int = 1
    expects: Callable[[Pool, str], dict[str, Any]] = lambda pool, collective: {}


KINDS: dict[str, Kind] = {}
"""STAGE.KIND -> its kind, stage by stage."""


def kind(name: str, *about: Any, **more: Any) -> Callable[[Find], Find]:
    """Register a kind STAGE.KIND; the other arguments are those of Kind after `find`."""

    def add(find: Find) -> Find:
        KINDS[name] = Kind(find, *about, **more)
        return find

    return add


def counting(name: str, measured: str, **more: Any) -> Callable[[Find], Find]:
    """Register a kind that counts nodes: by default all must be there that are not in quarantine."""
    source = "hosts.workers, without those in quarantine"
    # Criteria may ask for more nodes than are left of those that were bought.
    return kind(name, measured, "nodes", lambda pool: len(pool.workers), source, 10_000.0, **more)


def on_each(look: Look, stage: str = kept.INVENTORY) -> Find:
    """A kind that looks at what each worker has told: a problem counts, then a fact that is missing."""

    def find(asked: Question) -> Finding:
        evidence, workers = asked.evidence, asked.pool.workers
        found = evidence.inventory if stage == kept.INVENTORY else evidence.printed(stage)
        said: list[tuple[Outcome, str]] = [
            (state, f"{name}: {what}")
            for name in workers
            if name in found.hosts
            for state, what in look(asked.pool, found.hosts[name])
        ]
        said += [("unknown", text) for text in found.silent(workers)]
        states: tuple[Outcome, ...] = ("fail", "unknown", "not run")
        for state in states:
            if texts := [text for each, text in said if each == state]:
                return Finding(state, sentences(texts, 8))
        return Finding("pass", f"good on {counted(len(workers), 'node')}")

    return find


def sentences(items: Sequence[str], limit: int = 4) -> str:
    """The first items, which may contain commas, and how many more there are: `a, b; c and 7 more`."""
    more = len(items) - limit
    return "; ".join(items[:limit]) + (f" and {more} more" if more > 0 else "")


def but(missing: Sequence[str]) -> str:
    """The end of a reason that names what is missing."""
    return f"; not {listed(missing)}" if missing else ""


def failed_nodes(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Node -> the first required row that it fails, with the reason."""
    found: dict[str, str] = {}
    for row in rows:
        for node in row["nodes"] if row["required"] else ():
            found.setdefault(node, f"{row['id']}: {row['reason']}")
    return found


def verdict(rows: Iterable[Mapping[str, Any]]) -> Literal["accepted", "refused", "undecided"]:
    """The verdict: a required row that failed refuses, one that is not known leaves it open."""
    states = {row["result"] for row in rows if row["required"]}
    if "fail" in states:
        return "refused"
    return "accepted" if states == {"pass"} else "undecided"


def result(row: Row, evidence: kept.Evidence, hashes: Mapping[str, str]) -> dict[str, Any]:
    """A row with its result, as JSON values. HASHES: file -> sha256."""
    stage, pool, _, _ = row.parts
    try:
        found = _find(Question(row, evidence.begun.site.pools[pool], evidence))
        # A fault stays one, whichever machine has it.
        doubt = evidence.doubt(stage, pool) if found.result == "pass" and stage != kept.MACHINES else ""
        found = Finding("unknown", doubt) if doubt else found
    except kept.Untrusted as error:
        found = Finding("fail" if isinstance(error, kept.Contradiction) else "unknown", str(error))
    stages = [f"{kept.FOLDER}/{name}" for name in (*row.kind.uses, stage)]
    folders = [*stages, *(f"{folder}/{pool}" for folder in stages)]
    below = f"{kept.FOLDER}/{stage}/{pool}/"
    used = [path for path in hashes if path.rpartition("/")[0] in folders or path.startswith(below)]
    return {**row.model_dump(), **vars(found), "evidence": {path: hashes[path] for path in used}}


def _find(asked: Question) -> Finding:
    row, kind, (name, pool, _, _) = asked.row, asked.row.kind, asked.row.parts
    stage = asked.evidence.stage(name)
    if stage is None:
        return Finding("not run", f"the stage {name} was not run")
    if pool in stage.notes:
        return Finding("not run", stage.notes[pool])
    if not asked.pool.workers and kind.unit != "nodes":
        return Finding("unknown", "the pool has no workers")
    found = kind.find(asked)
    if found.result != "pass" or kind.limit is None:
        return found
    if row.threshold is None or found.value is None:
        return Finding("unknown", "there is no value to compare with the threshold")
    is_good = found.value >= row.threshold if kind.least else found.value <= row.threshold
    reason = f"{found.reason}; expected at {'least' if kind.least else 'most'} {row.threshold:g} {row.unit}"
    return Finding("pass" if is_good else "fail", reason, found.value, [] if is_good else found.nodes)
