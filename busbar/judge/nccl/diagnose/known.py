"""Known failures (failures.yaml), and the lines of a log that show one or look like one that nobody knows."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from busbar.judge.nccl.expected.profiles import read_yaml
from busbar.judge.nccl.log.evidence import KEEP_HOSTS
from busbar.judge.nccl.log.matcher import BAD_STATE, NOTED, SHOWN, KnownLine, Stage
from busbar.judge.nccl.log.records import LogLine

Severity = Literal["fatal", "degraded", "note"]
SEVERITY_ORDER: tuple[Severity, ...] = ("fatal", "degraded", "note")
Observation = Literal[
    "shared-memory-edge", "different-networks", "uneven-ranks", "edges-without-gdr", "tcp-edges",
    "gap-between-rows", "nvls-lost", "ranks-not-destroyed", "few-iterations",
]  # fmt: skip
Kind = Literal["cause", "crash", "peer", "symptom", "echo"]  # as failures.yaml explains
EVIDENCE_WIDTH = 400
MAX_UNKNOWN = 1024
INFORMING = ("INFO", "ATTN")  # levels that may report a failure without being a warning; ATTN since NCCL 2.32
LAST_WARNING = "# error: "  # of NCCL, as nccl-tests 2.17.3 and later print it at the end
VALUE = re.compile(r"%[\d.]*(?:l{0,2}|z)[a-z]")  # %s, %d, %lx
HOST = re.compile(r"([\w.\-]{1,255}):\d+:\d+ \[")
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # sbatch -> sbatch; OOMKilled -> OOM, Killed


class Row(BaseModel):
    """Lines that show something: one of `contains`, and `matches` where it is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    contains: tuple[str, ...] = ()
    matches: re.Pattern[str] | None = None
    example: str = ""
    of: str = ""
    before_start: bool = False

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


class Instead(BaseModel):
    """Another cause and fix, where the log holds a text of `where`, on the failure's host if it is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: tuple[str, ...]
    cause: str
    next: str


class Failure(BaseModel):
    """One known failure; failures.yaml explains the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        own = {key: given[key] for key in ("contains", "matches", "example") if key in given}
        rest = {key: value for key, value in given.items() if key not in own}
        return {**rest, "lines": [*([own] if own else []), *given.get("lines", ())]}

    @model_validator(mode="after")
    def _one_condition(self) -> Failure:
        if sum(map(bool, (self.lines, self.codes, self.observed))) != 1:
            raise ValueError(f"failure {self.name}: give one of lines, codes, observed")
        if any(not row.contains or not row.example for row in self.lines):
            raise ValueError(f"failure {self.name}: lines have a text and an example")
        return self

    @property
    def effective_kind(self) -> Kind:
        """`kind`, or its default."""
        return self.kind or ("cause" if self.lines else "symptom")


