"""The command line, `python -m busbar`; MODULES says where its commands are.

Imports inside commands are lazy, so that `--help` and the short commands start
quickly and `busbar nccl` needs no package of the extra `stack`.
"""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from busbar.cli.output import FAILED, INTERRUPTED, SOFTWARE, USAGE
from busbar.cli.output import error as print_error
from busbar.cli.stack.errors import missing_package

if TYPE_CHECKING:
    from busbar.capability import Capability

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

# Panels of `busbar --help`, in their order.
BRING_UP, BEFORE, RUNNING, FABRIC = "Bring-up", "Before an update", "Running cluster", "Measurement"

# Sub-module, the group its commands go to ("" is the top level), their panel in the help, and their
# functions; a module without these adds its commands by `register(group)`. Capabilities add groups.
MODULES: tuple[tuple[str, str, str | None, tuple[str, ...]], ...] = (
    ("busbar.cli.stack", "", BRING_UP, ("up", "preview", "status", "destroy")),
    ("busbar.cli.init", "", BEFORE, ("init",)),
    ("busbar.cli.config", "", BEFORE, ("check_config",)),
    ("busbar.cli.preflight", "", BEFORE, ("preflight",)),
    ("busbar.cli.config", "", BEFORE, ("schema",)),
    ("busbar.cli.images", "", BEFORE, ("images",)),
    ("busbar.cli.verify", "", RUNNING, ("verify",)),
    ("busbar.cli.nodes", "", RUNNING, ("nodes",)),
    ("busbar.cli.drain", "", RUNNING, ("drain", "uncordon")),
    ("busbar.fabric.commands.diagnose", "", RUNNING, ("diagnose",)),
    ("busbar.cli.restore", "", RUNNING, ("snapshots", "restore")),
    ("busbar.cli.rotate", "", RUNNING, ("rotate",)),
    ("busbar.cli.support", "", RUNNING, ("support_bundle",)),
    ("busbar.cli.show", "", RUNNING, ("show",)),
    ("busbar.cli.hosts", "hosts", None, ()),
    ("busbar.cli.wait", "", None, ()),
    ("busbar.cli.removal", "", None, ()),
    ("busbar.cli.taints", "", None, ("set_taints",)),
    ("busbar.fabric.commands.measure", "", FABRIC, ("measure",)),
    ("busbar.fabric.commands.history", "", FABRIC, ("history",)),
    ("busbar.fabric.commands.nccl_run", "nccl", None, ()),
    ("busbar.cli.nccl", "nccl", None, ()),
    ("busbar.fabric.commands.nccl_script", "nccl", None, ()),
    ("busbar.cli.nccl_profiles", "nccl", None, ()),
    ("busbar.cli.collect", "nccl", None, ("collect",)),
    ("busbar.cli.image", "nccl", None, ("pull_image",)),
)
# The engine runs them.
HIDDEN = {"set_taints", "collect", "pull_image"}


def _print_version(wanted: bool) -> None:
    if wanted:
        from busbar.release import line

        typer.echo(line())
        raise typer.Exit


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """Assemble the command line from the sub-modules: of one group only, where ARGUMENTS begin with it."""
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
    # the signature of every registered command is read: that of all takes as long as a short command
    only = arguments[0] if arguments and arguments[0] in groups else None
    for module, group, panel, names in MODULES:
        if only in (None, group):
            found = importlib.import_module(module)
            if not names:
                found.register(groups[group])
            for name in names:
                groups[group].command(hidden=name in HIDDEN, rich_help_panel=panel)(getattr(found, name))
    if only is None:
        _add_capabilities(app)
    _join_lines(app)
    return app


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and commit."),
    ] = False,
) -> None:
    """From a list of machines to a K3s cluster whose InfiniBand fabric has been measured."""


def _join_lines(group: typer.Typer) -> None:
    """Give each command its docstring as help, one line per paragraph: typer keeps the ends of others."""
    for command in group.registered_commands:
        paragraphs = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for each in group.registered_groups:
        if each.typer_instance:
            _join_lines(each.typer_instance)


def _add_capabilities(app: typer.Typer) -> None:
    from busbar.capability import capabilities

    for capability in capabilities():
        group = typer.Typer(help=capability.help, no_args_is_help=True)
        capability.register(group)
        if capability.schema:
            group.command("schema")(_schema_of(capability))
        app.add_typer(group, name=capability.name, rich_help_panel=FABRIC)


def _schema_of(capability: Capability) -> Callable[[], None]:
    def schema() -> None:
        """Print the JSON Schema of a stack file of this project, for editors."""
        typer.echo(json.dumps(capability.stack_schema(), indent=2))

    return schema


def main() -> NoReturn:
    """Run the command line and exit the process. An error of busbar itself is one line and exit code 70."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not fail
    try:
        code = build(sys.argv[1:])(standalone_mode=False)
    except typer.Abort:  # Ctrl-C or the end of input at a question
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
    """What to print about an error that no command handles, and the exit code."""
    if isinstance(error, USAGE_ERROR):
        return _usage(error), USAGE
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if module in STACK_MODULES:
            return missing_package(module), USAGE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or _origin(error)
        return f"{error.strerror} for a file to write (at {where}). Fix: free space, then retry.", FAILED
    message = " ".join(str(error).split())[:300]
    return (
        f"internal: {type(error).__name__}{': ' if message else ''}{message} (at {_origin(error)}). "
        f"No result. Fix: report it with the output of the same command under {TRACEBACK}=1.",
        SOFTWARE,
    )


def _usage(error: Any) -> str:
    """What to print about bad usage; nothing where typer has printed the help."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    if not text or error.ctx is None:
        return text
    return f"{text}{'' if text.endswith('?') else '.'} Fix: see {error.ctx.command_path} --help"


def _origin(error: Exception) -> str:
    """The last line of busbar on the way to ERROR, such as busbar/judge/nccl/judgement.py:37."""
    root = Path(__file__).resolve().parents[2]
    found, trace = "?", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(root / "busbar") or file.is_relative_to(root / "stacks"):
            found = f"{file.relative_to(root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
