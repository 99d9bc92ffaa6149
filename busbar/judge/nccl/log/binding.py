"""Assigns messages of NCCL to programs: to the one whose device list names the process.

Messages without a process (old releases, pasted logs) belong to the program in whose part of the log they
are. Messages after a table's last row, or from a process that no device list names, prove nothing for it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import Preamble, Run

Process = tuple[str, int]  # host, pid
MAX_PROCESSES = 65_536


@dataclass
class _Part:
    """Messages of one owner in one part of the log: of the program AT, after that many of its rows."""

    owner: Preamble | None
    at: Preamble
    rows: int
    number: int  # of the program AT, in the order of the log
    unlisted: bool  # their processes are printed, and no device list read so far names them
    evidence: Evidence = field(default_factory=Evidence)
    processes: set[Process] = field(default_factory=set)


@dataclass
class Proof:
    """The evidence on one table: `own` can prove something, `loose` can only count against it."""

    own: Evidence
    loose: Evidence


class Binding:
    """Sorts messages while a log is read, and afterwards gives each table its own evidence."""

    def __init__(self) -> None:
        # owner, program AT, unlisted -> messages after its latest row, and those before that row
        self._latest: dict[tuple[int, int, bool], _Part] = {}
        self._earlier: dict[tuple[int, int, bool], _Part] = {}
        self._listed: dict[Process, Preamble] = {}
        self._order: dict[int, int] = {}  # id of a preamble -> number of the program

    def rank(self, host: str, pid: int, program: Preamble) -> None:
        """Record that the device list of PROGRAM names a process."""
        self._listed[short(host), pid] = program

    def evidence(self, host: str, pid: int | None, at: Preamble, rows: int) -> Evidence:
        """The evidence to which a message belongs that follows ROWS rows in the part of the program AT."""
        process = (short(host), pid) if host and pid is not None else None
        owner = self._listed.get(process) if process is not None else None
        unlisted = process is not None and owner is None
        key = (id(owner), id(at), unlisted)
        part = self._latest.get(key)
        if part is None or part.rows != rows:
            if part is not None and self._earlier.setdefault(key, part) is not part:
                self._earlier[key].evidence.add(part.evidence)
                self._earlier[key].processes |= part.processes
            number = self._order.setdefault(id(at), len(self._order))
            part = self._latest[key] = _Part(owner, at, rows, number, unlisted)
        if unlisted and process is not None and len(part.processes) < MAX_PROCESSES:
            part.processes.add(process)
        return part.evidence

    def whole(self) -> Evidence:
        """The evidence in the whole log."""
        return Evidence.merged(part.evidence for part in self._parts())

    def _parts(self) -> list[_Part]:
        return [*self._earlier.values(), *self._latest.values()]

    def proofs(self, runs: list[Run]) -> list[Proof]:
        """The evidence on each of RUNS."""
        own: dict[int, list[Evidence]] = defaultdict(list)
        loose: dict[int, list[Evidence]] = defaultdict(list)
        rows = {id(run.preamble): len(run.rows) for run in runs}
        for part in self._parts():
            owner = self._owner(part)
            program = owner or part.at
            here = part.at is program
            # where no device list was printed, only the position tells
            foreign = owner is None and part.unlisted and bool(program.ranks)
            finished = 0 < rows.get(id(program), 0) <= part.rows
            number = self._order.get(id(program), len(self._order))
            before = not finished if here else part.number < number
            (own if before and not foreign else loose)[id(program)].append(part.evidence)
        nothing = Evidence()  # shared by all runs without any: a damaged log may begin thousands of them
        return [
            Proof(_one(own[id(r.preamble)]) or nothing, _one(loose[id(r.preamble)]) or nothing) for r in runs
        ]

    def _owner(self, part: _Part) -> Preamble | None:
        """The program of PART; a device list that came later counts if it names all its processes."""
        if not part.unlisted:
            return part.owner
        owners = {id(o): o for o in map(self._listed.get, part.processes)}
        return next(iter(owners.values())) if len(owners) == 1 else None


def _one(parts: list[Evidence]) -> Evidence | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Evidence.merged(parts)


def short(host: str) -> str:
    """A host's name without its domain."""
    return host.partition(".")[0]
