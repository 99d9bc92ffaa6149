"""A made log: its text, and what must be read from it, computed from the facts that its lines were made of.

Nothing here reads text: the expected object follows from the numbers that were printed.
"""

from itertools import chain, zip_longest
from typing import Any

from tests.unit.judge.nccl.made import nccl
from tests.unit.judge.nccl.made.expected import Table, described
from tests.unit.judge.nccl.made.launchers import wrapped
from tests.unit.judge.nccl.made.lines import NO_RANK, Average, Bounds, Edge, Header, Line, Name, Row, Said
from tests.unit.judge.nccl.made.nccl_tests import Printer, lines_of
from tests.unit.judge.nccl.made.spec import Case


class Log:
    def __init__(self, case: Case) -> None:
        self.case = case
        self._numbered: list[tuple[int, Line]] = []
        self.lines = self._render(self._typed())
        self.tables = self._tables()

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    # ---- what is printed --------------------------------------------------------------------------------

    def _typed(self) -> list[Line]:
        case = self.case
        out = list(lines_of(case.before, NO_RANK))
        printers = [Printer(program, case.hosts) for program in case.programs]
        if case.mixed:
            for section in zip(*(self._sections(p) for p in printers), strict=True):
                out += [line for line in chain(*zip_longest(*section)) if line is not None]
        else:
            for printer in printers:
                out += chain(*self._sections(printer))
        if case.nccl is not None and not case.programs:
            out += nccl.messages(case.nccl, case.hosts)
        return out + list(lines_of(case.after, NO_RANK))

    def _sections(self, printer: Printer) -> list[list[Line]]:
        case = self.case
        first = printer.program is case.programs[0]
        messages = nccl.messages(case.nccl, case.hosts) if case.nccl is not None and first else []
        late = case.nccl is not None and case.nccl.late
        cutting = None
        if printer.program.cut_row is not None:
            assert case.nccl is not None, "only a message of NCCL cuts a row"
            cutting = nccl.edge(case.nccl, case.hosts, 0, 0, "receive")
        end = list(nccl.destroyed(case.nccl, case.hosts)) if case.nccl is not None and first else []
        summary = list(printer.summary())
        return [
            list(printer.preamble()),
            list(printer.devices()) + ([] if late else messages),
            list(printer.header()) + (messages if late else []),
            list(printer.rows(cutting)),
            end[: len(end) // 2] + summary + end[len(end) // 2 :],
        ]

    def _render(self, typed: list[Line]) -> list[str]:
        out: list[str] = []
        start = ""
        for line in typed:
            self._numbered.append((len(out) + 1, line))
            text = start + wrapped(line, self.case.launcher if not start else [])
            start = text if line.glued else ""
            if not line.glued:
                out.append(text)
        return out

    # ---- what must be read ------------------------------------------------------------------------------

    def _tables(self) -> list[Table]:
        tables: list[Table] = []
        named: str | None = None
        for number, line in self._numbered:
            fact = line.fact
            if isinstance(fact, Name):
                named = fact.program
            elif isinstance(fact, Header):
                tables.append(Table(fact.error_column, fact.collective, named))
            elif isinstance(fact, Row):
                if not tables:
                    tables.append(Table(collective=fact.collective))
                tables[-1].rows.append((number, fact))
            elif isinstance(fact, Average) and tables:
                tables[-1].average = fact.text
            elif isinstance(fact, Bounds) and tables:
                tables[-1].bounds = fact
        return tables

    def _texts(self, kind: str) -> list[str]:
        found = (f.text for _, line in self._numbered if isinstance(f := line.fact, Said) and f.kind == kind)
        return list(dict.fromkeys(found))

    @property
    def busbw(self) -> float | None:
        """GB/s at the largest message of the first table of a known collective: the lower half."""
        table = next((t for t in self.tables if t.rows and t.collective), None)
        if table is None:
            return None
        top = max(row.size for _, row in table.rows)
        rows = [row for _, row in table.rows if row.size == top]
        return min(float(h.busbw) for r in rows for h in (r.out_of_place, r.in_place))

    def expected(self) -> dict[str, Any]:
        """The object that `as_object` must return, but for bytes and hash."""
        edges = [line.fact for _, line in self._numbered if isinstance(line.fact, Edge)]
        net = [e.gdr for e in edges if e.gdr is not None]
        return {
            "runs": [described(t) for t in self.tables],
            "transport": self._texts("network"),
            "via": {label: sum(e.label == label for e in edges) for label in {e.label for e in edges}},
            "gdrdma": all(net) if net else None,
            "nccl_version": self._texts("version"),
            "topo_file": self._texts("topology_file"),
            "warnings": sorted({w[:140] for w in self._texts("warning")})[:6],
            "test_failures": self._texts("test_failure"),
            "lines": len(self.lines),
        }
