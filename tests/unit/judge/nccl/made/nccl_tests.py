"""Prints what nccl-tests prints, in the layouts of its versions, from a Program's own numbers.

Formats: NVIDIA/nccl-tests src/common.cu and the header functions of each collective, at 2.0, 2.10, 2.13 and
2.17.8.
"""

from collections.abc import Iterator, Sequence

from tests.unit.judge.nccl.made.lines import Average, Bounds, Half, Header, Line, Name, Row, Said, line
from tests.unit.judge.nccl.made.spec import Hosts, Program, Proof

ELEMENT = {"float": 4, "double": 8, "bfloat16": 2}
GATHERING = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
NO_IN_PLACE = ("alltoall", "sendrecv")  # their in-place half is not compared, from 2.13
# before 2.13 each collective printed columns of its own
OLD_COLUMNS = {"all_gather": (), "broadcast": ("root",), "reduce": ("redop", "root")}
REDOP = {"all_reduce": "sum", "reduce_scatter": "sum", "reduce": "sum", "sendrecv": "sum"}
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def lines_of(raw: Sequence[str | Proof], rank: int = 0) -> Iterator[Line]:
    """Lines of other programs, with what they prove; RANK is NO_RANK outside of the program's output."""
    for each in raw:
        if isinstance(each, str):
            yield line(each, rank=rank)
            continue
        kinds = ("network", "test_failure", "topology_file", "version", "warning")
        (proof,) = [k for k in (*kinds, "program") if getattr(each, k) is not None]
        value = getattr(each, proof)
        fact = Name(value) if proof == "program" else Said(proof, value)
        yield line(each.text, fact, rank)


