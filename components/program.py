"""The command line of busbar as the engine's plugins run it."""

from __future__ import annotations

import os
import shlex
import sys


def busbar_command(*arguments: str) -> str:
    """`<python> -m busbar <arguments>`, quoted, for a `local.Command` that runs in the project folder.

    The interpreter is the one that runs the program (plugins do not get its PATH), written relative to the
    project where it lies inside, so that two checkouts of one project agree on the text.
    """
    interpreter = sys.executable
    relative = os.path.relpath(interpreter)
    if not relative.startswith(os.pardir):
        interpreter = os.path.join(os.curdir, relative)
    return shlex.join([interpreter, "-m", "busbar", *arguments])
