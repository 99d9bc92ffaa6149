"""`busbar nccl check`: reads and judges a log of nccl-tests."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from busbar.cli import nccl_options as option
from busbar.cli.output import fail, print_text
from busbar.exits import USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from busbar.judge.nccl import Verdict
    from busbar.judge.nccl.checks.result import Table

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
    app.command("check", epilog=option.epilog(option.CHECK_EXAMPLES))(check)


def check(
    files: option.LogFiles,
    profile: option.Profile = None,
    expect_nodes: option.Nodes = None,
    gpus_per_node: option.GpusPerNode = None,
    rails: option.Rails = None,
    rate_gbps: option.RateGbps = None,
    gpu: option.Gpu = None,
    algorithm: option.Algorithm = None,
    transport: option.Transport = None,
    collective: option.Collectives = None,
    expected_busbw: option.ExpectedBusbw = None,
    tolerance: option.Tolerance = 0.1,
    topology_file: option.TopologyFile = None,
    plugin: option.Plugin = None,
    hca: option.Hcas = None,
    min_nccl: option.MinNccl = None,
    accept_warn: option.AcceptWarn = None,
    as_json: option.AsJson = False,
    full: option.Full = False,
    plot: option.Plot = True,
    html: option.Html = None,
    svg: option.Svg = None,
) -> None:
    """Judge a log against what the hardware can do: the verdict, its first cause and line, what to do next.

    Exit code 0: pass; 1: fail; 2: no verdict because evidence is missing (never a pass); 64: bad usage;
    70: an error of busbar itself; 130: interrupted.
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
    reports = {".html": html, ".svg": svg}
    for file in dict.fromkeys(files):
        log = read_file(file)
        verdicts[file] = judge_log(log, expectation)
        printed[file] = tables(log) if as_json else []
        paths = reports if len(files) == 1 else _in_folders(reports, file, len(verdicts))
        _write(file, verdicts[file], paths)
    print_text(_json(verdicts, printed) if as_json else _shown(verdicts, full=full, plot=plot))
    raise typer.Exit(min((v.exit_code for v in verdicts.values()), key=WORST.index))


def _bad_option(problem: Mapping[str, Any]) -> str:
    """The text of pydantic's error about the value of an option, by the option's name."""
    field = str(problem["loc"][0])
    option = OPTIONS.get(field, field.replace("_", "-"))
    return f"--{option}: {problem['msg'].removeprefix('Value error, ')}, got {problem['input']!r}"


def _json(verdicts: Mapping[str, Verdict], printed: Mapping[str, list[Table]]) -> str:
    """The verdict with all tables of its log; of several files a list."""
    import json

    found = [
        {**verdict.model_dump(mode="json"), "tables": [table.model_dump() for table in printed[file]]}
        for file, verdict in verdicts.items()
    ]
    if len(found) == 1:
        return json.dumps(found[0], indent=1)
    return json.dumps([{"file": file, **each} for file, each in zip(verdicts, found, strict=True)], indent=1)


def _shown(verdicts: dict[str, Verdict], *, full: bool, plot: bool) -> str:
    from busbar.judge.nccl.report.terminal import verdict_text, verdicts_text

    if len(verdicts) > 1 and not full:
        return verdicts_text(verdicts, sys.stdout)
    return "\n".join(verdict_text(v, sys.stdout, full=full, plot=plot) for v in verdicts.values())


def _in_folders(reports: dict[str, Path | None], file: str, number: int) -> dict[str, Path | None]:
    """Paths of the reports on FILE, the NUMBER-th of several, in the folders of REPORTS."""
    name = "stdin" if file == "-" else Path(file).stem
    for folder in filter(None, reports.values()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{folder}: not a folder for the reports of several files: {error.strerror}", USAGE)
    return {end: folder and folder / f"{number}-{name}{end}" for end, folder in reports.items()}


def _without_folder(words: tuple[str, str]) -> str:
    """The second of two WORDS of a command; of an absolute path on this machine, its name."""
    option, equals, value = words[1].rpartition("=") if words[1].startswith("--") else ("", "", words[1])
    of_hosts = "--topology-file" in (option, words[0])
    return f"{option}{equals}{Path(value).name}" if value.startswith("/") and not of_hosts else words[1]


def _write(file: str, verdict: Verdict, reports: dict[str, Path | None]) -> None:
    if not any(reports.values()):
        return  # the template engine takes a while to import
    from busbar.judge.nccl.report.html import Origin, write_html
    from busbar.judge.nccl.report.svg import NoCurveError, write_svg

    command = shlex.join(["busbar", *map(_without_folder, pairwise(sys.argv))])
    page = partial(write_html, origin=Origin.of(file, command=command))
    writers: tuple[Callable[[Verdict, Path], object], ...] = (page, write_svg)
    for path, write in zip(reports.values(), writers, strict=True):
        if path is None:
            continue
        try:
            write(verdict, path)
        except NoCurveError as error:
            # the log has a verdict even without a curve
            typer.echo(f"note: {path} not written: {error}", err=True)
        except OSError as error:
            fail(f"{path} not written: {error.strerror or error}", USAGE)