class _Look:
    """An entry of `suspicious` and `hardware`: a word of `any`, one of `and`, and `matches`."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.any, self.all = frozenset(entry["any"]), frozenset(entry.get("and", ()))
        self.matches = re.compile(entry.get("matches", ""), re.IGNORECASE)
        self.after_start = entry.get("after_start", False)

    def fits(self, text: str, said: set[str]) -> bool:
        """Whether TEXT with the words SAID is of this kind."""
        if self.any.isdisjoint(said) or (self.all and self.all.isdisjoint(said)):
            return False
        return self.matches.search(text) is not None


class _Table:
    """failures.yaml, with its texts by a word that a line with them surely has ("" where there is none)."""

    def __init__(self) -> None:
        given = read_yaml(__package__, "failures.yaml")
        self.failures = {f.name: f for f in map(Failure.model_validate, given["failures"])}
        self.suspicious, self.hardware = (
            [_Look(e) for e in given[key]] for key in ("suspicious", "hardware")
        )
        harmless = given["harmless"]
        self.warn = [row["contains"] for row in harmless["WARN"]]
        self.info = [parts(text) for texts in harmless["INFO"].values() for text in texts]
        self.other = [re.compile(row["matches"], re.IGNORECASE) for row in harmless["other"]]
        self.words = frozenset().union(*(look.any for look in self.suspicious))
        self.texts: dict[str, list[tuple[list[str], Row, Failure]]] = {}
        self.stated: dict[str, list[str]] = {}
        for failure in self.failures.values():
            for row, text in ((own, text) for own in failure.lines for text in own.contains):
                around = parts(text)
                self.texts.setdefault(_word(max(around, key=len)), []).append((around, row, failure))
            for text in (text for other in failure.instead for text in other.where):
                self.stated.setdefault(_word(text), []).append(text)

    def shown(self, text: str, said: set[str], *, started: bool, stage: Stage) -> list[Failure]:
        """The failures that TEXT with the words SAID shows."""
        found = {
            failure.name: failure
            for word in ("", *(self.texts.keys() & said))
            for around, row, failure in self.texts.get(word, ())
            if holds(text, around)
            and not (row.before_start and started)
            and (row.matches is None or row.matches.search(text))
            and stage in failure.stages
        }
        several = len(found) > 1
        return [failure for failure in found.values() if not (several and failure.fallback)]

    def is_suspicious(self, text: str, said: set[str], *, started: bool) -> bool:
        """Whether TEXT looks like an exit code, a kill, or, once the program has STARTED, another error."""
        if self.words.isdisjoint(said):
            return False
        looks = (look for look in self.suspicious if started or not look.after_start)
        return any(look.fits(text, said) for look in looks) and not self.is_harmless(text)

    def is_bad_state(self, text: str, said: set[str]) -> bool:
        """Whether TEXT speaks of a bad state of a GPU, an HCA, a switch or their drivers."""
        return any(look.fits(text, said) for look in self.hardware) and not self.is_harmless(text)

    def is_harmless(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self.other)

    def is_unknown(self, text: str, said: set[str], level: str | None, *, started: bool) -> bool:
        """Whether TEXT without a known failure may be one: any WARN that is not known to be harmless."""
        if level in INFORMING:
            if self.words.isdisjoint(said):
                return False
            text = text.partition(f"NCCL {level} ")[2]  # the name of a host says nothing
            harmless = any(holds(text, known) for known in self.info)
            return not harmless and self.is_suspicious(text, words(text), started=True)
        if level == "WARN" or text.startswith(LAST_WARNING):
            return not is_harmless_warning(text)
        return level is None and self.is_suspicious(text, said, started=started)


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


def is_harmless_warning(text: str) -> bool:
    """Whether TEXT is a WARN line after which a run goes on and measures the same."""
    return any(known in text for known in table().warn)


def words(text: str) -> set[str]:
    """The words of TEXT in lower case; names in mixed case are split."""
    return {word.lower() for word in WORDS.findall(text)}


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
    found = HOST.match(text)
    return found[1] if found else ""


def _word(text: str) -> str:
    """The longest word of TEXT that is surely whole in a line; a lower-case first word may be cut off."""
    found = WORDS.findall(text)
    return max((found[1:] if text[0].islower() else found) or found, key=len, default="").lower()


class LineRules:
    """Recognizes the lines of known failures while a log is read (a LineMatcher of busbar.judge.nccl.log)."""

    def __init__(self) -> None:
        self._found: dict[str, KnownLine] = {}
        self._unknown: dict[str, LogLine] = {}
        self._started = False
        self._stated: dict[str, set[str]] = {}

    def look(
        self, text: str, line: int, *, level: str | None = None, started: bool = True, stage: Stage = "before"
    ) -> bool:
        """Count every known failure in one cleaned line, and note unknown text that looks like one.

        False where there is neither, nor a text that decides between causes.
        """
        if started and not self._started:
            self._started = True
            self._found = {name: found for name, found in self._found.items() if not failure(name).retried}
        known, said = table(), words(text)
        stated = [t for word in known.stated.keys() & said for t in known.stated[word] if t in text]
        for each in stated:
            hosts = self._stated.setdefault(each, set())
            if len(hosts) < KEEP_HOSTS:
                hosts.add(host_of(text))
        shown = known.shown(text, said, started=started, stage=stage)
        for f in shown:
            first = LogLine(f.name, line, text[:EVIDENCE_WIDTH])
            new = KnownLine(f.name, f.severity, f.meaning, first, count=0)
            self._found.setdefault(f.name, new).count += 1
            if f.no_verdict:
                self._note(text, line, f.meaning)
        if shown or len(self._unknown) > MAX_UNKNOWN:
            return True
        if known.is_unknown(text, said, level, started=started):
            self._note(text, line, NOTED if level in INFORMING and stage == "before" else None)
        elif level is None and known.is_bad_state(text, said):
            self._note(text, line, BAD_STATE)
        else:
            return bool(stated)
        return True

    def _note(self, text: str, line: int, known: str | None) -> None:
        """Keep an unknown line and what is KNOWN of it; if there are too many, the last entry says so."""
        if known in SHOWN and len(self._unknown) >= MAX_UNKNOWN:
            return
        text = text[:EVIDENCE_WIDTH] if len(self._unknown) < MAX_UNKNOWN else ""
        self._unknown.setdefault(text, LogLine((text and known) or text, line, text))

    def known_lines(self) -> list[KnownLine]:
        """The known lines in the log: fatal ones first, each severity in order of lines."""
        order = {name: index for index, name in enumerate(SEVERITY_ORDER)}
        return sorted(self._found.values(), key=lambda k: (order[failure(k.name).severity], k.first.line))

    def stated(self) -> dict[str, set[str]]:
        """The texts of `instead` in the log, and the hosts that printed them."""
        return self._stated

    def unknown_lines(self) -> list[LogLine]:
        """Lines that look like a failure and are not known; "" stands for more than MAX_UNKNOWN."""
        return list(self._unknown.values())
