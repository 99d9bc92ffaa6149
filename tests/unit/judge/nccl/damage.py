"""Good logs, damaged by one operator each: what is left proves no transport, or contradicts itself.

An operator takes lines and a random generator, and returns lines. Where a log has nothing that it could
change, it returns them as they are.
"""

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

Mutate = Callable[[list[str], random.Random], list[str]]
EDGE = re.compile(r"Channel (\d+)(?:/0)? : (\d+)\[\w+\] -> (\d+)\[\w+\] \[(send|receive)\] via NET/")
ROW = re.compile(r"\d+ +\d+ +float +(?:sum|none) +-?\d+(?P<values>(?: +\S+){8}) *$")
RANK = re.compile(r"# +Rank +(\d+) ")
HOST = re.compile(r"(?<= on )( *)\S+(?= +device)")
TIME, ALGBW, BUSBW, ERRORS = (0, 4), (1, 5), (2, 6), (3, 7)
MEBI = 2**20
# Passing logs, each with its profile.
GOOD = {
    "made": "h100-ib-8x400",
    "the reference system, every line tagged": "h100-crusoe",
    "tags in the middle of rows": "efa",
}


def each(logs: dict[str, str]) -> list[Any]:
    """Logs and their profiles, for parametrize. All but the first, which is the shortest, are slow."""
    first, *others = logs.items()
    return [pytest.param(*first), *(pytest.param(*item, marks=pytest.mark.slow) for item in others)]


@cache
def base(name: str) -> tuple[str, ...]:
    """Lines of a log: the small one, or one of made/cases."""
    return tuple(Made(communicator=True).lines() if name == "made" else Log(cases()[name]).lines)


def holding(pattern: str | re.Pattern[str]) -> Callable[[list[str]], list[int]]:
    """Positions of the lines that have PATTERN."""
    return lambda lines: [i for i, line in enumerate(lines) if re.search(pattern, line)]


edges, rows = holding(EDGE), holding(ROW)  # rows that are printed whole


