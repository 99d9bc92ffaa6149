"""The simulated nvidia-smi and ibv_devinfo answer in the form of the real ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lab.hosts import disk
from tests.support import h200
from tests.unit.hosts.bash import output

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


def test_the_active_mtu_of_each_hca_is_read_as_from_the_real_ibv_devinfo(tmp_path: Path) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        port = tmp_path / name / "ports/1"
        port.mkdir(parents=True)
        (tmp_path / name / "fw_ver").write_text("28.43.2566\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text("InfiniBand\n")
    (tmp_path / "mtus").write_text("mlx5_1 2048\n")
    text = (
        (SIMULATOR.parent / "ibv_devinfo").read_text().replace("/sys/class/infiniband/*", f"{tmp_path}/mlx*")
    )
    program = tmp_path / "bin/ibv_devinfo"
    program.parent.mkdir()
    program.write_text(text.replace("/usr/local/lib/busbar-lab", str(tmp_path)))
    program.chmod(0o755)
    assert output("preflight", f"PATH={program.parent}:$PATH; active_mtus").splitlines() == [
        "mlx5_0/1 4096",
        "mlx5_1/1 2048",
    ]


def test_a_corrupted_inforom_ends_the_program_with_14(tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text("2\n")
    (tmp_path / "inforom").write_text("0000:11:00.0\n")
    text = SIMULATOR.read_text().replace("/usr/local/lib/busbar-lab", str(tmp_path))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 14
    assert done.stdout.splitlines()[-1] == "WARNING: infoROM is corrupted at gpu 0000:11:00.0"
