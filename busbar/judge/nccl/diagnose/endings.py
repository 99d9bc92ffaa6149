"""Lines by which a run ends with an error: known ones, and others that look like one (endings.yaml)."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from busbar.judge.nccl.diagnose import load

# sbatch -> sbatch; OOMKilled -> OOM, Killed
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
TRIED_AGAIN = ("lost connection", "reported error")


def words(text: str) -> set[str]:
    """The words of TEXT in lower case; names in mixed case are split."""
    return {word.lower() for word in WORDS.findall(text)}


class Ending(BaseModel):
    """A known line, which belongs to `rule` of rules.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: str
    example: str
    contains: str
    matches: re.Pattern[str] | None = None
    before_start: bool = False


@cache
def known() -> dict[str, tuple[Ending, ...]]:
    """Origin -> its rows of endings.yaml."""
    return {
        origin: tuple(map(Ending.model_validate, rows))
        for origin, rows in load("endings.yaml")["known"].items()
    }


@cache
def _by_word() -> dict[str, list[Ending]]:
    """The longest word that a line must contain -> rows."""
    found: dict[str, list[Ending]] = {}
    for row in (row for rows in known().values() for row in rows):
        found.setdefault(max(sorted(words(row.contains)), key=len), []).append(row)
    return found


def find(text: str, said: set[str], *, started: bool) -> set[str]:
    """Rules that TEXT with the words SAID shows. STARTED: the program had printed something before it."""
    return {
        row.rule
        for word in said.intersection(_by_word())
        for row in _by_word()[word]
        if row.contains in text
        and not (row.before_start and started)
        and (row.matches is None or row.matches.search(text) is not None)
    }


class _Kind:
    """An entry of `unknown` in endings.yaml."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.any = frozenset(entry["any"])
        self.all = frozenset(entry.get("and", ()))
        self.matches = re.compile(entry.get("matches", ""), re.IGNORECASE)

    def fits(self, text: str, said: set[str]) -> bool:
        """Whether TEXT with the words SAID is of this kind."""
        if self.any.isdisjoint(said) or (self.all and self.all.isdisjoint(said)):
            return False
        return self.matches.search(text) is not None


@cache
def _unknown() -> dict[str, list[_Kind]]:
    return {
        name: [_Kind(entry) for entry in entries] for name, entries in load("endings.yaml")["unknown"].items()
    }


@cache
def _hardware() -> list[_Kind]:
    return [_Kind(entry) for entry in load("endings.yaml")["hardware"]]


def is_bad_state(text: str, said: set[str]) -> bool:
    """Whether TEXT with the words SAID speaks of a bad state of a GPU, an HCA, a switch or their drivers."""
    return any(kind.fits(text, said) for kind in _hardware()) and not _is_harmless(text)


@cache
def _any_word() -> frozenset[str]:
    return frozenset().union(*(kind.any for kinds in _unknown().values() for kind in kinds))


@cache
def any_word() -> frozenset[str]:
    """The words of which a line has one if it is known, looks like a failure or speaks of a bad state."""
    return _any_word().union(_by_word(), *(kind.any for kind in _hardware()))


def says_nothing(said: set[str]) -> bool:
    """Whether none of the words SAID is one of a failure."""
    return _any_word().isdisjoint(said)


@cache
def _harmless() -> list[re.Pattern[str]]:
    return [re.compile(row["matches"], re.IGNORECASE) for row in load("endings.yaml")["harmless"]]


def looks_like_one(text: str, said: set[str], *, started: bool) -> bool:
    """Whether TEXT with the words SAID looks like an exit code, a kill, a lost connection or another error.

    A lost connection or an error before the program has STARTED does not count: it is retried.
    """
    if says_nothing(said):
        return False
    fits = any(
        kind.fits(text, said)
        for name, kinds in _unknown().items()
        if started or name not in TRIED_AGAIN
        for kind in kinds
    )
    return fits and not _is_harmless(text)


def _is_harmless(text: str) -> bool:
    return any(pattern.search(text) for pattern in _harmless())
