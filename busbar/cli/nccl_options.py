"""Options of `busbar nccl`, one alias each, and the examples that end the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

# panels of the help
SYSTEM, EXPECTED, OUTPUT = "The system", "What is expected", "Output"

CHECK_EXAMPLES = (
    "busbar nccl check launcher.log --profile h100-ib-8x400 --expect-nodes 2",
    "busbar nccl check launcher.log --gpus-per-node 8 --rails 8 --rate-gbps 200 --gpu A100 --transport rdma",
    "busbar nccl check launcher.log --profile h100-ib-8x400 --full",
    "kubectl logs job/nccl-launcher --tail=-1 | busbar nccl check - --profile roce --html report.html",
)


def epilog(examples: tuple[str, ...]) -> str:
    """EXAMPLES as the end of a command's help, one per line."""
    # typer's help only keeps a line end at an empty line
    return "\n\n".join(("Examples:", *examples))


def value(panel: str | None, metavar: str, text: str, **more: Any) -> Any:
    """An option whose value is METAVAR in the help, explained by TEXT in PANEL."""
    return typer.Option(metavar=metavar, rich_help_panel=panel, help=text, **more)


def flag(name: str, text: str) -> Any:
    """An option NAME without a value, in the panel OUTPUT."""
    return typer.Option(name, rich_help_panel=OUTPUT, help=text)


LogFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...|-",
        help="Launcher logs: plain, .gz or .zst (by content, not name); - reads standard input. With several "
        "files one line each; the worst exit code counts.",
    ),
]
Profile = Annotated[
    str | None,
    value(
        SYSTEM,
        "NAME",
        "Known system that sets what is not given here, such as h100-ib-8x400, roce, efa, gb200-nvl72; an "
        "unknown name lists all.",
    ),
]
Nodes = Annotated[
    int | None,
    value(
        SYSTEM, "N", "Number of hosts that must have taken part; default: the log's own device list.", min=1
    ),
]
GpusPerNode = Annotated[int | None, value(SYSTEM, "N", "Ranks on each host.", min=1)]
Rails = Annotated[
    int | None,
    value(SYSTEM, "N", "HCAs of each host that must carry data; line rate is rails x rate.", min=0),
]
RateGbps = Annotated[float | None, value(SYSTEM, "GBIT", "Gb/s of one rail: NDR 400, HDR 200.", min=0)]
Gpu = Annotated[
    str | None,
    value(SYSTEM, "MODEL", "H100, A100, ...: must match the device list; sets the NVLink rate."),
]
Algorithm = Annotated[
    str | None,
    value(
        SYSTEM,
        "NAME",
        "ring, tree, nvls, sharp or auto: selects the expected bandwidth; sharp must be proved.",
    ),
]
Transport = Annotated[
    str | None,
    value(EXPECTED, "NAME", "gpudirect-rdma, rdma or socket: every edge between hosts must use it."),
]
Collectives = Annotated[
    list[str] | None,
    value(
        EXPECTED,
        "NAME",
        "all_reduce, alltoall, ...: must have a table; may be repeated, the first is the headline.",
    ),
]
ExpectedBusbw = Annotated[
    float | None, value(EXPECTED, "GBYTE", "GB/s to expect, in place of the computed value.")
]
Tolerance = Annotated[
    float,
    value(EXPECTED, "PART", "Part of the expected value that may be missing: floor = (1 - PART) x expected."),
]
TopologyFile = Annotated[
    str | None, value(EXPECTED, "PATH", "File that NCCL must have opened (NCCL_TOPO_FILE).")
]
Plugin = Annotated[
    str | None,
    value(
        EXPECTED, "NAME", "Network plugin that must carry the data: IBext, Libfabric, ...; IB is NCCL's own."
    ),
]
Hcas = Annotated[
    list[str] | None,
    value(EXPECTED, "NAME", "mlx5_0, ...: must be opened, and no other; repeat for each."),
]
MinNccl = Annotated[str | None, value(EXPECTED, "X.Y.Z", "Oldest NCCL release that is accepted.")]
AcceptWarn = Annotated[
    list[str] | None,
    value(
        EXPECTED,
        "TEXT",
        "Accept unknown WARN lines, and lines that look like the end of a job, with this text; may be "
        "repeated. Known failures are never accepted.",
    ),
]
AsJson = Annotated[bool, flag("--json", "Print the verdict and all tables as one JSON object, no text.")]
Full = Annotated[bool, flag("--full", "Print all gates with their lines, table and plot.")]
Plot = Annotated[bool, typer.Option(rich_help_panel=OUTPUT, help="Draw the curve in the output of --full.")]
Html = Annotated[
    Path | None, value(OUTPUT, "PATH", "Write the whole report as one HTML page that needs no network.")
]
Svg = Annotated[Path | None, value(OUTPUT, "PATH", "Write the headline's curve as SVG.")]
