"""Options of `busbar nccl check`, one alias each, and the examples that end the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# panels of the help
SYSTEM, EXPECTED, OUTPUT = "The system", "What is expected", "Output"

PARSE_EXAMPLES = (
    "busbar nccl parse launcher.log",
    "busbar nccl parse launcher.log.zst --json | jq '.runs[].largest_row'",
)
CHECK_EXAMPLES = (
    "busbar nccl check launcher.log --profile h100-ib-8x400 --expect-nodes 2",
    "busbar nccl check launcher.log --gpus-per-node 8 --rails 8 --rate-gbps 200 --gpu A100 --transport rdma",
    "busbar nccl check launcher.log --profile h100-ib-8x400 --full",
    "kubectl logs job/nccl-launcher --tail=-1 | busbar nccl check - --profile roce --html report.html",
)


def epilog(examples: tuple[str, ...]) -> str:
    """EXAMPLES as the end of a command's help, one per line."""
    # an empty line is what keeps a line end in typer's help
    return "\n\n".join(("Examples:", *examples))


LogFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-",
        help="Launcher log: plain, .gz or .zst (by content, not name); - reads standard input.",
    ),
]
LogFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...|-",
        help="Launcher logs, as for parse, or nccl-tests' own JSON (-J) with its log beside it, of the same "
        "name. With several files one line each; the worst exit code counts.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=SYSTEM,
        help="Known system that sets what is not given here, such as h100-ib-8x400, roce, efa, "
        "gb200-nvl72; an unknown name lists all.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=SYSTEM,
        help="Number of hosts that must have taken part; default: the log's own device list.",
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option(min=1, metavar="N", rich_help_panel=SYSTEM, help="Ranks on each host.")
]
Rails = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=SYSTEM,
        help="HCAs of each host that must carry data; line rate is rails x rate.",
    ),
]
RateGbps = Annotated[
    float | None,
    typer.Option(min=0, metavar="GBIT", rich_help_panel=SYSTEM, help="Gb/s of one rail: NDR 400, HDR 200."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        rich_help_panel=SYSTEM,
        help="H100, A100, ...: must match the device list; sets the NVLink rate.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=SYSTEM,
        help="ring, tree, nvls, sharp or auto: selects the expected bandwidth; sharp must be proved.",
    ),
]
Transport = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=EXPECTED,
        help="gpudirect-rdma, rdma or socket: every edge between hosts must use it.",
    ),
]
Collectives = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=EXPECTED,
        help="all_reduce, alltoall, ...: must have a table; may be repeated, the first is the headline.",
    ),
]
ExpectedBusbw = Annotated[
    float | None,
    typer.Option(
        metavar="GBYTE", rich_help_panel=EXPECTED, help="GB/s to expect, in place of the computed value."
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        metavar="PART",
        rich_help_panel=EXPECTED,
        help="Part of the expected value that may be missing: floor = (1 - PART) x expected.",
    ),
]
TopologyFile = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", rich_help_panel=EXPECTED, help="File that NCCL must have opened (NCCL_TOPO_FILE)."
    ),
]
Plugin = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=EXPECTED,
        help="Network plugin that must carry the data: IBext, Libfabric, ...; IB is NCCL's own.",
    ),
]
Hcas = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=EXPECTED,
        help="mlx5_0, ...: must be opened, and no other; repeat for each.",
    ),
]
MinNccl = Annotated[
    str | None,
    typer.Option(metavar="X.Y.Z", rich_help_panel=EXPECTED, help="Oldest NCCL release that is accepted."),
]
AcceptWarn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        rich_help_panel=EXPECTED,
        help="Accept unknown WARN lines, and lines that look like the end of a job, with this text; may be "
        "repeated. Known failures are never accepted.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", rich_help_panel=OUTPUT, help="Print the verdict as one JSON object, no text."),
]
Full = Annotated[
    bool,
    typer.Option("--full", rich_help_panel=OUTPUT, help="Print all gates with their lines, table and plot."),
]
Plot = Annotated[bool, typer.Option(rich_help_panel=OUTPUT, help="Draw the curve in the output of --full.")]
Html = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=OUTPUT,
        help="Write the whole report as one HTML page that needs no network.",
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option(metavar="PATH", rich_help_panel=OUTPUT, help="Write the headline's curve as SVG."),
]
Png = Annotated[
    Path | None,
    typer.Option(metavar="PATH", rich_help_panel=OUTPUT, help="Write the same curve as PNG; needs resvg-py."),
]
Ctrf = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=OUTPUT,
        help="Write the gates as a CTRF report, which CI shows as tests.",
    ),
]
