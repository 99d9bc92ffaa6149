"""A small log of two healthy hosts, printed as made/ prints all logs; tests change it as they need."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.log.records import Stage
from tests.unit.judge.nccl.made import nccl
from tests.unit.judge.nccl.made.lines import Line
from tests.unit.judge.nccl.made.nccl_tests import Printer
from tests.unit.judge.nccl.made.spec import Hosts, Nccl, Program

# A log of this system passes with it.
WANT = Expectation(profile="h100-ib-8x400", nodes=2)


@dataclass
class Made:
    """A log as two hosts of eight H100 print it; every part can be changed before `lines`.

    `peak` is busbw in GB/s in every row, `low` and `high` are sizes in bytes, `wrong` is the column `#wrong`,
    `ranks` is what busbw is computed with (None: all that are listed), `info` lines among NCCL's messages.
    """

    hosts: list[str] = field(default_factory=lambda: ["worker-0", "worker-1"])
    gpus: int = 8
    gpu: str = "NVIDIA H100 80GB HBM3"
    low: int = 2**29
    high: int = 2**33
    peak: float = 390.0
    name: str = "all_reduce"
    network: str = "IB"
    gdr: bool = True
    devices: int = 8
    wrong: str = "0"
    info: list[str] = field(default_factory=list)
    ranks: int | None = None
    communicator: bool = False

    def lines(self) -> list[str]:
        """All lines, without their ends."""
        hosts = Hosts(names=self.hosts, gpus=self.gpus, model=self.gpu)
        messages = Nccl(
            version="2.28.7+cuda12.9",
            versions="process",
            topology_file="/opt/topo.xml",
            network=self.network,
            net=self.network if self.devices else None,
            gdr=self.gdr,
            devices=self.devices,
            communicator=self.communicator,
            hcas=[f"mlx5_{d}:1/IB" for d in range(self.devices)],
        )
        program = Program(
            name=self.name,
            announced=f"{self.name}_perf",
            version="2.17.6",
            sizes=(self.low, self.high),
            busbw=self.peak,
            latency_us=0.0,
            in_place=1.0,
            ranks=self.ranks,
            wrong=self.wrong,
            concluded=True,
        )
        printer = Printer(program, hosts)
        out = _texts(printer.preamble()) + _texts(printer.devices())
        out += _texts(nccl.messages(messages, hosts)) + self.info
        return out + _texts(printer.header()) + _texts(printer.rows()) + _texts(printer.summary())

    def lines_with(self, line: str, stage: Stage = "before") -> list[str]:
        """All lines, with LINE among NCCL's messages, among the rows or behind the summary."""
        out = self.lines()
        row = next(i for i, text in enumerate(out) if text.lstrip()[:1].isdigit())
        at = {"before": row - 8, "table": row + 2, "after": len(out)}[stage]
        return [*out[:at], line, *out[at:]]


def is_row(line: str) -> bool:
    """Whether LINE is a row of a table."""
    return line.lstrip()[:1].isdigit()


def index(lines: list[str], start: str) -> int:
    """The position of the first of LINES that begins with START."""
    return next(i for i, line in enumerate(lines) if line.lstrip().startswith(start))


def rack(made: Made) -> None:
    """Make the log that of a rack of 18 hosts with four GB200 each, joined by multi-node NVLink."""
    made.hosts, made.gpus, made.gpu = [f"gb200-{i}" for i in range(18)], 4, "NVIDIA GB200"
    made.peak, made.devices = 835.0, 0
    made.info = ["gb200-0:40:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL"]


def without(*words: str) -> Callable[[list[str]], list[str]]:
    """Lines without those that have one of the words."""
    return lambda lines: [line for line in lines if not any(word in line for word in words)]


def _texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


HEALTHY = Made().lines()
FIRST_ROW = next(i for i, line in enumerate(HEALTHY) if is_row(line))
PLACES = {"top": 0, "start": index(HEALTHY, "#  Rank"), "before": FIRST_ROW, "among": FIRST_ROW + 1,
          "behind": len(HEALTHY)}  # fmt: skip


def with_line(line: str, place: str = "behind", **want: list[str]) -> Verdict:
    """The verdict on the healthy log with LINE at PLACE."""
    at = PLACES[place]
    return judge([*HEALTHY[:at], line, *HEALTHY[at:]], WANT.model_copy(update=want))
