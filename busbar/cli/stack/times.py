"""`busbar timeline`: where the time of the last update went; and the record that `busbar up` keeps for it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.errors import DONE, USAGE, StackError
from busbar.cli.stack.keep import near
from busbar.cli.stack.rows import Rows
from busbar.cli.stack.target import Target
from busbar.timeline import FILE, Timeline, picture

PICTURE = "timeline.svg"


def keep(rows: Rows, state: Snapshot, target: Target) -> None:
    """Keep the steps of an update that had some; one without leaves the record of the one before it."""
    if not rows.steps:
        return
    began = f"{rows.began:%Y-%m-%d %H:%M:%S} UTC"
    Timeline(target.name, began, rows.seconds, tuple(rows.steps), state.ahead).write(target.folder)


def forget(target: Target) -> None:
    """Remove the record and the picture: the stack is gone."""
    for name in (FILE, PICTURE):
        (target.folder / name).unlink(missing_ok=True)


def show(target: Target, output: Path | None) -> int:
    """Print the critical path and write the picture. Raises StackError if there is none, or no file."""
    try:
        timeline = Timeline.read(target.folder)
    except ValueError as error:
        raise StackError(str(error), exit_code=USAGE) from None
    if timeline is None:
        raise StackError(
            f"no update of {target.name} was recorded in {near(target.folder)}. "
            f"Fix: `busbar up {target.name}` records its steps; `pulumi up` does not.",
            exit_code=USAGE,
        )
    console = Console(highlight=False, soft_wrap=True)
    path = timeline.critical_path()
    idle = sum(wait.idle for wait in path)
    after = timeline.seconds - path[-1].step.ended
    console.print(Text(f"update of {timeline.stack}, {timeline.began}: {timeline.seconds:.0f} s", "bold"))
    console.print(
        f"critical path, {len(path)} of {len(timeline.steps)} steps; each waited for the one above it:"
    )
    console.print("   began       took  idle before")
    for wait in path:
        step = wait.step
        console.print(f"  {step.began:6.1f} s  {step.seconds:6.1f} s  {wait.idle:6.1f} s    {step.name}")
    console.print(f"idle between these steps {idle:.1f} s; after the last one {after:.1f} s")
    file = output or target.folder / PICTURE
    try:
        file.write_text(picture(timeline), encoding="utf-8")
    except OSError as error:
        raise StackError(f"{file} cannot be written: {error.strerror}", exit_code=USAGE) from None
    console.print(f"picture: {near(file)}")
    return DONE
