"""Mutants of good logs whose parts contradict each other: table, arguments, device list, NCCL's own counts.

As in mutants.py: each operator takes lines and a random generator, and returns lines; where a log has nothing
that it could change, it returns them as they are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from tests.unit.judge.nccl.mutants import EDGE, FATAL, Mutate, edges

ROW = re.compile(r"\d+ +\d+ +float +(?:sum|none) +-?\d+(?P<values>(?: +\S+){8}) *$")
RANK = re.compile(r"# +Rank +(\d+) ")
HOST = re.compile(r"(?<= on )( *)\S+(?= +device)")
NUMBER = re.compile(r"\S+")
TIME, ALGBW, BUSBW, ERRORS = (0, 4), (1, 5), (2, 6), (3, 7)
MEBI = 2**20


def rows(lines: list[str]) -> list[int]:
    """Positions of the rows that are printed whole."""
    return [i for i, line in enumerate(lines) if ROW.search(line)]


def one(pattern: str, *new: str) -> Mutate:
    """An operator that puts one of NEW in the place of PATTERN, in one line."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        if not found:
            return lines
        at = rng.choice(found)
        return [*lines[:at], re.sub(pattern, rng.choice(new), lines[at], count=1), *lines[at + 1 :]]

    return mutate


def field(columns: tuple[int, int], change: Callable[[str, random.Random], str], least: int = 0) -> Mutate:
    """An operator that changes one number of a row of LEAST bytes or more."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        sizes = {i: int(m[0].split()[0]) for i in rows(lines) if (m := ROW.search(lines[i]))}
        found = [i for i, size in sizes.items() if size >= least]
        if not found:
            return lines
        at = rng.choice(found)
        match = ROW.search(lines[at])
        assert match is not None
        start, end = [m.span() for m in NUMBER.finditer(lines[at], match.start("values"))][
            rng.choice(columns)
        ]
        new = lines[at][:start] + change(lines[at][start:end], rng) + lines[at][end:]
        return [*lines[:at], new, *lines[at + 1 :]]

    return mutate


def _digit(text: str, rng: random.Random) -> str:
    """Another digit, but for the last one, which is rounded."""
    places = [i for i, c in enumerate(text[:-1]) if c.isdigit()]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + rng.choice([d for d in "0123456789" if d != text[at]]) + text[at + 1 :]


def _both_ends(change: Callable[[str], str]) -> Mutate:
    """An operator that changes a link alike at its sender and its receiver."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = {i: m.group(1, 2, 3) for i in edges(lines) if (m := EDGE.search(lines[i]))}
        link = rng.choice(list(found.values()))
        return [change(line) if found.get(i) == link else line for i, line in enumerate(lines)]

    return mutate


def _next_gpu(match: re.Match[str]) -> str:
    rank = int(match[2])
    return f"{match[1]}{rank - rank % 8 + (rank + 3) % 8}"


def _swap_rows(lines: list[str], rng: random.Random) -> list[str]:
    new, (a, b) = list(lines), rng.sample(rows(lines), 2) if len(rows(lines)) > 1 else (0, 0)
    new[a], new[b] = new[b], new[a]
    return new


def _swap_listed_hosts(lines: list[str], rng: random.Random) -> list[str]:
    """Two ranks of different hosts change places in the device list."""
    hosts = {i: m[0] for i, line in enumerate(lines) if RANK.search(line) and (m := HOST.search(line))}
    here = rng.choice(list(hosts))
    there = rng.choice([i for i in hosts if hosts[i].strip() != hosts[here].strip()])
    new = list(lines)
    new[here] = HOST.sub(hosts[there], lines[here])
    new[there] = HOST.sub(hosts[here], lines[there])
    return new


def _one_direction(lines: list[str], rng: random.Random) -> list[str]:
    """All sending or all receiving edges of one channel are missing."""
    found = {i: m.group(1, 4) for i in edges(lines) if (m := EDGE.search(lines[i]))}
    lost = rng.choice(list(found.values()))
    return [line for i, line in enumerate(lines) if found.get(i) != lost]


