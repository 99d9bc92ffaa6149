"""The command line, `python -m busbar`; MODULES lists the modules with its commands.

Imports inside commands are lazy, so that `--help` and the short commands start
quickly and `busbar nccl` needs no package of the extra `stack`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from busbar.cli.ending import end
from busbar.cli.engine import ENGINE_COMMANDS
from busbar.cli.stackfile import OPENED

# The variable by which a shell asks for completions.
COMPLETE = "_BUSBAR_COMPLETE"

LOOPBACK = ("127.0.0.1", "localhost")

# Panels of `busbar --help`, in their order.
BRING_UP, BEFORE, RUNNING, FABRIC = "Bring-up", "Before an update", "Running cluster", "Measurement"

# Sub-module, the group of its commands ("" is the top level), their panel in the help, and their functions;
# a module without functions adds its commands by `register(group)`. Capabilities add groups.
MODULES: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("busbar.cli.stack", "", BRING_UP, ("up", "preview", "status", "destroy", "recover")),
    ("busbar.cli.before", "", BEFORE, ("init", "check_config", "preflight", "schema", "images")),
    ("busbar.cli.docs", "", BEFORE, ("docs",)),
    ("busbar.cli.running", "", RUNNING, ("verify", "nodes", "drain", "uncordon")),
    ("busbar.fabric.commands.diagnose", "", RUNNING, ("diagnose",)),
    ("busbar.cli.running", "", RUNNING, ("snapshots", "restore", "support_bundle")),
    ("busbar.cli.before", "hosts", None, ("keys",)),
    ("busbar.fabric.commands.measure", "", FABRIC, ("measure", "history")),
    ("busbar.fabric.commands.nccl", "nccl", None, ()),
    ("busbar.cli.nccl", "nccl", None, ()),
)

# Commands that change something, beside those of the engine: what fails there is no missing verdict.
CHANGES = {"up", "preview", "destroy", "recover", "drain", "uncordon", "restore", "nccl clean"}


def main() -> NoReturn:
    """Run the command line and exit the process with a code of busbar/exits.py."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not fail
    _reach_loopback_directly()
    OPENED.clear()
    words = sys.argv[1:]
    code = 0
    try:
        command = build(words)
        if COMPLETE in os.environ:
            command(prog_name="busbar")
        with command.make_context("busbar", words) as context:
            command.invoke(context)
    except (Exception, KeyboardInterrupt) as error:
        named = {" ".join(words[:1]), " ".join(words[:2])}
        code = end(error, changes=not named.isdisjoint({*CHANGES, *ENGINE_COMMANDS}))
    raise SystemExit(code)


def _reach_loopback_directly() -> None:
    """Except loopback from the proxy of the environment: the engine and its programs talk there."""
    for name in ("NO_PROXY", "no_proxy"):
        known = os.environ.get(name) or os.environ.get(name.swapcase()) or ""
        missing = [each for each in LOOPBACK if each not in known.split(",")]
        os.environ[name] = ",".join(filter(None, [known, *missing]))


def _print_version(wanted: bool) -> None:
    if wanted:
        from busbar.release import line

        typer.echo(line())
        raise typer.Exit


def build(arguments: Sequence[str] = ()) -> Any:
    """Assemble the command line from the sub-modules; only the group that ARGUMENTS begin with, if any."""
    app = typer.Typer(
        name="busbar",
        help="From a list of machines to a K3s cluster whose InfiniBand fabric has been measured.",
        epilog="Exit codes: 0 done, 1 bad or not done, 2 no verdict, 64 nothing was started, 70 a defect of "
        "busbar, 130 interrupted (busbar docs operations 'Exit codes').",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
    )
    app.callback()(_options)
    groups = {
        "": app,
        "hosts": typer.Typer(help="SSH host keys.", no_args_is_help=True),
        "nccl": typer.Typer(
            help="Measure a cluster with nccl-tests; read and judge its logs.", no_args_is_help=True
        ),
    }
    app.add_typer(groups["hosts"], name="hosts", rich_help_panel=BEFORE)
    app.add_typer(groups["nccl"], name="nccl", rich_help_panel=FABRIC)
    # typer reads the signature of every registered command; all of them take as long as a short command
    only = arguments[0] if arguments and arguments[0] in groups else None
    for module, group, panel, names in MODULES:
        if only in (None, group):
            found = importlib.import_module(module)
            if not names:
                found.register(groups[group])
            for name in names:
                groups[group].command(rich_help_panel=panel)(getattr(found, name))
    if only is None:
        _add_capabilities(app, groups)
    _add_engine_commands(app, groups)
    return typer.main.get_command(app)


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and commit."),
    ] = False,
) -> None:
    """From a list of machines to a K3s cluster whose InfiniBand fabric has been measured."""


def _add_engine_commands(app: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    """Add the engine's commands, hidden, to the groups of this command line."""
    for name in ("wait", "remove"):
        groups[name] = typer.Typer(help="What the engine runs.", no_args_is_help=True)
        app.add_typer(groups[name], name=name, hidden=True)
    for words, command in ENGINE_COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if group in groups:
            groups[group].command(name, hidden=True)(command)


def _add_capabilities(app: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    from busbar.capability import capabilities

    for capability in capabilities():
        group = groups[capability.name] = typer.Typer(help=capability.help, no_args_is_help=True)
        capability.register(group)
        app.add_typer(group, name=capability.name, rich_help_panel=FABRIC)
