"""Messages that differ in digits only are matched alike: what was learned from one of them holds for all."""

from __future__ import annotations

import random
import re

import pytest

from busbar.nccl.log import patterns as p
from busbar.nccl.log.facts import FACTS
from busbar.nccl.log.shapes import SHAPE
from tests.unit.nccl.logs import Made
from tests.unit.nccl.made.log import Log
from tests.unit.nccl.made.spec import cases

PATTERNS = {fact.contains: fact.pattern for fact in FACTS} | {
    "an edge": p.EDGE,
    "a process": p.PROCESS,
    # those that hold `via ` are not looked for by shape: they name P2P
    **{text: pattern for text, pattern in p.UNREAD_PATTERNS if text != "via "},
}
# \d, {1,20} and the like say nothing of one digit
ANY_DIGIT = re.compile(r"\\d|\{\d*,?\d*\}|0-9")


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_names_no_digit(name: str) -> None:
    assert re.search(r"\d", ANY_DIGIT.sub("", PATTERNS[name].pattern)) is None


def messages() -> set[str]:
    """Messages of made logs."""
    lines = [*Made().lines(), *(line for case in cases().values() for line in Log(case).lines)]
    return {line.partition(" NCCL INFO ")[2] for line in lines if " NCCL INFO " in line}


@pytest.mark.parametrize("name", PATTERNS)
def test_other_digits_are_matched_at_the_same_places(name: str) -> None:
    rng, pattern = random.Random(1), PATTERNS[name]
    for text in messages():
        shape = text.encode().translate(SHAPE).decode()
        other = "".join(rng.choice("0123456789") if c == "0" else c for c in shape)
        found = [[m.regs for m in pattern.finditer(x)] for x in (text, shape, other)]
        assert found[0] == found[1] == found[2], text
