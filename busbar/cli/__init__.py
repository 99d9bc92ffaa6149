"""The command line, `python -m busbar`; MODULES lists the modules with its commands.

Imports inside commands are lazy, so that `--help` and the short commands start
quickly and `busbar nccl` needs no package of the extra `stack`.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from busbar.cli.ending import guarded
from busbar.cli.engine_commands import ENGINE_COMMANDS
from busbar.cli.output import error as print_error
from busbar.cli.stack.errors import missing_package
from busbar.exits import FAILED, INTERRUPTED, SOFTWARE, USAGE

# The class that typer raises on bad usage is public only as BadParameter's base.
USAGE_ERROR: Any = typer.BadParameter.__base__

# Set to show the traceback of an internal error.
TRACEBACK = "BUSBAR_TRACEBACK"

# The import names of the distributions of the extra `stack`.
STACK_MODULES = (
    "asyncssh",
    "bcrypt",
    "packaging",
    "pulumi",
    "pulumi_command",
    "pulumi_kubernetes",
    "pulumi_random",
    "ruamel",
    "urllib3",
)

# Errors of files that are not defects of busbar, with the fix.
FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "let your user write there"),
}

# Panels of `busbar --help`, in their order.
BRING_UP, BEFORE, RUNNING, FABRIC = "Bring-up", "Before an update", "Running cluster", "Measurement"

# Sub-module, the group of its commands ("" is the top level), their panel in the help, and their functions;
# a module without functions adds its commands by `register(group)`. Capabilities add groups.
MODULES: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("busbar.cli.stack", "", BRING_UP, ("up", "preview", "status", "destroy", "recover")),
    ("busbar.cli.init", "", BEFORE, ("init",)),
    ("busbar.cli.config", "", BEFORE, ("check_config",)),
    ("busbar.cli.preflight", "", BEFORE, ("preflight",)),
    ("busbar.cli.config", "", BEFORE, ("schema",)),
    ("busbar.cli.images", "", BEFORE, ("images",)),
    ("busbar.cli.docs", "", BEFORE, ("docs",)),
    ("busbar.cli.verify", "", RUNNING, ("verify",)),
    ("busbar.cli.nodes", "", RUNNING, ("nodes",)),
    ("busbar.cli.drain", "", RUNNING, ("drain", "uncordon")),
    ("busbar.fabric.commands.diagnose", "", RUNNING, ("diagnose",)),
    ("busbar.cli.restore", "", RUNNING, ("snapshots", "restore")),
    ("busbar.cli.support", "", RUNNING, ("support_bundle",)),
    ("busbar.cli.hosts", "hosts", None, ()),
    ("busbar.fabric.commands.measure", "", FABRIC, ("measure",)),
    ("busbar.fabric.commands.history", "", FABRIC, ("history",)),
    ("busbar.fabric.commands.nccl_run", "nccl", None, ()),
    ("busbar.cli.nccl", "nccl", None, ()),
    ("busbar.fabric.commands.nccl_script", "nccl", None, ()),
    ("busbar.cli.nccl_profiles", "nccl", None, ()),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from busbar.release import line

        typer.echo(line())
        raise typer.Exit


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """Assemble the command line from the sub-modules; only the group that ARGUMENTS begin with, if any."""
    setattr(USAGE_ERROR, "exit_code", USAGE)  # noqa: B010  (typer has 2)
    app = typer.Typer(
        name="busbar",
        help="From a list of machines to a K3s cluster whose InfiniBand fabric has been measured.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    groups = {
        "": app,
        "hosts": typer.Typer(help="SSH host keys; hosts from other inventories.", no_args_is_help=True),
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
    _finish(app)
    return app


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and commit."),
    ] = False,
) -> None:
    """From a list of machines to a K3s cluster whose InfiniBand fabric has been measured."""


def _finish(group: typer.Typer) -> None:
    """Let each command end by the table of exit codes, with its docstring as help.

    Each paragraph of the help is joined into one line, because typer would keep the line breaks.
    """
    for command in group.registered_commands:
        if command.callback:
            command.callback = guarded(command.callback)
        paragraphs = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance:
            _finish(each.typer_instance)


def _add_engine_commands(app: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    """Add the engine's commands, hidden, to the groups of this command line."""
    if "" in groups:
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


def main() -> NoReturn:
    """Run the command line and exit the process. An error of busbar itself is one line and exit code 70."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not fail
    try:
        code = build(sys.argv[1:])(standalone_mode=False)
    except typer.Abort:  # the end of input at a question
        print_error("interrupted; no changes made")
        code = INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK) and not isinstance(error, USAGE_ERROR):
            raise
        text, code = _explain(error)
        if text:
            print_error(text)
    raise SystemExit(code)


def _explain(error: Exception) -> tuple[str, int]:
    """The text to print for an error that no command handles, and the exit code."""
    if isinstance(error, USAGE_ERROR):
        return _usage(error), USAGE
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if module in STACK_MODULES:
            return missing_package(module), USAGE
    if isinstance(error, OSError) and (fix := FIXES.get(error.errno or 0)):
        where = error.filename or _origin(error)
        return f"{error.strerror} for a file (at {where}). Fix: {fix}, then retry.", FAILED
    message = " ".join(str(error).split())[:300]
    return (
        f"internal: {type(error).__name__}{': ' if message else ''}{message} (at {_origin(error)}). "
        f"No result. Fix: report it with the output of the same command under {TRACEBACK}=1.",
        SOFTWARE,
    )


def _usage(error: Any) -> str:
    """The text to print for bad usage; empty where typer has printed the help."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    if not text or error.ctx is None:
        return text
    return f"{text}{'' if text.endswith('?') else '.'} Fix: see {error.ctx.command_path} --help"


def _origin(error: Exception) -> str:
    """The last line of busbar in the traceback of ERROR, such as busbar/judge/nccl/judgement.py:37."""
    root = Path(__file__).resolve().parents[2]
    found, trace = "?", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(root / "busbar") or file.is_relative_to(root / "stacks"):
            found = f"{file.relative_to(root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
