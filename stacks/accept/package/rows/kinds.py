"""A row, and what its kind is: a pure function of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from busbar.config.types import Float, Text
from busbar.models import ConfigModel
from busbar.preflight.report import Report
from busbar.text import counted, listed
from stacks.accept.package.evidence import Evidence, Judged, Untrusted
from stacks.accept.package.site import Pool

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
    expected: dict[str, Float | Text] = Field(
        default={}, description="What the site must be measured by: busbw in GB/s, transport, rate of a rail."
    )
    required: bool = Field(default=True, description="If false, the row does not decide on the acceptance.")

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Stage, pool, collective or an empty text, and STAGE.KIND, a key of KINDS."""
        stage, pool, *collective, kind = self.id.split(".")
        return stage, pool, "".join(collective), f"{stage}.{kind}"


@dataclass(frozen=True)
class Finding:
    """The finding of a kind. With a value the threshold decides on a pass. `nodes`: those that fail it."""

    result: Outcome
    reason: str
    value: float | None = None
    nodes: list[str] = field(default_factory=list)


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
    makes sense; None: the default. `uses`: other stages whose evidence it needs. `when`: if a
    pool has it. `expects`: what a row of a pool and a collective says of the yardstick.
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
    expects: Callable[[Pool, str], dict[str, Any]] = lambda pool, collective: {}


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
        good = Finding("pass", f"good on {counted(len(reports), 'node')}")
        return worst(said) or (good if reports else Finding("unknown", "the pool has no workers"))

    return find


def worst(said: Sequence[tuple[Outcome, str]]) -> Finding | None:
    """The finding on all that was said: a problem, then a missing fact, then what was not run."""
    states: tuple[Outcome, ...] = ("fail", "unknown", "not run")
    for state in states:
        if texts := [text for each, text in said if each == state]:
            return Finding(state, listed(texts, 8))
    return None


def but(missing: Sequence[str]) -> str:
    """The end of a reason that names what is missing."""
    return f"; not {listed(missing)}" if missing else ""


def workers_of(pool: Pool) -> float:
    """The default threshold of a row that counts nodes."""
    return len(pool.workers)


ACCEPTED = "hosts.workers, without those in quarantine"
