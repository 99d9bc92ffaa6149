"""The command line, `python -m busbar`; MODULES says where its commands are.

Exit codes: 0 good, 1 a finding, 64 bad usage (sysexits' EX_USAGE; 2 means "no verdict" in `nccl check`),
70 an error of busbar itself. Imports inside commands are lazy, so that `--help` and the short commands start
quickly and `busbar nccl` needs no package of the extra `stack`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from busbar.cli.stack.errors import USAGE, missing_package

EX_USAGE = USAGE
EX_SOFTWARE = 70

# Set to show the traceback of an internal error.
TRACEBACK = "BUSBAR_TRACEBACK"

# What the distributions of the extra `stack` are imported as.
STACK_MODULES = (
    "asyncssh",
    "bcrypt",
    "packaging",
    "pulumi",
    "pulumi_command",
    "pulumi_kubernetes",
    "pulumi_random",
    "urllib3",
)

# Sub-module, the group its commands go to ("" is the top level), and their functions; a module without these
# adds its commands by `register(group)`. Capabilities add groups of their own.
MODULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("busbar.cli.config", "", ("schema", "check_config")),
    ("busbar.cli.preflight", "", ("preflight",)),
    ("busbar.cli.verify", "", ("verify",)),
    ("busbar.cli.restore", "", ("snapshots", "restore")),
    ("busbar.cli.rotate", "", ("rotate",)),
    ("busbar.cli.wait", "", ()),
    ("busbar.cli.removal", "", ()),
    ("busbar.cli.taints", "", ("set_taints",)),
    ("busbar.cli.show", "", ("show",)),
    ("busbar.cli.support", "", ("support_bundle",)),
    ("busbar.cli.stack", "", ()),
    ("busbar.cli.nccl", "nccl", ()),
    ("busbar.cli.nccl_profiles", "nccl", ()),
    ("busbar.cli.nccl_run", "nccl", ()),
    ("busbar.cli.nccl_script", "nccl", ()),
    ("busbar.cli.collect", "nccl", ("collect",)),
    ("busbar.cli.image", "nccl", ("pull_image",)),
)
# The engine runs them.
HIDDEN = {"set_taints", "pull_image"}


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """Assemble the command line from the sub-modules: of one group only, where ARGUMENTS begin with it."""
    # typer exits with 2 on bad usage; its base class of usage errors is public only as BadParameter's base.
    setattr(typer.BadParameter.__base__, "exit_code", EX_USAGE)  # noqa: B010
    app = typer.Typer(
        name="busbar",
        help="From a list of machines to a K3s cluster whose InfiniBand fabric has been measured.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    groups = {
        "": app,
        "nccl": typer.Typer(
            help="Measure a cluster with nccl-tests; read and judge its logs.", no_args_is_help=True
        ),
    }
    app.add_typer(groups["nccl"], name="nccl")
    # the signature of every registered command is read: that of all takes as long as a short command
    only = arguments[0] if arguments and arguments[0] in groups else None
    for module, group, names in MODULES:
        if only in (None, group):
            found = importlib.import_module(module)
            if not names:
                found.register(groups[group])
            for name in names:
                groups[group].command(hidden=name in HIDDEN)(getattr(found, name))
    if only is None:
        _add_capabilities(app)
    return app


def _add_capabilities(app: typer.Typer) -> None:
    from busbar.capability import capabilities

    for capability in capabilities():
        group = typer.Typer(help=capability.help, no_args_is_help=True)
        capability.register(group)
        app.add_typer(group, name=capability.name)


def main() -> NoReturn:
    """Run the command line and exit the process. An error of busbar itself is one line and exit code 70."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not fail
    try:
        build(sys.argv[1:])()
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        text, code = _explain(error)
        typer.echo(f"busbar: {text}", err=True)
        raise SystemExit(code) from None
    raise SystemExit(0)


def _explain(error: Exception) -> tuple[str, int]:
    """What to print about an error that no command handles, and the exit code."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if module in STACK_MODULES:
            return missing_package(module), EX_USAGE
    message = " ".join(str(error).split())[:300]
    return (
        f"internal error: {type(error).__name__}{': ' if message else ''}{message} (at {_origin(error)}). "
        f"No result. Fix: report it with the output of the same command under {TRACEBACK}=1.",
        EX_SOFTWARE,
    )


def _origin(error: Exception) -> str:
    """The last line of busbar on the way to ERROR, such as busbar/nccl/judgement.py:37."""
    root = Path(__file__).resolve().parents[2]
    found, trace = "?", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(root / "busbar") or file.is_relative_to(root / "stacks"):
            found = f"{file.relative_to(root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