class Printer:
    """The output of PROGRAM on HOSTS, section by section."""

    def __init__(self, program: Program, hosts: Hosts) -> None:
        self.program = program
        if program.on is not None:
            hosts = hosts.model_copy(update={"names": [hosts.names[i] for i in program.on]})
        self.hosts = hosts
        self.ranks = program.ranks or hosts.ranks
        self.old = program.layout in ("2.0", "2.10")
        self.all_rows = list(self._all_rows())

    @property
    def collective(self) -> str | None:
        """What a reader should take the table for."""
        return None if self.program.unknown else self.program.name

    # ---- before the table -------------------------------------------------------------------------------

    def preamble(self) -> Iterator[Line]:
        """Everything up to the device list."""
        p = self.program
        yield from lines_of(p.before)
        if p.version is not None:
            yield line(f"# nccl-tests version {p.version} nccl-headers=22807 nccl-library=22807")
        if p.announced is not None:
            yield line(f"# Collective test starting: {p.announced}", Name(p.announced))
        if p.banner != "none":
            yield line(self._banner())
            yield line("#")
        if p.listed != "none":
            yield line("# Using devices")

    def devices(self) -> Iterator[Line]:
        listed = list(range(self.hosts.ranks))
        chosen = {"all": listed, "none": [], "last": listed[-1:]}
        shown = chosen.get(self.program.listed, [*listed[:2], *listed[-1:]])
        for position, rank in enumerate(shown):
            if position and rank != shown[position - 1] + 1:
                yield line("#  ...")
            yield line(self._device(rank))
        yield from lines_of(self.program.listing)
        if self.program.reduced_max is not None:
            yield line("#")
            yield line(f"# Reducing maxBytes to {self.program.reduced_max} due to memory limitation")

    def _banner(self) -> str:
        p = self.program
        start = "# nGpus(perProc) 1" if p.banner == "fork" else f"# nThread 1 nGpus {p.gpus_a_process}"
        counted = f"minBytes {p.sizes[0]} maxBytes {p.sizes[1]} step: {p.step}({p.step_by})"
        counted += f" warmup iters: {p.warmup}"
        validation = f"validation: {int(p.compared == 'yes')}"
        if p.banner == "short":
            return f"{start} {counted} iters: {p.iterations} {validation} "
        return f"{start} {counted} iters: {p.iterations} agg iters: 1 {validation} graph: 0"

    def _device(self, rank: int) -> str:
        hosts = self.hosts
        host, device = hosts.names[rank // hosts.gpus], rank % hosts.gpus
        pid = hosts.pid + (0 if self.program.gpus_a_process > 1 else device)
        bus = f"0x{17 + 16 * device:02x}" if hosts.bus == "hex" else f"0000:{17 + 16 * device:02x}:00"
        group = "" if self.old else "Group  0 "
        indent = "   " if self.old else "  "
        where = f"on {host:>10s} device {device:2d} [{bus}] {hosts.model}".rstrip()
        return f"#{indent}Rank {rank:2d} {group}Pid {pid:6d} {where}"

    # ---- the table --------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        if self.old:
            return OLD_COLUMNS.get(self.program.name, ("redop",))
        return ("redop", "root")

    def header(self) -> Iterator[Line]:
        """The three lines above the rows, and what was printed between them and the rows."""
        p = self.program
        if p.header:
            error = " error" if self.old else " #wrong" if p.layout == "2.17.8" else "#wrong"
            kind = "   type" if p.layout == "2.0" else "     type"
            half = f"    time   algbw   busbw {error}"
            middle = "".join(f"{c:>8s}" for c in self.columns)
            gap = len(middle) + len(kind) + (38 if self.old else 37)
            blanks = " " * (13 if p.layout == "2.17.8" else 12)
            rates = "(us)  (GB/s)  (GB/s)"
            yield line("#")
            yield line(f"#{'':{gap}s}out-of-place{'':23s}in-place          ")
            titles = f"#       size         count {kind}{middle} {half} {half}"
            yield line(titles, Header("error" if self.old else "#wrong", self.collective))
            yield line(f"#        (B)    (elements){'':{gap - 31 - self.old}s}{rates}{blanks}{rates}")
        yield from lines_of(p.inside)

    def rows(self, message: Line | None = None) -> Iterator[Line]:
        """The rows that are shown; MESSAGE is what interrupts the row at `cut_row`."""
        p = self.program
        shown = range(len(self.all_rows)) if p.rows is None else p.rows
        if p.orphan:
            yield line("    412.0    0.00    0.00      0    120.5    0.00    0.00      0")
        for position in shown:
            row = self.all_rows[position]
            head, first, second = self._printed(row)
            if p.placeholders:
                yield line(head + 2 * "    XXXXX  XXX.XX  XXX.XX    N/A")
            elif position == p.cut_row:
                assert message is not None, "a row can only be cut by a message"
                yield Line((head,), row, glued=True)
                yield message
                yield line(first + second)
            else:
                yield Line((head, first, second), row)

    def _printed(self, row: Row) -> tuple[str, str, str]:
        width = 6 if self.program.layout == "2.0" else 8
        middle = ""
        if "redop" in self.columns:
            middle += f"  {row.redop or '':>6s}"
        if "root" in self.columns:
            middle += f"  {row.root:6d}"
        errors = 6 if self.program.layout == "2.17.8" else 5
        halves = [
            f"  {h.time:>7s}  {h.algbw:>6s}  {h.busbw:>6s}  {h.errors:>{errors}s}"
            for h in (row.out_of_place, row.in_place)
        ]
        return f"{row.size:12d}  {row.count:12d}  {row.type:>{width}s}{middle}", halves[0], halves[1]

    def _all_rows(self) -> Iterator[Row]:
        p = self.program
        self._speeds: list[float] = []
        size, (_, high) = p.sizes[0], p.sizes
        high = min(high, p.reduced_max or high)
        while size <= high:
            yield self._row(size)
            size = size * p.step if p.step_by == "factor" else size + p.step

    def _row(self, asked: int) -> Row:
        p, element = self.program, ELEMENT[self.program.type]
        count = asked // element
        if p.name in GATHERING:
            count //= self.ranks
            if not self.old:
                count -= count % (16 // element)
            size = count * element * self.ranks
        else:
            size = count * element
        redop: str | None = REDOP.get(p.name, "" if self.old else "none")
        root: int | None = 0 if p.name in ROOTED else -1
        if "redop" not in self.columns:
            redop = None
        if "root" not in self.columns:
            root = None
        time = p.latency_us + size / (p.algbw or p.busbw / self.factor) / 1000
        halves = [self._half(size, count, time * share, i) for i, share in enumerate((1.0, p.in_place))]
        return Row(size, count, p.type, redop, root, halves[0], halves[1], self.collective)

    def _half(self, size: int, count: int, time: float, half: int) -> Half:
        p = self.program
        algbw = size / time / 1000
        busbw = algbw * self.factor
        algbw = busbw if p.scaled else algbw
        self._speeds.append(busbw)
        if p.layout == "2.17.8":
            digits = 2 if time < 10_000 else 1
        else:
            digits = 2 if time < 100 else 1 if time < 10_000 else 0
        skipped = p.compared == "no" or (half == 1 and not self.old and p.name in NO_IN_PLACE)
        errors = "N/A" if skipped else f"{p.error:.0e}" if self.old else f"{int(count * p.wrong_share):g}"
        return Half(f"{time:.{digits}f}", f"{algbw:.2f}", f"{busbw:.2f}", p.wrong or errors)

    @property
    def factor(self) -> float:
        """busbw / algbw, as each program computes it."""
        share = (self.ranks - 1) / self.ranks
        if self.program.name == "all_reduce":
            return 2 * share
        return share if self.program.name in GATHERING else 1.0

    # ---- behind the table -------------------------------------------------------------------------------

    def summary(self) -> Iterator[Line]:
        """Both lines of the summary, or what is left of them."""
        p = self.program
        wrong = len(self.all_rows) * 2 * self.ranks if p.wrong_share else 0
        status = "FAILED" if wrong else "OK"
        average = p.average or f"{sum(self._speeds) / len(self._speeds):g}"
        if p.summary in ("both", "bounds"):
            yield line(f"# Out of bounds values : {wrong} {status}", Bounds(wrong, status))
        if p.summary in ("both", "average"):
            yield line(f"# Avg bus bandwidth    : {average} ", Average(average))
        if p.concluded:
            yield line("#")
            yield line(f"# Collective test concluded: {p.announced or f'{p.name}_perf'}")
            yield line("#")
