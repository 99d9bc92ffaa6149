"""Mutants of good logs: operators on lines that keep everything else as it was.

Each operator takes lines and a random generator, and returns lines; `EDGE` marks a message on an edge
between hosts. A test says which operators must cost a log its pass.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.support import shared
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

Mutate = Callable[[list[str], random.Random], list[str]]
EDGE = re.compile(r"Channel (\d+)(?:/0)? : (\d+)\[\w+\] -> (\d+)\[\w+\] \[(send|receive)\] via NET/")
# passing logs, each with its profile
GOOD = {
    "made": "h100-ib-8x400",
    "the reference system, every line tagged": "h100-crusoe",
    "tags in the middle of rows": "efa",
}
REAL_GOOD = {"084": "h100-crusoe", "006": "efa", "030": "efa-p4d"}


def each(made: dict[str, str], real: dict[str, str]) -> list[Any]:
    """Logs and their profiles, for parametrize. All but the first, which is the shortest, are slow."""
    first, *others = made.items()
    return [
        pytest.param(*first),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in others),
        *(pytest.param(*item, marks=[pytest.mark.slow, pytest.mark.shared]) for item in real.items()),
    ]


EVERY = each(GOOD, REAL_GOOD)


@cache
def base(name: str) -> tuple[str, ...]:
    """Lines of a log: the small one, one of made/cases, or a real one."""
    if name == "made":
        return tuple(Made().lines())
    if name in cases():
        return tuple(Log(cases()[name]).lines)
    return tuple(shared.log(name).read_text("utf-8", "replace").splitlines())


def edges(lines: list[str]) -> list[int]:
    """Positions of the edges between hosts."""
    return [i for i, line in enumerate(lines) if EDGE.search(line)]


def some(positions: list[int], rng: random.Random) -> set[int]:
    """One, a few or many of POSITIONS."""
    return set(rng.sample(positions, min(len(positions), rng.choice((1, 1, 2, 5, len(positions) // 2 + 1)))))


def at_edges(change: Callable[[str], str]) -> Mutate:
    """An operator that changes the text of some edges."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        chosen = some(edges(lines), rng)
        return [change(line) if i in chosen else line for i, line in enumerate(lines)]

    return mutate


def without(choose: Callable[[re.Match[str], random.Random], object]) -> Mutate:
    """An operator that drops all edges of which CHOOSE says the same as of a random one."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = {i: choose(m, rng) for i, line in enumerate(lines) if (m := EDGE.search(line))}
        key = found[rng.choice(list(found))]
        return [line for i, line in enumerate(lines) if found.get(i, not key) != key]

    return mutate


def _upper_half(lines: list[str], rng: random.Random) -> list[str]:
    found = {i: int(m[1]) for i, line in enumerate(lines) if (m := EDGE.search(line))}
    limit = (max(found.values()) + 1) // 2
    keep_upper = rng.random() < 0.5
    return [line for i, line in enumerate(lines) if i not in found or (found[i] >= limit) == keep_upper]


def _delete(lines: list[str], rng: random.Random) -> list[str]:
    chosen = some(edges(lines), rng)
    return [line for i, line in enumerate(lines) if i not in chosen]


def _behind_the_table(lines: list[str], rng: random.Random) -> list[str]:
    chosen = some(edges(lines), rng)
    rest = [line for i, line in enumerate(lines) if i not in chosen]
    return rest + [lines[i] for i in sorted(chosen)]


def _other_process(lines: list[str], rng: random.Random) -> list[str]:
    pid = str(rng.randint(2_000_000, 3_000_000))
    return at_edges(lambda line: re.sub(r"(\w):\d+:(\d+) \[", rf"\1:{pid}:\2 [", line))(lines, rng)


def _swap_hosts(lines: list[str], rng: random.Random) -> list[str]:
    names = sorted({m[1] for line in lines if (m := re.search(r"([\w.\-]+):\d+:\d+ \[\d+\] NCCL", line))})
    here, there = rng.sample(names, 2)
    swap = {here: there, there: here}
    pattern = re.compile(rf"({re.escape(here)}|{re.escape(there)})(?=:\d+:\d+ \[)")
    return at_edges(lambda line: pattern.sub(lambda m: swap[m[1]], line))(lines, rng)


def _glue(behind: bool, text: str) -> Mutate:
    """TEXT, a message of its own, in the line of an edge or of anything else."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = [i for i, line in enumerate(lines) if "NCCL INFO" in line]
        at = rng.choice(edges(lines) if rng.random() < 0.7 else found)
        message = f"{re.findall(r'[A-Za-z][A-Za-z0-9.-]*:[0-9]+:[0-9]+ .[0-9]+. ', lines[at])[0]}{text}"
        new = lines[at] + message if behind else message + lines[at]
        return [*lines[:at], new, *lines[at + 1 :]]

    return mutate


def _inside_a_row(text: str) -> Mutate:
    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        rows = [i for i, line in enumerate(lines) if re.search(r"\d +\d+ +float +sum ", line)]
        at = rng.choice(rows)
        head, redop, rest = lines[at].partition(" sum")
        return [*lines[:at], head + redop + text, rest, *lines[at + 1 :]]

    return mutate


