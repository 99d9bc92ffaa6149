"""A line of a made log, with the fact that it states to a reader of the whole log."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Half:
    """One half of a row, as printed."""

    time: str
    algbw: str
    busbw: str
    errors: str


@dataclass(frozen=True)
class Row:
    """A row of a table, as its line (and, if it was interrupted, a later one) prints it."""

    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Half
    in_place: Half
    collective: str | None


@dataclass(frozen=True)
class Header:
    """A table begins."""

    error_column: str
    collective: str | None


@dataclass(frozen=True)
class Name:
    """A program names itself: its announcement, or a shell line that starts it."""

    program: str


@dataclass(frozen=True)
class Average:
    """The summary's average, as printed."""

    text: str


@dataclass(frozen=True)
class Bounds:
    """The summary's count of values out of bounds."""

    count: int
    status: str


@dataclass(frozen=True)
class Edge:
    """A channel's transport, as readers group it; `gdr` is None where it does not leave the host."""

    label: str
    gdr: bool | None


@dataclass(frozen=True)
class Said:
    """A text that is listed: kind is network, version, topology_file, warning or test_failure."""

    kind: str
    text: str


Fact = Row | Header | Name | Average | Bounds | Edge | Said


NO_RANK = -1


@dataclass(frozen=True)
class Line:
    """`pieces` are what the program wrote in one go each; launchers may put a tag before every piece."""

    pieces: tuple[str, ...]
    fact: Fact | None = None
    rank: int = 0
    glued: bool = False  # the program had not ended its line when the next one was written

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def line(text: str, fact: Fact | None = None, rank: int = 0) -> Line:
    return Line((text,), fact, rank)
