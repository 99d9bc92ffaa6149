"""The console on which the commands of this package print."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from busbar.cli.output import discard_stdout


class LastingConsole(Console):
    """A console on stdout that discards its output once the terminal is lost or the reader ends (`| head`).

    Its errors must not end a command that watches over the engine: the engine would go on alone.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, or discard the output if there is no reader."""
        try:
            super().print(*objects, **options)
        except OSError:
            discard_stdout()

    def on_broken_pipe(self) -> None:
        """Do nothing, where rich would end the process."""
        discard_stdout()
