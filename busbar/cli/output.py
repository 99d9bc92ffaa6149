"""Output of commands whose exit code is a result."""

from __future__ import annotations

import os
import sys


def print_text(text: str) -> None:
    """Print TEXT on stdout. A reader that has gone (`| head -1`) does not change the exit code."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Send stdout nowhere from now on: Python flushes it again at its end, and would exit with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
