"""The rules of rules.yaml and info.yaml: known failures, recognized by a line or by the log as a whole."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from busbar.judge.nccl.checks.codes import Code
from busbar.judge.nccl.diagnose import endings, load
from busbar.judge.nccl.log.evidence import KEEP_HOSTS
from busbar.judge.nccl.log.matcher import BAD_STATE, NOTED, SHOWN, KnownLine, Stage
from busbar.judge.nccl.log.records import LogLine

Severity = Literal["fatal", "degraded", "note"]
Observation = Literal[
    "shared-memory-edge", "different-networks", "uneven-ranks", "edges-without-gdr", "tcp-edges",
    "gap-between-rows", "nvls-lost", "ranks-not-destroyed", "few-iterations",
]  # fmt: skip
Kind = Literal["cause", "crash", "peer", "symptom", "echo"]  # as rules.yaml explains
SEVERITY_ORDER: tuple[Severity, ...] = ("fatal", "degraded", "note")
EVIDENCE_WIDTH = 400
MAX_UNKNOWN = 1024
# The levels of a message that may report a failure without being a warning; ATTN exists since NCCL 2.32.
INFORMING = ("INFO", "ATTN")
VALUE = re.compile(r"%[\d.]*(?:l{0,2}|z)[a-z]")  # %s, %d, %lx
HOST = re.compile(r"([\w.\-]{1,255}):\d+:\d+ \[")
LAST_WARNING = "# error: "  # of NCCL, as nccl-tests 2.17.3 and later print it at the end


class Instead(BaseModel):
    """Another cause and fix, where the log holds a text of `where`, on the failure's host if it is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    where: tuple[str, ...]
    cause: str
    next: str


class Rule(BaseModel):
    """One known failure, recognized by lines (`contains`), by the codes of gates, or by an observation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: Severity
    meaning: str
    cause: str
    next: str
    contains: tuple[str, ...] = Field(default=(), description="texts of which a line must hold one")
    matches: re.Pattern[str] | None = Field(default=None, description="what such a line must match besides")
    example: str | None = None
    codes: tuple[Code, ...] = Field(default=(), description="codes of which a gate must have given one")
    unless: tuple[Code, ...] = Field(default=(), description="codes that no gate may have given")
    observed: Observation | None = None
    kind: Kind | None = Field(default=None, description="None: cause for lines, symptom for the rest")
    explains: tuple[str, ...] = Field(default=(), description="failures that follow from this one")
    no_verdict: bool = Field(default=False, description="what its lines mean for the numbers is not known")
    stages: tuple[Stage, ...] = Field(
        default=("before", "table", "after"), description="where its lines count"
    )
    retried: bool = Field(default=False, description="no failure where the program starts after it")
    fallback: bool = Field(default=False, description="only for a line that no other rule knows")
    instead: tuple[Instead, ...] = Field(default=(), description="the first that the log shows counts")

    @field_validator("contains", mode="before")
    @classmethod
    def _of_all_sources(cls, value: object) -> object:
        return [text for texts in value.values() for text in texts] if isinstance(value, dict) else value

    @field_validator("matches", mode="before")
    @classmethod
    def _bounded(cls, value: object) -> object:
        # `.*` after each of many possible beginnings takes quadratic time
        return value.replace(".*", f".{{0,{EVIDENCE_WIDTH}}}") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_condition(self) -> Rule:
        if sum(map(bool, (self.contains, self.codes, self.observed))) != 1:
            raise ValueError(f"rule {self.name}: give one of contains, codes, observed")
        if bool(self.contains) != bool(self.example):
            raise ValueError(f"rule {self.name}: a rule on lines, and no other, has an example")
        return self

    @property
    def effective_kind(self) -> Kind:
        """`kind`, or its default."""
        return self.kind or ("cause" if self.contains else "symptom")


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in file order."""
    lines: dict[str, list[endings.Ending]] = {}
    for row in (row for rows in endings.known().values() for row in rows):
        lines.setdefault(row.rule, []).append(row)
    return tuple(Rule.model_validate(_with_lines(e, lines.pop(e["name"], []))) for e in _entries())


def _entries() -> list[dict[str, Any]]:
    return [*load("rules.yaml"), *load("info.yaml")["rules"]]


def _with_lines(entry: dict[str, Any], rows: list[endings.Ending]) -> dict[str, Any]:
    """ENTRY with the texts and the first example of its ROWS of endings.yaml."""
    if not rows or "contains" in entry:
        return entry
    return {**entry, "contains": [row.contains for row in rows], "example": rows[0].example}


@cache
def rule(name: str) -> Rule:
    """The rule NAME. Raises KeyError."""
    return {r.name: r for r in rules()}[name]


@cache
def _by_word() -> dict[str, list[tuple[list[str], Rule]]]:
    """A word in a text that a rule's lines contain ("" if none is surely whole) -> its parts, and rule."""
    found: dict[str, list[tuple[list[str], Rule]]] = {}
    for own in (rule(entry["name"]) for entry in _entries() if "contains" in entry):
        for some in map(parts, own.contains):
            found.setdefault(_whole_word(max(some, key=len)), []).append((some, own))
    return found


