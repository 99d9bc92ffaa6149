"""Known failures (failures.yaml), and the reader of the lines that show one or are unusual."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.log import unusual
from busbar.judge.nccl.log.evidence import KEEP_HOSTS
from busbar.judge.nccl.log.records import EVIDENCE_WIDTH, LogLine, Stage
from busbar.judge.nccl.log.unusual import Decides, Sort, Unusual
from busbar.models import StrictModel

Severity = Literal["fatal", "degraded", "note"]
Observation = Literal[
    "shared-memory-edge", "different-networks", "uneven-ranks", "edges-without-gdr", "tcp-edges",
    "nvls-lost", "no-warm-up",
]  # fmt: skip
Kind = Literal["cause", "crash", "peer", "symptom", "echo"]  # as failures.yaml explains
MAX_UNUSUAL = 512  # with the texts of all of them a verdict still fits into its ConfigMap
VALUE = re.compile(r"%[\d.]*(?:l{0,2}|z)[a-z]")  # %s, %d, %lx
DIGIT = re.compile(r"[1-9]")
PROCESS = re.compile(r"[\w.\-]{1,255}:\d+(?=:\d+ \[)")
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # sbatch -> sbatch; OOMKilled -> OOM, Killed


class Row(StrictModel):
    """Lines that show something: one of `contains`, and `matches` where it is given."""

    contains: tuple[str, ...] = ()
    matches: re.Pattern[str] | None = None
    example: str = ""
    of: str = ""
    before_start: bool = False
    unless_said: str = ""

    @field_validator("contains", mode="before")
    @classmethod
    def _of_all_sources(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return [text for texts in value.values() for text in texts]
        return [value] if isinstance(value, str) else value

    @field_validator("matches", mode="before")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        # `.*` after each of many possible beginnings takes quadratic time
        return value.replace(".*", f".{{0,{EVIDENCE_WIDTH}}}") if isinstance(value, str) else value


class Instead(StrictModel):
    """Another cause and fix, where the log holds a text of `where`, on the failure's host if it is known."""

    where: tuple[str, ...] = ()
    one_host: bool = Field(default=False, description="also where the log is of one host")
    cause: str
    next: str


