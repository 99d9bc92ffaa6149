"""The `busbar` command in this process."""

import functools
import sys
from typing import Any
from unittest.mock import patch

import typer.testing
from rich.console import Console

from busbar.cli import main as cli


@functools.cache
def command() -> Any:
    """To read the signatures of all commands takes longer than most commands."""
    return cli.build()


def shown(renderable: Any) -> str:
    """The text that a wide terminal shows, without colours."""
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


class _Main:
    """CliRunner runs this: the function `main` instead of its own way to end a command."""

    name = "busbar"

    def main(self, args: Any, **_: Any) -> None:
        with patch.object(sys, "argv", ["busbar", *args]):
            cli.main()


def busbar(*words: str, stdin: str | bytes | None = None) -> typer.testing.Result:
    """Run the command with these words."""
    made = command()
    known = patch.object(cli, "build", lambda _: made)
    with known, patch.object(typer.testing, "_get_command", lambda _: _Main()):
        return typer.testing.CliRunner().invoke(typer.Typer(), words, input=stdin)
