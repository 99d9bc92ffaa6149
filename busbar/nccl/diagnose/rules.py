"""The rules of rules.yaml: known failures, told by a line or by the log as a whole."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from busbar.nccl.checks.codes import Code
from busbar.nccl.log.matcher import KnownLine
from busbar.nccl.log.records import LogLine

Severity = Literal["fatal", "degraded", "note"]
Observation = Literal["shared-memory-edge", "different-networks"]
Kind = Literal["cause", "crash", "peer", "symptom", "echo"]  # as rules.yaml explains
SEVERITY_ORDER: tuple[Severity, ...] = ("fatal", "degraded", "note")
EVIDENCE_WIDTH = 400


class Rule(BaseModel):
    """One known failure. It is told by lines (`contains`), by the codes of gates, or by an observation."""

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

    @field_validator("matches", mode="before")
    @classmethod
    def _bounded(cls, value: object) -> object:
        # `.*` from each of many beginnings costs quadratic time
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
    text = resources.files("busbar.nccl.diagnose").joinpath("rules.yaml").read_text(encoding="utf-8")
    # libyaml's parser where PyYAML has it: start-up is about 8 times faster
    entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(Rule.model_validate(entry) for entry in entries)


@cache
def rule(name: str) -> Rule:
    """The rule NAME. Raises KeyError."""
    return {r.name: r for r in rules()}[name]


@cache
def _by_literal() -> dict[str, tuple[int, ...]]:
    """A text that a rule's lines contain -> positions of those rules."""
    literals = sorted({text for r in rules() for text in r.contains})
    return {text: tuple(i for i, r in enumerate(rules()) if text in r.contains) for text in literals}


class LineRules:
    """Recognizes the lines of known failures while a log is read (a LineMatcher of busbar.nccl.log)."""

    def __init__(self) -> None:
        self._found: dict[str, KnownLine] = {}

    def look(self, text: str, line: int) -> None:
        """Count every known failure in one cleaned line."""
        # 85 searches for a literal are quicker than one for a pattern of 85 alternatives
        for position in sorted({i for some, at in _by_literal().items() if some in text for i in at}):
            r = rules()[position]
            if r.matches is not None and r.matches.search(text) is None:
                continue
            found = self._found.get(r.name)
            if found is None:
                first = LogLine(r.name, line, text[:EVIDENCE_WIDTH])
                found = self._found[r.name] = KnownLine(r.name, r.severity, r.meaning, first, count=0)
            found.count += 1

    def known_lines(self) -> list[KnownLine]:
        """What was found: fatal ones first, each severity in order of lines."""
        order = {name: index for index, name in enumerate(SEVERITY_ORDER)}
        return sorted(self._found.values(), key=lambda k: (order[rule(k.name).severity], k.first.line))