def parts(text: str) -> list[str]:
    """What stands around the values (%s, %d) of TEXT."""
    return [part for part in VALUE.split(text) if part.strip()]


def holds(line: str, wanted: list[str]) -> bool:
    """Whether LINE has all that is WANTED, in this order."""
    at = 0
    for part in wanted:
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@cache
def _harmless_info() -> list[list[str]]:
    return [parts(text) for texts in load("info.yaml")["harmless"].values() for text in texts]


@cache
def _statements() -> dict[str, list[str]]:
    """A word -> the texts of `instead` that hold it."""
    found: dict[str, list[str]] = {}
    for text in (text for each in rules() for other in each.instead for text in other.where):
        found.setdefault(_whole_word(text), []).append(text)
    return found


@cache
def _any_word() -> frozenset[str]:
    """Return the words, one of which is in every line that shows anything and is not a WARN."""
    return endings.any_word().union(_by_word(), _statements())


def host_of(text: str) -> str:
    """The host in a message of NCCL; "" where there is none."""
    found = HOST.match(text)
    return found[1] if found is not None else ""


def _whole_word(text: str) -> str:
    """The longest word of TEXT that is surely whole in a line; a lower-case first word may be cut off."""
    found = endings.WORDS.findall(text)
    return max(found[1:] if text[0].islower() else found, key=len, default="").lower()


def is_harmless_warning(text: str) -> bool:
    """Whether TEXT is a WARN line after which a run goes on and measures the same."""
    return any(row["contains"] in text for row in load("warnings.yaml"))


def _is_unknown(text: str, said: set[str], level: str | None, *, started: bool) -> bool:
    """Whether TEXT without a known failure may be one: any WARN that is not known to be harmless."""
    if level in INFORMING:
        if endings.says_nothing(said):
            return False
        said = endings.words(text := text.partition(f"NCCL {level} ")[2])  # the name of a host says nothing
        return endings.looks_like_one(text, said, started=True) and not any(
            holds(text, known) for known in _harmless_info()
        )
    if level == "WARN" or text.startswith(LAST_WARNING):
        return not is_harmless_warning(text)
    return level is None and endings.looks_like_one(text, said, started=started)


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
            self._found = {name: found for name, found in self._found.items() if not rule(name).retried}
        said = endings.words(text)
        wordless = any(some[0] in text for some, _ in _by_word().get("", ()))
        if level != "WARN" and said.isdisjoint(_any_word()) and not wordless:
            return False
        names = {
            r.name
            for word in ("", *said.intersection(_by_word()))
            for some, r in _by_word().get(word, ())
            if (some[0] in text if len(some) == 1 else holds(text, some))
            and (r.matches is None or r.matches.search(text))
            and stage in r.stages
        }
        names |= endings.find(text, said, started=started)
        if len(names) > 1:
            names = {name for name in names if not rule(name).fallback}
        stated = [t for word in said.intersection(_statements()) for t in _statements()[word] if t in text]
        for some in stated:
            hosts = self._stated.setdefault(some, set())
            if len(hosts) < KEEP_HOSTS:
                hosts.add(host_of(text))
        for name in names:
            self._count(rule(name), text, line)
            if rule(name).no_verdict:
                self._note(text, line, rule(name).meaning)
        if names or len(self._unknown) > MAX_UNKNOWN:
            return True
        if _is_unknown(text, said, level, started=started):
            self._note(text, line, NOTED if level in INFORMING and stage == "before" else None)
        elif level is None and endings.is_bad_state(text, said):
            self._note(text, line, BAD_STATE)
        else:
            return bool(stated)
        return True

    def _count(self, r: Rule, text: str, line: int) -> None:
        found = self._found.get(r.name)
        if found is None:
            first = LogLine(r.name, line, text[:EVIDENCE_WIDTH])
            found = self._found[r.name] = KnownLine(r.name, r.severity, r.meaning, first, count=0)
        found.count += 1

    def _note(self, text: str, line: int, known: str | None) -> None:
        """Keep an unknown line and what is KNOWN of it; if there are too many, the last entry says so."""
        if known in SHOWN and len(self._unknown) >= MAX_UNKNOWN:
            return
        text = text[:EVIDENCE_WIDTH] if len(self._unknown) < MAX_UNKNOWN else ""
        self._unknown.setdefault(text, LogLine((text and known) or text, line, text))

    def known_lines(self) -> list[KnownLine]:
        """The known lines in the log: fatal ones first, each severity in order of lines."""
        order = {name: index for index, name in enumerate(SEVERITY_ORDER)}
        return sorted(self._found.values(), key=lambda k: (order[rule(k.name).severity], k.first.line))

    def stated(self) -> dict[str, set[str]]:
        """The texts of `instead` in the log, and the hosts that printed them."""
        return self._stated

    def unknown_lines(self) -> list[LogLine]:
        """Lines that look like a failure and are not known; "" stands for more than MAX_UNKNOWN."""
        return list(self._unknown.values())
