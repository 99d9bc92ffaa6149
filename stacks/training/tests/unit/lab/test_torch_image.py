"""The image for training runs: what is changed in Debian's torch and DeepSpeed."""

from pathlib import Path

import pytest

from lab.steps import LabError
from stacks.training.lab.images import torch_image

PATCHES = (*torch_image._WITHOUT_LIBUV, *torch_image._WITHOUT_COMPILER)


def test_another_torch_is_refused_and_not_half_changed_in_silence(tmp_path: Path) -> None:
    for name, old, _ in PATCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / name).open("a") as file:
            file.write(old)
    (tmp_path / PATCHES[-1][0]).write_text("TCPStore()\n")
    with pytest.raises(LabError, match=r"found 0 places .* Fix: adapt"):
        torch_image.adapt(tmp_path)
