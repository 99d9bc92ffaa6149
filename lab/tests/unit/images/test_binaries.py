"""Programs that go into an image with nothing else in it."""

import struct
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


def test_another_program_is_refused_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    for program, said in (
        (elf(tmp_path / "dynamic", 1, 3), "CGO_ENABLED=0"),
        (tmp_path / "script", "not a 64-bit"),
        (tmp_path / "coredns", r"coredns: missing\. Fix: `python -m lab build`"),
    ):
        with pytest.raises(LabError, match=said):
            static(program)