def some(positions: list[int], rng: random.Random) -> set[int]:
    """One, a few or many of POSITIONS."""
    return set(rng.sample(positions, min(len(positions), rng.choice((1, 1, 2, 5, len(positions) // 2 + 1)))))


def at_one(choose: Callable[[list[str]], list[int]], change: Callable[[str, random.Random], str]) -> Mutate:
    """An operator that changes one of the chosen lines; a line end in what becomes of it makes two."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = choose(lines)
        if not found:
            return lines
        at = rng.choice(found)
        return [*lines[:at], *change(lines[at], rng).split("\n"), *lines[at + 1 :]]

    return mutate


def in_a_line(pattern: str, *new: str) -> Mutate:
    """An operator that puts one of NEW in the place of PATTERN, in one line."""
    return at_one(holding(pattern), lambda line, rng: re.sub(pattern, rng.choice(new), line, count=1))


def in_edges(pattern: str, *new: str) -> Mutate:
    """The same in some edges."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        value, chosen = rng.choice(new), some(edges(lines), rng)
        return [re.sub(pattern, value, line) if i in chosen else line for i, line in enumerate(lines)]

    return mutate


def field(columns: tuple[int, int], change: Callable[[str, random.Random], str], least: int = 0) -> Mutate:
    """An operator that changes one number of a row of LEAST bytes or more."""

    def large(lines: list[str]) -> list[int]:
        return [i for i in rows(lines) if (m := ROW.search(lines[i])) and int(m[0].split()[0]) >= least]

    def changed(line: str, rng: random.Random) -> str:
        match = ROW.search(line)
        assert match is not None
        values = [m.span() for m in re.compile(r"\S+").finditer(line, match.start("values"))]
        start, end = values[rng.choice(columns)]
        return line[:start] + change(line[start:end], rng) + line[end:]

    return at_one(large, changed)


def without(choose: Callable[[re.Match[str]], object]) -> Mutate:
    """An operator that drops all edges of which CHOOSE says the same as of a random one."""

    def mutate(lines: list[str], rng: random.Random) -> list[str]:
        found = {i: choose(m) for i, line in enumerate(lines) if (m := EDGE.search(line))}
        key = found[rng.choice(list(found))]
        return [line for i, line in enumerate(lines) if found.get(i, not key) != key]

    return mutate


def _delete(lines: list[str], rng: random.Random) -> list[str]:
    chosen = some(edges(lines), rng)
    return [line for i, line in enumerate(lines) if i not in chosen]


def _behind_the_table(lines: list[str], rng: random.Random) -> list[str]:
    chosen = some(edges(lines), rng)
    late = [lines[i] for i in sorted(chosen)]
    return [line for i, line in enumerate(lines) if i not in chosen] + late


def _swap_hosts(lines: list[str], rng: random.Random) -> list[str]:
    names = sorted({m[1] for line in lines if (m := re.search(r"([\w.\-]+):\d+:\d+ \[\d+\] NCCL", line))})
    here, there = rng.sample(names, 2)
    swap = {here: there, there: here}
    pattern = re.compile(rf"({re.escape(here)}|{re.escape(there)})(?=:\d+:\d+ \[)")
    chosen = some(edges(lines), rng)
    return [pattern.sub(lambda m: swap[m[1]], line) if i in chosen else line for i, line in enumerate(lines)]


DIGITS = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def _other_digits(line: str, _: random.Random) -> str:
    """Digits of an edge, behind its process, are not ASCII."""
    process, channel, rest = line.partition("Channel")
    return process + channel + rest.translate(DIGITS)


def _scramble(line: str, rng: random.Random) -> str:
    """One character of an edge, from its channel on, but for its device: another is as good."""
    device = re.search(r"NET/[^/]+/(\d+(?:\(\d+\))?)", line)
    assert device is not None
    places = range(line.index("Channel"), len(line.rstrip()))
    where = rng.choice([i for i in places if not device.start(1) <= i < device.end(1)])
    other = rng.choice([c for c in "0123456789xX#é٣" if c != line[where]])
    return line[:where] + other + line[where + 1 :]


def _glue(behind: bool, text: str) -> Mutate:
    """TEXT, a message of its own, in the line of an edge or of anything else."""

    def glued(line: str, _: random.Random) -> str:
        message = f"{re.findall(r'[A-Za-z][A-Za-z0-9.-]*:[0-9]+:[0-9]+ .[0-9]+. ', line)[0]}{text}"
        return line + message if behind else message + line

    return at_one(holding("NCCL INFO"), glued)


def _inside_a_row(text: str) -> Mutate:
    return at_one(holding(r"\d +\d+ +float +sum "), lambda line, _: line.replace(" sum", f" sum{text}\n", 1))


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
    new[here], new[there] = HOST.sub(hosts[there], lines[here]), HOST.sub(hosts[here], lines[there])
    return new


def _inside_an_edge(line: str, rng: random.Random) -> str:
    where = rng.randrange(line.index("Channel"), len(line))
    process = re.search(r"[A-Za-z][\w.\-]*:\d+:\d+ \[\d+\] ", line)
    assert process is not None
    return line[:where] + process[0] + FATAL + line[where:]


def _cut(lines: list[str], rng: random.Random) -> list[str]:
    """The log ends at any byte before its summary."""
    text = "\n".join(lines[: holding("Avg bus bandwidth")(lines)[-1]])
    return text[: rng.randrange(1, len(text))].split("\n")


SOCKET_EDGE = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0"
NO_GDR_EDGE = "NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"
FATAL = (
    "transport/net_ib.cc:99 NCCL WARN NET/IB: Got completion from peer 10.0.0.5<5> with status=12 opcode=1"
)

# Operators after which a log no longer proves its transport.
AGAINST: dict[str, Mutate] = {
    "edges are deleted": _delete,
    "a channel is deleted": without(lambda m: int(m[1])),
    "a link is deleted, both ends": without(lambda m: m.group(1, 2, 3)),
    "one direction is deleted": without(lambda m: m[4]),
    "a sender's edges are deleted": without(lambda m: m[2]),
    "half of the channels is deleted": without(lambda m: int(m[1]) % 2),
    "edges are printed behind the table": _behind_the_table,
    "edges are of a process that is not listed": in_edges(r"(\w):\d+:(\d+) \[", r"\1:2000001:\2 ["),
    "edges are of another host": _swap_hosts,
    "GDRDMA with more letters": in_edges("/GDRDMA", "/GDRDMA_OFF", "/GDRDMAX", "/gdrdma", "/GDRDM", ""),
    "edges over TCP": in_edges(r"NET/[^/]+/(\d+).*", r"NET/Socket/\1"),
    "edges over an unknown network": in_edges(r"NET/[^/]+/", "NET/Ib/"),
    "edges in other words": in_edges(" via ", " over ", " VIA ", " via  "),
    "edges of another level": in_edges("NCCL INFO", "NCCL  INFO", "NCCL INF0", "NCC INFO", "NCCL TRACE"),
    "a changed character": at_one(edges, _scramble),
    "another device at one end": at_one(
        edges, lambda line, _: re.sub(r"(NET/[^/]+/)(\d+)", lambda m: f"{m[1]}{(int(m[2]) + 1) % 4}", line)
    ),
    "another unit in the header": in_a_line(r"\(GB/s\)(.*)\(GB/s\)", r"(Gb/s)\1(Gb/s)", r"(MB/s)\1(MB/s)"),
    "another number of ranks in one message": in_a_line(
        r"( n[rR]anks )\d+(?= )", r"\g<1>2", r"\g<1>8", r"\g<1>24", r"\g<1>64"
    ),
    "digits that are not ASCII": at_one(edges, _other_digits),
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
# Operators after which table, arguments, device list and NCCL's own counts contradict each other.
CONTRADICTIONS: dict[str, Mutate] = {
    "a last column that is no count": field(ERRORS, lambda _, rng: rng.choice(("nan", "-1", "inf", "-0"))),
    "a wrong value beside `0 OK`": field(ERRORS, lambda _, rng: rng.choice(("1", "123456"))),
    "a measurement that was not compared": field(ERRORS, lambda *_: "N/A"),
    "a digit of the time": field(TIME, _digit, MEBI),
    "a digit of algbw": field(ALGBW, _digit, MEBI),
    "a digit of busbw": field(BUSBW, _digit, MEBI),
    "a bandwidth that is none": field(BUSBW, lambda x, rng: rng.choice(("nan", "inf", f"{x}%", f"{x}GB"))),
    "rows in another order": _swap_rows,
    "no iterations": in_a_line(r"(?<!warmup )(?<!agg )\biters: \d+", "iters: 0"),
    "more GPUs per process": in_a_line(r"nGpus(\(perProc\))? 1 ", r"nGpus\1 2 ", r"nGpus\1 8 "),
    "no validation": in_a_line("validation: 1", "validation: 0"),
    "a summary that is not OK": in_a_line(
        "(values *:) 0 OK", r"\1 0 OKAY", r"\1 3 OK", r"\1 0 FAILED", r"\1 0"
    ),
    "an average that is not a number": in_a_line(
        r"(bandwidth +: )\S+", r"\1nan", r"\1inf", r"\1N/A", r"\g<1>96,4945"
    ),
    "the unit of one column": in_a_line(
        r"\(GB/s\)", "(Gb/s)", "(MB/s)", "(GiB/s)", "(Gbps)", "(Gbit/s)", "(GB)"
    ),
    "the unit of the time": in_a_line(r"\(us\)", "(ms)", "(ns)", "(sec)"),
    "the unit of the sizes": in_a_line(r"# +\(B\)", "# (MB)", "# (KiB)"),
    "listed on another host": _swap_listed_hosts,
    "a listed pid": in_a_line(r"(?<=Pid) +\d+", " 7654321"),
    "another target at both ends": _both_ends(lambda line: re.sub(r"(-> )(\d+)", _next_gpu, line)),
    "another source at both ends": _both_ends(lambda line: re.sub(r"( : )(\d+)", _next_gpu, line)),
    "another connection at both ends": _both_ends(lambda line: re.sub(r"(Channel \d+)/0", r"\1/1", line)),
    "directions swapped at both ends": _both_ends(
        lambda line: line.replace("[receive]", "[x]").replace("[send]", "[receive]").replace("[x]", "[send]")
    ),
    "a channel in one direction": without(lambda m: m.group(1, 4)),
    "another rank that came up": in_a_line(r"rank \d+ (nranks \d+ .*Init COMPLETE)", r"rank 99 \1"),
    "another count of ranks on a host": in_a_line(r"localRanks \d+", "localRanks 4", "localRanks 16"),
    "another count of hosts": in_a_line(r"nNodes \d+", "nNodes 1", "nNodes 3"),
    "a fatal warning inside an edge": at_one(edges, _inside_an_edge),
    "cut at any byte": _cut,
}
