"""Where the commands of this package print."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from busbar.cli.output import discard_stdout


class LastingConsole(Console):
    """Stdout that may go away: a terminal is lost, a reader ends (`| head`). Then nothing is shown any more.

    An error of it must not end a command that watches over the engine: the engine would go on alone.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, or discard where nobody reads."""
        try:
            super().print(*objects, **options)
        except OSError:
            discard_stdout()

    def on_broken_pipe(self) -> None:
        """rich would end the process."""
        discard_stdout()