def _inside_an_edge(text: str) -> Mutate:
    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        at = rng.choice(edges(lines))
        line = lines[at]
        where = rng.randrange(line.index("Channel"), len(line))
        process = re.search(r"[A-Za-z][\w.\-]*:\d+:\d+ \[\d+\] ", line)
        assert process is not None
        return [*lines[:at], line[:where] + process[0] + text + line[where:], *lines[at + 1 :]]

    return mutate


def _cut(lines: list[str], rng: random.Random) -> list[str]:
    """The log ends at any byte before its summary."""
    last = max(i for i, line in enumerate(lines) if "Avg bus bandwidth" in line)
    text = "\n".join(lines[:last])
    return text[: rng.randrange(1, len(text))].split("\n")


CONTRADICTIONS: dict[str, Mutate] = {
    "a last column that is no count": field(ERRORS, lambda _, rng: rng.choice(("nan", "-1", "inf", "-0"))),
    "a wrong value beside `0 OK`": field(ERRORS, lambda _, rng: rng.choice(("1", "123456"))),
    "a measurement that was not compared": field(ERRORS, lambda *_: "N/A"),
    "a digit of the time": field(TIME, _digit, MEBI),
    "a digit of algbw": field(ALGBW, _digit, MEBI),
    "a digit of busbw": field(BUSBW, _digit, MEBI),
    "a bandwidth that is none": field(BUSBW, lambda x, rng: rng.choice(("nan", "inf", f"{x}%", f"{x}GB"))),
    "rows in another order": _swap_rows,
    "no iterations": one(r"(?<!warmup )(?<!agg )\biters: \d+", "iters: 0"),
    "more GPUs per process": one(r"nGpus(\(perProc\))? 1 ", r"nGpus\1 2 ", r"nGpus\1 8 "),
    "no validation": one("validation: 1", "validation: 0"),
    "a summary that is not OK": one("(values *:) 0 OK", r"\1 0 OKAY", r"\1 3 OK", r"\1 0 FAILED", r"\1 0"),
    "an average that is not a number": one(
        r"(bandwidth +: )\S+", r"\1nan", r"\1inf", r"\1N/A", r"\g<1>96,4945"
    ),
    "the unit of one column": one(r"\(GB/s\)", "(Gb/s)", "(MB/s)", "(GiB/s)", "(Gbps)", "(Gbit/s)", "(GB)"),
    "the unit of the time": one(r"\(us\)", "(ms)", "(ns)", "(sec)"),
    "the unit of the sizes": one(r"# +\(B\)", "# (MB)", "# (KiB)"),
    "listed on another host": _swap_listed_hosts,
    "a listed pid": one(r"(?<=Pid) +\d+", " 7654321"),
    "another target at both ends": _both_ends(lambda line: re.sub(r"(-> )(\d+)", _next_gpu, line)),
    "another source at both ends": _both_ends(lambda line: re.sub(r"( : )(\d+)", _next_gpu, line)),
    "another connection at both ends": _both_ends(lambda line: re.sub(r"(Channel \d+)/0", r"\1/1", line)),
    "directions swapped at both ends": _both_ends(
        lambda line: line.replace("[receive]", "[x]").replace("[send]", "[receive]").replace("[x]", "[send]")
    ),
    "a channel in one direction": _one_direction,
    "another rank that came up": one(r"rank \d+ (nranks \d+ .*Init COMPLETE)", r"rank 99 \1"),
    "another count of ranks on a host": one(r"localRanks \d+", "localRanks 4", "localRanks 16"),
    "another count of hosts": one(r"nNodes \d+", "nNodes 1", "nNodes 3"),
    "a fatal warning inside an edge": _inside_an_edge(FATAL),
    "cut at any byte": _cut,
}
