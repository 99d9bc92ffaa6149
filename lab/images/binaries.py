"""Go programs for the images."""

from __future__ import annotations

import struct
from pathlib import Path

from lab.steps import LabError

_INTERPRETER = 3  # PT_INTERP: the program asks for a dynamic linker [elf(5)]


def static(program: Path) -> Path:
    """Returns `program`, after a check that it exists and runs in an image without libraries.

    Raises LabError for a program that is missing or dynamically linked.
    """
    if not program.is_file():
        raise LabError(f"{program}: missing. Fix: `python -m lab build` builds it before the images")
    if _wants_interpreter(program):
        raise LabError(
            f"{program}: linked dynamically, but its image has no libraries. Fix: build with CGO_ENABLED=0"
        )
    return program


def _wants_interpreter(program: Path) -> bool:
    """Whether a 64-bit little-endian ELF file has a PT_INTERP segment; LabError for any other file."""
    data = program.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise LabError(f"{program}: not a 64-bit little-endian ELF program")
    offset, entry_size, entries = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    return any(
        struct.unpack_from("<I", data, offset + number * entry_size)[0] == _INTERPRETER
        for number in range(entries)
    )
