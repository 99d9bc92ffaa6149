"""The simulated nvidia-smi answers in the form of the real one."""

import re
import subprocess
from pathlib import Path

import pytest

from lab.hosts import disk
from tests.support import h200

SIMULATOR = Path(disk.__file__).parent / "hardware/nvidia-smi"


def form(text: str, model: str) -> str:
    """The text without names, numbers and what the simulator says of itself."""
    text = text.replace(model, "MODEL").replace(" (busbar-lab simulator)", "")
    return re.sub(r"\S*\d\S*", "#", text)


@pytest.mark.parametrize("asked", h200.NVIDIA_SMI)
def test_a_question_of_the_host_scripts_is_answered_in_the_form_of_a_real_driver(
    asked: str, tmp_path: Path
) -> None:
    (tmp_path / "gpus").write_text("1\n")
    text = SIMULATOR.read_text().replace("/usr/local/lib/busbar-lab", str(tmp_path))
    done = subprocess.run(
        ["bash", "-c", text, "nvidia-smi", *asked.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert form(done.stdout, "busbar-lab simulated GPU") == form(h200.NVIDIA_SMI[asked], "NVIDIA H200")
