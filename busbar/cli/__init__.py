"""The command line, `python -m busbar`: each sub-module adds its commands by `register(group)`.

Exit codes: 0 good, 1 a finding, 64 bad usage (sysexits' EX_USAGE; 2 means "no verdict" in `nccl check`).
Imports inside commands are lazy, so that `--help` and the short commands start quickly.
"""

from __future__ import annotations

import importlib
from typing import NoReturn

import typer

EX_USAGE = 64

# Sub-module and the group its commands go to: "" is the top level.
MODULES = (
    ("busbar.cli.config", ""),
    ("busbar.cli.preflight", ""),
    ("busbar.cli.wait", ""),
    ("busbar.cli.show", ""),
    ("busbar.cli.support", ""),
    ("busbar.cli.stack", ""),
    ("busbar.cli.nccl", "nccl"),
    ("busbar.cli.collect", "nccl"),
)


def build() -> typer.Typer:
    """Assemble the whole command line from the sub-modules."""
    # typer exits with 2 on bad usage; its base class of usage errors is public only as BadParameter's base.
    setattr(typer.BadParameter.__base__, "exit_code", EX_USAGE)  # noqa: B010
    app = typer.Typer(
        name="busbar",
        help="From a list of machines to a K3s cluster whose InfiniBand fabric has been measured.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    groups = {"": app, "nccl": typer.Typer(help="Read and judge nccl-tests logs.", no_args_is_help=True)}
    app.add_typer(groups["nccl"], name="nccl")
    for module, group in MODULES:
        importlib.import_module(module).register(groups[group])
    return app


def main() -> NoReturn:
    """Run the command line and exit the process."""
    build()()
    raise SystemExit(0)