class Failure(StrictModel):
    """One known failure; failures.yaml explains the fields."""

    name: str
    severity: Severity
    meaning: str
    cause: str
    next: str
    lines: tuple[Row, ...] = ()
    codes: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    observed: Observation | None = None
    kind: Kind | None = None
    explains: tuple[str, ...] = ()
    no_verdict: bool = False
    stages: tuple[Stage, ...] = ("before", "table", "after")
    retried: bool = Field(default=False, description="no failure where the program starts after it")
    fallback: bool = False
    instead: tuple[Instead, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_own_row(cls, given: dict[str, Any]) -> dict[str, Any]:
        own = {key: given[key] for key in ("contains", "matches") if key in given}
        rest = {key: value for key, value in given.items() if key not in own}
        return {**rest, "lines": [*([own] if own else []), *given.get("lines", ())]}

    @model_validator(mode="after")
    def _one_condition(self) -> Failure:
        if sum(map(bool, (self.lines, self.codes, self.observed))) != 1:
            raise ValueError(f"failure {self.name}: give one of lines, codes, observed")
        if not all(row.contains for row in self.lines):
            raise ValueError(f"failure {self.name}: lines have a text")
        return self

    @property
    def effective_kind(self) -> Kind:
        """`kind`, or its default."""
        return self.kind or ("cause" if self.lines else "symptom")


@dataclass(slots=True)
class KnownLine:
    """The lines that show a failure: the first one, their number, and the first among the rows of a table."""

    rule: Failure
    first: LogLine
    count: int = 0
    among_rows: LogLine | None = None


Text = tuple[list[str], Row, Failure]  # a text in parts, the row that has it, and the failure of the row


class _Table:
    """failures.yaml, with its texts by a word that a line with them surely has ("" where there is none)."""

    def __init__(self) -> None:
        entries = read_yaml(__package__, "failures.yaml")
        self.failures = {f.name: f for f in map(Failure.model_validate, entries)}
        self.places = {name: place for place, name in enumerate(self.failures)}
        self.texts: dict[str, list[Text]] = {}
        self.stated: set[str] = set()
        """The texts that decide between causes."""
        for failure in self.failures.values():
            for row, text in ((own, text) for own in failure.lines for text in own.contains):
                around = parts(text)
                self.texts.setdefault(_word(max(around, key=len)), []).append((around, row, failure))
            self.stated.update(text for other in failure.instead for text in other.where)
            self.stated.update(row.unless_said for row in failure.lines if row.unless_said)

    def near(self, text: str) -> Iterator[Text]:
        """The known texts that TEXT may hold, because it has their words."""
        said = {word.lower() for word in WORDS.findall(text)}
        for word in ("", *(self.texts.keys() & said)):
            yield from self.texts.get(word, ())

    def shown(self, text: str, stated: Iterable[str], *, started: bool, stage: Stage) -> list[Failure]:
        """The failures that TEXT shows; STATED: texts that stand before it."""
        found = {
            failure.name: failure
            for around, row, failure in self.near(text)
            if holds(text, around)
            and not (row.before_start and started)
            and not (row.unless_said and row.unless_said in stated)
            and (row.matches is None or row.matches.search(text))
            and stage in failure.stages
        }
        first = sorted(found.values(), key=lambda failure: self.places[failure.name])
        return [failure for failure in first if not failure.fallback] or first[:1]


@cache
def table() -> _Table:
    """The table of failures."""
    return _Table()


def failures() -> tuple[Failure, ...]:
    """All known failures, in file order."""
    return tuple(table().failures.values())


def failure(name: str) -> Failure:
    """The failure NAME. Raises KeyError."""
    return table().failures[name]


def parts(text: str) -> list[str]:
    """What stands around the values (%s, %d) of TEXT."""
    return [part for part in VALUE.split(text) if part.strip()]


def holds(line: str, wanted: list[str]) -> bool:
    """Whether LINE has all that is WANTED, in this order."""
    at = 0
    for part in wanted:
        if (found := line.find(part, at)) < 0:
            return False
        at = found + len(part)
    return True


def host_of(text: str) -> str:
    """The host in a message of NCCL; "" where there is none."""
    return _process_of(text).partition(":")[0]


def _process_of(text: str) -> str:
    found = PROCESS.match(text)
    return found[0] if found else ""


def _word(text: str) -> str:
    """The longest word of TEXT that is surely whole in a line; a lower-case first word may be cut off."""
    found = WORDS.findall(text)
    return max((found[1:] if text[0].islower() else found) or found, key=len, default="").lower()


class LineRules:
    """Finds known failures and unusual lines, line by line.

    MEASURED: there is no table, and a process measures from the end of its communicator's set-up on.
    """

    def __init__(self, *, measured: bool = False) -> None:
        self._measured = measured
        self._set_up: set[str] = set()  # processes whose communicator is set up
        self.known: dict[str, KnownLine] = {}  # by failure, in the order of the log
        self.unusual: dict[tuple[str, str], Unusual] = {}  # by form, in the order of the log
        self._before: set[str] = set()  # forms of lines of NCCL before the first row
        self._started = False
        self.uncounted = 0  # unusual lines beyond those that are kept
        self.missing: LogLine | None = None  # a line that says that others were lost
        self.stated: dict[str, set[str]] = {}  # texts that decide between causes -> their hosts

    def concerns(self, text: str) -> bool:
        """False if an INFO message like TEXT shows nothing, whatever its numbers are."""
        if self._measured and "Init COMPLETE" in text:
            return True
        shape = DIGIT.sub("0", text)
        wanted = [*(around for around, _, _ in table().near(text)), *([stated] for stated in table().stated)]
        return any(holds(shape, [DIGIT.sub("0", part) for part in around]) for around in wanted)

    def look(
        self, text: str, line: int, *,
        level: str | None = None, started: bool = True, stage: Stage = "before",
        behind: str = "", certain: bool = False,
    ) -> None:  # fmt: skip
        """Count every known failure in one cleaned line, or keep the line if it is unusual.

        LEVEL is that of a message of NCCL. STARTED: a program of nccl-tests had printed something before it.
        BEHIND: the text behind what may be, or is CERTAIN to be, a prefix.
        """
        if started and not self._started:
            self._started = True
            self.known = {name: found for name, found in self.known.items() if not found.rule.retried}
        if self._measured and "Init COMPLETE" in text and len(self._set_up) < KEEP_HOSTS:
            self._set_up.add(_process_of(text))
        for stated in table().stated:
            if stated in text:
                hosts = self.stated.setdefault(stated, set())
                if len(hosts) < KEEP_HOSTS:
                    hosts.add(host_of(text))
        shown = table().shown(text, self.stated, started=started, stage=stage)
        shown = shown or (table().shown(behind, self.stated, started=started, stage=stage) if behind else [])
        for rule in shown:
            first = LogLine.of(line, text, rule.name)
            found = self.known.setdefault(rule.name, KnownLine(rule, first))
            found.count += 1
            if stage == "table" and found.among_rows is None:
                found.among_rows = first
        if not shown:
            self._look_unusual(
                behind if certain or unusual.is_end(behind) else text, line, level, stage, started
            )

    def _look_unusual(self, text: str, line: int, level: str | None, stage: Stage, started: bool) -> None:
        """Keep TEXT if it is unusual, with what it says of the run."""
        sort = unusual.sort_of(text, level)
        if sort is not None:
            measures = self._measured and _process_of(text) in self._set_up
            self._keep(text, line, sort, "table" if measures else stage)
            return
        if level is not None or text.startswith("# "):
            return
        if unusual.MISSING.search(text) is not None:
            self.missing = self.missing or LogLine.of(line, text, text)
            return
        ends = unusual.is_end(text)
        if stage != "before" and unusual.ends_the_run(text):
            self._add(Unusual("other", "ended badly", LogLine.of(line, text)))
            return
        foreign = stage == "after" and not text.isascii()
        if not (ends or foreign or unusual.names_failure(text)):
            return
        says: Decides = "fault" if not ends and unusual.is_fault(text) else ""
        about = started or unusual.HARDWARE.search(text) is not None
        self._add(Unusual("other", says, LogLine.of(line, text), about_hardware=about))

    def _keep(self, text: str, line: int, sort: Sort, stage: Stage) -> None:
        """Keep a line of NCCL or of the kernel. What NCCL says before the first row disturbs no row."""
        form = unusual.form(text)
        if stage == "before" and sort != "kernel" and len(self._before) < MAX_UNUSUAL:
            self._before.add(form)
        says: Decides = "disturbed" if stage == "table" and form not in self._before else ""
        self._add(Unusual(sort, says, LogLine.of(line, text)))

    def _add(self, line: Unusual) -> None:
        key = unusual.form(line.first.text), line.decides
        if key in self.unusual:
            self.unusual[key].count += 1
        elif len(self.unusual) < MAX_UNUSUAL or (line.decides and len(self.unusual) < 2 * MAX_UNUSUAL):
            self.unusual[key] = line
        else:
            self.uncounted += 1
