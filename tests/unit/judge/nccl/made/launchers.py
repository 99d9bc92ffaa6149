"""What launchers put before a program's lines: each by its rank, or before whatever comes."""

from collections.abc import Callable

from tests.unit.judge.nccl.made.lines import NO_RANK, Line, Row

Launcher = Callable[[Line], str]


def _tagged(line: Line, pieces: tuple[str, ...]) -> str:
    return line.text if line.rank == NO_RANK else "".join(f"[1,{line.rank}]<stdout>:{p}" for p in pieces)


def _time(line: Line) -> str:
    row = line.fact
    return f"2026-05-05T{row.size.bit_length() - 24:02}:00:00.000Z " if isinstance(row, Row) else ""


LAUNCHERS: dict[str, Launcher] = {
    "tags": lambda line: _tagged(line, (line.text,)),
    "tags before every write": lambda line: _tagged(line, line.pieces),
    "times, an hour from row to row": lambda line: f"{_time(line)}{line.text}",
    "indented": lambda line: f"    {line.text}",
}


def wrapped(line: Line, launchers: list[str]) -> str:
    """LINE as the last of LAUNCHERS hands it on."""
    for name in launchers:
        line = Line((LAUNCHERS[name](line),), line.fact, line.rank, line.glued)
    return line.text
