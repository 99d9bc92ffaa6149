"""Go programs for the images: from the lab's tools, and the device simulators built here."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from lab.build.recipe import key
from lab.paths import LAB
from lab.steps import LabError, locked, run_logged, step

DEVICES_SOURCES = LAB / "go" / "devices"
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


def devices(work: Path) -> Path:
    """The simulator of device plugins and operators, built from lab/go/devices."""
    result = work / f"devices-{key(DEVICES_SOURCES)}"
    with locked(work / "locks" / "devices"):
        if not result.is_file():
            stage = result.with_name(result.name + ".new")
            with step("build the device plugin"):
                run_logged(
                    ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", stage, "."],
                    work / "logs" / f"{result.name}.log",
                    deadline=1200,
                    cwd=DEVICES_SOURCES,
                    env={**os.environ, "CGO_ENABLED": "0"},
                )
            os.replace(stage, result)
    return static(result)


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
