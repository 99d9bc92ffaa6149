"""`busbar preflight`: checks every host of a stack before anything is changed on any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.engine_commands import PREVIOUS_RESULT, request
from busbar.cli.operation import operations_of
from busbar.cli.output import fail, print_result, progress
from busbar.cli.stackfile import STACK_HELP, AsJson, Project, find_file, stack_argument
from busbar.exits import USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from busbar.preflight.facts import HostRecord
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import Outcome


def preflight(
    stack: Annotated[str | None, stack_argument(f"{STACK_HELP} Without it a spec comes on stdin.")] = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Check all hosts in parallel over SSH and report every finding with its fix; nothing is changed.

    Exit code 0: all hosts are ready; 1: findings; 64: no such stack, or no spec on stdin.
    """
    import asyncio
    import sys

    from busbar.config.stackfile import stack_of
    from busbar.preflight import facts, output
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import survey

    if stack is None and sys.stdin.isatty():
        fail("Missing argument 'STACK'. Fix: see busbar preflight --help", USAGE)
    if not stack:
        spec = request(Spec)
        outcome = asyncio.run(survey(spec, previous_result(), deliver=True))
        end(spec, outcome)
        typer.echo(facts.pack(outcome.records))
        return
    path = find_file(stack, project)
    spec, outcome = operations_of(path).preflight(path)
    result = {"stack": stack_of(path), **output.data(spec, outcome)}
    print_result(result, as_json, lambda: show(spec, outcome))
    end(spec, outcome, listed=False)


def previous_result() -> Mapping[str, HostRecord]:
    """The records of the last update, from the environment; empty, with a warning, if they cannot be read."""
    import os

    from busbar.preflight import facts

    if text := os.environ.get(PREVIOUS_RESULT):
        try:
            return facts.read(text)
        except ValueError as unreadable:
            # Without the previous result all hosts are checked again.
            progress(f"warning: the previous result is not used: {unreadable}")
    return {}


def end(spec: Spec, outcome: Outcome, *, listed: bool = True) -> None:
    """Print the findings, if `listed`, and the summary. Ends the command with 1 if a host is not ready."""
    from busbar.preflight.output import lines, summary

    for level, text in lines(outcome.findings) if listed else ():
        progress(f"{level}: {text}")
    if outcome.errors:
        fail(summary(spec, outcome), 1)
    progress(summary(spec, outcome))


def show(spec: Spec, outcome: Outcome, nodes: Mapping[str, str] | None = None) -> None:
    """Print the table of the hosts, with the states of their Nodes if given, and the findings."""
    from rich.console import Console

    from busbar.preflight.output import lines, states, table

    console = Console()
    made = table(spec, outcome, nodes)
    wide = console.options.update_width(10_000)
    if console.measure(made, options=wide).maximum > console.width:
        for column in made.columns:
            column.width = max(console.measure(each).minimum for each in (column.header, *column.cells))
    # A terminal wraps a line that is too long; rich would break words.
    console.width = max(console.width, console.measure(made, options=wide).maximum)
    console.print(made)
    for text in states(nodes or {}):
        console.print("Node", text, markup=False, highlight=False, soft_wrap=True)
    for level, text in lines(outcome.findings):
        console.print(level, style="red" if level == "error" else "yellow", end=" ")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
