"""`busbar preflight`: look at every host of a stack before anything is changed on any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import Outcome

# The command plugin hands over the former result under this name.
FORMER_RESULT = "PULUMI_COMMAND_STDOUT"


def register(group: typer.Typer) -> None:
    """Add the command to the top level."""
    group.command("preflight")(preflight)


def preflight(
    stack: Annotated[
        str | None, typer.Argument(help="Stack to read from Pulumi.STACK.yaml; else a spec comes on stdin.")
    ] = None,
) -> None:
    """Check all hosts in parallel over SSH and report every finding with its cure; nothing is changed.

    Exit code 0: fit for the bring-up; 1: not; 64: no usable configuration.
    """
    import asyncio
    import os
    import sys

    from busbar.preflight import facts
    from busbar.preflight.survey import survey

    spec = _from_stack(stack) if stack else _from_stdin(sys.stdin.read())
    former = {}
    if not stack and (text := os.environ.get(FORMER_RESULT)):
        try:
            former = facts.read(text)
        except ValueError as error:
            # Nothing is lost: every host is asked again.
            typer.echo(f"busbar preflight: the former result is left out: {error}", err=True)
    try:
        outcome = asyncio.run(survey(spec, former))
    except ValueError as error:
        typer.echo(f"busbar preflight: {error}", err=True)
        raise typer.Exit(1) from None
    if stack:
        _show(spec, outcome)
    else:
        _report(spec, outcome)
        if not outcome.errors:
            typer.echo(facts.pack(outcome.passed))
    if outcome.errors:
        raise typer.Exit(1)


def _from_stdin(text: str) -> Spec:
    from pydantic import ValidationError

    from busbar.cli import EX_USAGE
    from busbar.preflight.spec import Spec

    try:
        return Spec.model_validate_json(text)
    except ValidationError as error:
        # The input holds a private key: the error may say where, never what.
        for detail in error.errors(include_input=False, include_url=False):
            where = ".".join(map(str, detail["loc"])) or "stdin"
            typer.echo(f"busbar preflight: {where}: {detail['msg']}", err=True)
        raise typer.Exit(EX_USAGE) from None


def _from_stack(stack: str) -> Spec:
    from pathlib import Path

    from busbar.cli import EX_USAGE
    from busbar.config import ConfigError
    from busbar.preflight.stackfile import spec_of_stack

    try:
        return spec_of_stack(stack, Path.cwd())
    except ConfigError as error:
        for finding in error.findings:
            typer.echo(f"busbar preflight: {finding}", err=True)
        raise typer.Exit(EX_USAGE) from None


def _report(spec: Spec, outcome: Outcome) -> None:
    from busbar.preflight.findings import lines

    for level, text in lines(outcome.findings):
        typer.echo(f"{level}: {text}", err=True)
    total, bad = len(spec.hosts), len({finding.host for finding in outcome.errors})
    asked = "" if outcome.asked == total else f" ({total - outcome.asked} had passed before)"
    verdict = f"{bad} of {total} hosts are not fit; nothing was changed" if bad else f"{total} hosts are fit"
    typer.echo(f"busbar preflight: {verdict}{asked}", err=True)


def _show(spec: Spec, outcome: Outcome) -> None:
    from rich.console import Console

    from busbar.preflight.findings import lines
    from busbar.preflight.table import table

    console = Console()
    console.print(table(spec, outcome))
    for level, text in lines(outcome.findings):
        console.print(level, style="red" if level == "error" else "yellow", end=" ")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
