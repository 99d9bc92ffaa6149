"""`busbar nccl check` and `profiles`: logs of nccl-tests, and what is expected of a system."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import fail, print_text
from busbar.exits import USAGE
from busbar.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from busbar.judge.nccl import Verdict
    from busbar.judge.nccl.checks.context import Table


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
system, expected, output = partial(value, SYSTEM), partial(value, EXPECTED), partial(value, OUTPUT)
Profile = Annotated[
    str | None, system("NAME", "Known system that sets what is not given: `busbar nccl profiles`.")
]
Nodes = Annotated[int | None, system("N", "Hosts that must take part; default: the device list.", min=1)]
GpusPerNode = Annotated[int | None, system("N", "Ranks on each host.", min=1)]
Rails = Annotated[int | None, system("N", "HCAs of each host that must carry data.", min=0)]
RateGbps = Annotated[float | None, system("GBIT", "Gb/s of one rail: NDR 400, HDR 200.", min=0)]
Gpu = Annotated[str | None, system("MODEL", "H100, A100, ...: as in the device list; sets NVLink's rate.")]
Algorithm = Annotated[
    str | None,
    system("NAME", "ring, tree, nvls, sharp or auto: sets the expected bandwidth; sharp must be proved."),
]
Transport = Annotated[
    str | None, expected("NAME", "gpudirect-rdma, rdma or socket: every edge between hosts must use it.")
]
Collectives = Annotated[
    list[str] | None,
    expected("NAME", "all_reduce, ...: must have a table; repeat for each, the headline first."),
]
ExpectedBusbw = Annotated[float | None, expected("GBYTE", "GB/s to expect, in place of the computed value.")]
Tolerance = Annotated[float, expected("PART", "Part of the expected value that may be missing.")]
TopologyFile = Annotated[str | None, expected("PATH", "File that NCCL must have opened (NCCL_TOPO_FILE).")]
Plugin = Annotated[
    str | None,
    expected("NAME", "Network plugin that must carry the data: IBext, Libfabric, ...; IB is NCCL's own."),
]
Hcas = Annotated[
    list[str] | None, expected("NAME", "mlx5_0, ...: must be opened, and no other; repeat for each.")
]
MinNccl = Annotated[str | None, expected("X.Y.Z", "Oldest NCCL release that is accepted.")]
AcceptWarn = Annotated[
    list[str] | None, expected("TEXT", "Accept lines with this text, but no fatal failure; repeat for each.")
]
AsJson = Annotated[bool, flag("--json", "Print the verdict and all tables as one JSON object, no text.")]
Full = Annotated[bool, flag("--full", "Print all gates with their lines, and the table.")]
Html = Annotated[Path | None, output("PATH", "Write the report as one HTML page that needs no network.")]
Svg = Annotated[Path | None, output("PATH", "Write the headline's curve as SVG.")]


WORST = (1, 2, 0)  # exit codes of verdicts
# Fields of an Expectation whose option of `check` has another name.
OPTIONS = {
    "nodes": "expect-nodes",
    "collectives": "collective",
    "expected_busbw_gbps": "expected-busbw",
    "require_plugin": "plugin",
    "hcas": "hca",
    "accept_warnings": "accept-warn",
}


def register(app: typer.Typer) -> None:
    app.command("check", epilog=epilog(CHECK_EXAMPLES))(check)
    app.command("profiles")(profiles)


def check(
    files: LogFiles,
    profile: Profile = None,
    expect_nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    rails: Rails = None,
    rate_gbps: RateGbps = None,
    gpu: Gpu = None,
    algorithm: Algorithm = None,
    transport: Transport = None,
    collective: Collectives = None,
    expected_busbw: ExpectedBusbw = None,
    tolerance: Tolerance = 0.1,
    topology_file: TopologyFile = None,
    plugin: Plugin = None,
    hca: Hcas = None,
    min_nccl: MinNccl = None,
    accept_warn: AcceptWarn = None,
    as_json: AsJson = False,
    full: Full = False,
    html: Html = None,
    svg: Svg = None,
) -> None:
    """Judge a log against what the hardware can do: the verdict, its first cause and line, what to do next.

    Exit code 0: pass; 1: fail; 2: no verdict because evidence is missing (never a pass).
    """
    from pydantic import ValidationError

    from busbar.judge.nccl import Expectation, judge_log, read_file, tables

    given: dict[str, Any] = {
        "profile": profile, "nodes": expect_nodes, "gpus_per_node": gpus_per_node, "rails": rails,
        "rate_gbps": rate_gbps, "gpu": gpu, "transport": transport, "algorithm": algorithm,
        "collectives": collective, "expected_busbw_gbps": expected_busbw, "tolerance": tolerance,
        "topology_file": topology_file, "require_plugin": plugin, "hcas": hca, "min_nccl": min_nccl,
        "accept_warnings": accept_warn,
    }  # fmt: skip
    try:
        expectation = Expectation(**{k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        fail("; ".join(map(_bad_option, error.errors())), USAGE)
    verdicts: dict[str, Verdict] = {}
    printed: dict[str, list[Table]] = {}
    if len(files) > 1 and (html or svg):
        fail("--html and --svg are for one FILE. Fix: give one", USAGE)
    for file in dict.fromkeys(files):
        log = read_file(file)
        verdicts[file] = judge_log(log, expectation)
        printed[file] = tables(log) if as_json else []
        _write(file, verdicts[file], html, svg)
    print_text(_json(verdicts, printed) if as_json else _shown(verdicts, full=full))
    raise typer.Exit(min((v.exit_code for v in verdicts.values()), key=WORST.index))


def _bad_option(problem: Mapping[str, Any]) -> str:
    """The text of pydantic's error about the value of an option, by the option's name."""
    field = str(problem["loc"][0])
    option = OPTIONS.get(field, field.replace("_", "-"))
    return f"--{option}: {problem['msg'].removeprefix('Value error, ')}, got {problem['input']!r}"


def _json(verdicts: Mapping[str, Verdict], printed: Mapping[str, list[Table]]) -> str:
    """The verdict with all tables of its log; of several files a list."""
    found = [
        {**verdict.model_dump(mode="json"), "tables": [table.model_dump() for table in printed[file]]}
        for file, verdict in verdicts.items()
    ]
    if len(found) == 1:
        return json.dumps(found[0], indent=1)
    return json.dumps([{"file": file, **each} for file, each in zip(verdicts, found, strict=True)], indent=1)


def _shown(verdicts: dict[str, Verdict], *, full: bool) -> str:
    from busbar.judge.nccl.report.terminal import verdict_text, verdicts_text

    if len(verdicts) > 1 and not full:
        return verdicts_text(verdicts, sys.stdout)
    return "\n".join(verdict_text(v, sys.stdout, full=full) for v in verdicts.values())


def _without_folder(words: tuple[str, str]) -> str:
    """The second of two WORDS of a command; of an absolute path on this machine, its name."""
    option, equals, value = words[1].rpartition("=") if words[1].startswith("--") else ("", "", words[1])
    of_hosts = "--topology-file" in (option, words[0])
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") and not of_hosts else words[1]


def _write(file: str, verdict: Verdict, *paths: Path | None) -> None:
    if not any(paths):
        return  # the template engine takes a while to import
    from busbar.judge.nccl.report.html import Origin, write_html
    from busbar.judge.nccl.report.svg import NoCurveError, write_svg

    command = shlex.join(["busbar", *map(_without_folder, pairwise(sys.argv))])
    page = partial(write_html, origin=Origin.of(file, command=command))
    writers: tuple[Callable[[Verdict, Path], object], ...] = (page, write_svg)
    for path, write in zip(paths, writers, strict=True):
        if path is None:
            continue
        try:
            write(verdict, path)
        except NoCurveError as error:
            # the log has a verdict even without a curve
            typer.echo(f"note: {path} not written: {error}", err=True)
        except OSError as error:
            fail(f"{path} not written: {error.strerror or error}", USAGE)


REFERENCES = ("confirmed by ", "floor from ", "expected from ", "none of this ")


def profiles() -> None:
    """List the profiles: each system, the all_reduce bandwidth expected of it with its floor, the sources."""
    from busbar.judge.nccl.expected.profiles import names

    print_text("\n\n".join("\n".join(_lines_of_profile(name)) for name in names()))


def _lines_of_profile(name: str) -> Iterator[str]:
    from busbar.judge.nccl import Expectation
    from busbar.judge.nccl.expected.profiles import load
    from busbar.judge.nccl.units import gbps

    profile = load(name)
    yield f"{name}: {profile.description}"
    known = False
    for nodes in sorted({1, 2, profile.workers, profile.nodes_per_domain}):
        found = Expectation(profile=name, nodes=nodes).bounds("all_reduce")
        if found.expected is None or found.floor is None:
            continue
        known = True
        used = [line for line in found.reasoning if line.startswith(REFERENCES)] or ["computed"]
        text = (
            f"{counted(nodes, 'host')}: {gbps(found.expected)}, floor {gbps(found.floor)}; {'; '.join(used)}"
        )
        yield from textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    ")
    if not known:
        yield "  no figure is known: give --expected-busbw"
    yield f"  profile from {profile.source}"
