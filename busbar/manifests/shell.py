"""The scripts of this folder, which pods and jobs of Slurm run, as texts with their values."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

Values = Mapping[str, str | int | Sequence[str]]


def script(values: Values, *files: str) -> str:
    """The script of some files: their values as assignments (a sequence is an array), and the files."""
    assigned = "".join(
        f"{name}={shlex.quote(str(value)) if isinstance(value, str | int) else f'({shlex.join(value)})'}\n"
        for name, value in values.items()
    )
    return "\n".join([assigned, *map(text, files)])


@cache
def text(file: str) -> str:
    """The text of `file`.sh without its first line."""
    found = resources.files(__package__).joinpath(f"{file}.sh").read_text(encoding="utf-8")
    return found.partition("\n")[2]
