"""The `busbar` command in this process."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import patch

import typer.testing

from busbar.cli import build


@functools.cache
def _command() -> Any:
    """To read the signatures of all commands takes longer than most commands."""
    return typer.main.get_command(build())


def busbar(*words: str, stdin: str | None = None) -> typer.testing.Result:
    """Run the command with these words."""
    with patch.object(typer.testing, "_get_command", lambda _: _command()):
        return typer.testing.CliRunner().invoke(build(), words, input=stdin)
