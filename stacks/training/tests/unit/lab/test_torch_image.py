"""The image for training runs: what is changed in Debian's torch and DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.steps import LabError
from stacks.training.lab.images import torch_image

PATCHES = (*torch_image._WITHOUT_LIBUV, *torch_image._WITHOUT_COMPILER)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A tree whose files have each place once."""
    for name, old, _ in PATCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write(old)
    return tmp_path


def test_stores_do_without_libuv_and_deepspeed_without_a_compiler(packages: Path) -> None:
    torch_image.adapt(packages)
    assert [name for name, _, new in PATCHES if new not in (packages / name).read_text()] == []


def test_another_torch_is_refused_and_not_half_changed_in_silence(packages: Path) -> None:
    (packages / PATCHES[-1][0]).write_text("TCPStore()\n")
    with pytest.raises(LabError, match=r"found 0 places .* Fix: adapt"):
        torch_image.adapt(packages)
