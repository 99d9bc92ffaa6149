"""Programs that go into an image with nothing else in it."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from lab.images.binaries import static
from lab.steps import LabError


def elf(path: Path, *segments: int) -> Path:
    """A 64-bit ELF file with these program header types and nothing behind them."""
    header = b"\x7fELF\x02\x01\x01" + bytes(25) + struct.pack("<Q", 64) + bytes(14)
    header += struct.pack("<HH", 56, len(segments)) + bytes(6)
    path.write_bytes(header + b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments))
    return path


def test_a_static_program_is_taken(tmp_path: Path) -> None:
    program = elf(tmp_path / "coredns", 1, 4)
    assert static(program) == program


def test_a_program_that_needs_a_dynamic_linker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="CGO_ENABLED=0"):
        static(elf(tmp_path / "coredns", 1, 3))


def test_this_python_is_recognised_as_it_is() -> None:
    interpreter = Path(sys.executable).resolve()
    if interpreter.read_bytes()[:6] != b"\x7fELF\x02\x01":
        pytest.skip(f"{interpreter} is not a 64-bit little-endian ELF program")
    with pytest.raises(LabError, match="linked dynamically"):
        static(interpreter)


def test_a_missing_program_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"coredns: missing\. Fix: `python -m lab build`"):
        static(tmp_path / "coredns")


def test_a_script_is_no_program_for_an_image(tmp_path: Path) -> None:
    (tmp_path / "coredns").write_text("#!/bin/sh\n")
    with pytest.raises(LabError, match="not a 64-bit"):
        static(tmp_path / "coredns")