def _token(old: str, *new: str) -> Mutate:
    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        value = rng.choice(new)
        return at_edges(lambda line: line.replace(old, value))(lines, rng)

    return mutate


def _scramble(lines: list[str], rng: random.Random) -> list[str]:
    """One character of one edge, from its channel on, but for its device: another is as good."""
    at = rng.choice(edges(lines))
    line = lines[at].rstrip()
    device = re.search(r"NET/[^/]+/(\d+(?:\(\d+\))?)", line)
    assert device is not None
    places = [i for i in range(line.index("Channel"), len(line)) if not device.start(1) <= i < device.end(1)]
    where = rng.choice(places)
    other = rng.choice([c for c in "0123456789xX#é٣" if c != line[where]])
    return [*lines[:at], line[:where] + other + line[where + 1 :], *lines[at + 1 :]]


def _other_device(lines: list[str], rng: random.Random) -> list[str]:
    """One end of one edge names another device, which other edges use."""
    devices = sorted({m[1] for line in lines if (m := re.search(r" via NET/[^/]+/(\d+)", line))})
    at = rng.choice(edges(lines))
    found = re.search(r" via NET/[^/]+/(\d+)", lines[at])
    assert found is not None
    other = rng.choice([device for device in devices if device != found[1]])
    new = lines[at][: found.start(1)] + other + lines[at][found.end(1) :]
    return [*lines[:at], new, *lines[at + 1 :]]


def _other_unit(lines: list[str], rng: random.Random) -> list[str]:
    unit = rng.choice(("(Gb/s)", "(MB/s)", "(GiB/s)"))
    return [line.replace("(GB/s)", unit) for line in lines]


def _other_communicator(lines: list[str], rng: random.Random) -> list[str]:
    """One message names a communicator of another size."""
    found = [i for i, line in enumerate(lines) if re.search(r" n[rR]anks \d+ ", line)]
    if not found:
        return lines
    at = rng.choice(found)
    new = re.sub(r"( n[rR]anks )\d+", rf"\g<1>{rng.choice((2, 8, 24, 64))}", lines[at])
    return [*lines[:at], new, *lines[at + 1 :]]


def _last_digits(lines: list[str], rng: random.Random) -> list[str]:
    digits = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
    return at_edges(lambda x: x[: x.index("Channel")] + x[x.index("Channel") :].translate(digits))(lines, rng)


SOCKET_EDGE = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"
NO_GDR_EDGE = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"
FATAL = (
    "transport/net_ib.cc:99 NCCL WARN NET/IB: Got completion from peer 10.0.0.5<5> with status=12 opcode=1"
)

# operators after which a log proves its transport no longer
AGAINST: dict[str, Mutate] = {
    "edges are deleted": _delete,
    "a channel is deleted": without(lambda m, _: int(m[1])),
    "a link is deleted, both ends": without(lambda m, _: m.group(1, 2, 3)),
    "one direction is deleted": without(lambda m, _: m[4]),
    "a sender's edges are deleted": without(lambda m, _: m[2]),
    "half of the channels is deleted": _upper_half,
    "edges are printed behind the table": _behind_the_table,
    "edges are of a process that is not listed": _other_process,
    "edges are of another host": _swap_hosts,
    "GDRDMA with more letters": _token("/GDRDMA", "/GDRDMA_OFF", "/GDRDMAX", "/gdrdma", "/GDRDM", ""),
    "edges over TCP": lambda lines, rng: at_edges(
        lambda line: re.sub(r"NET/[^/]+/(\d+).*", r"NET/Socket/\1", line)
    )(lines, rng),
    "edges over an unknown network": lambda lines, rng: at_edges(
        lambda line: re.sub(r"NET/[^/]+/", "NET/Ib/", line)
    )(lines, rng),
    "edges in other words": _token(" via ", " over ", " VIA ", " via  "),
    "edges of another level": _token("NCCL INFO", "NCCL  INFO", "NCCL INF0", "NCC INFO", "NCCL TRACE"),
    "a changed character": _scramble,
    "another device at one end": _other_device,
    "another unit in the header": _other_unit,
    "another number of ranks in one message": _other_communicator,
    "digits that are not ASCII": _last_digits,
    "TCP behind a message": _glue(True, SOCKET_EDGE),
    "TCP before a message": _glue(False, SOCKET_EDGE),
    "no GPUDirect behind a message": _glue(True, NO_GDR_EDGE),
    "no GPUDirect before a message": _glue(False, NO_GDR_EDGE),
    "a network behind a message": _glue(True, "NCCL INFO Using network Socket"),
    "a network before a message": _glue(False, "NCCL INFO Using network Socket"),
    "a fatal warning behind a message": _glue(True, FATAL),
    "a fatal warning before a message": _glue(False, FATAL),
    "TCP inside a row": _inside_a_row(f"worker-0:40:90 [0] {SOCKET_EDGE}"),
    "a fatal warning inside a row": _inside_a_row(f"worker-0:40:90 [0] {FATAL}"),
}
