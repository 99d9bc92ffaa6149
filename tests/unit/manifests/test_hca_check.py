"""What a pod does whose device plugin has promised HCAs that are not in it."""

import subprocess
from pathlib import Path

import pytest

from busbar.manifests.scheduling import HCA_CHECK

TWO = "0000:1b:00.0,0000:9b:00.0"


def checked(
    folder: Path, shell: str, promised: dict[str, str], *devices: str, known: bool = True
) -> subprocess.CompletedProcess[str]:
    """The check in a pod with these devices; KNOWN: the kernel says which HCA each of them is of."""
    for place in ("dev/infiniband", "sys/bus/pci/devices"):
        (folder / place).mkdir(parents=True)
    for device in devices:
        (folder / "dev/infiniband" / device).touch()
    for number, address in enumerate(TWO.split(",") if known else ()):
        (folder / f"sys/bus/pci/devices/{address}/infiniband_verbs/uverbs{number}").mkdir(parents=True)
    script = HCA_CHECK.replace("/dev/", f"{folder}/dev/").replace("/sys/", f"{folder}/sys/")
    environment = {"PATH": "/usr/bin:/bin", "BUSBAR_NODE": "gpu-7", **promised}
    return subprocess.run(
        [shell, "-c", f"{script}\necho started"],
        env=environment, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_pod_without_one_of_its_hcas_ends_and_names_node_and_hca(tmp_path: Path, shell: str) -> None:
    done = checked(tmp_path, shell, {"PCIDEVICE_NVIDIA_COM_HOSTDEV": TWO}, "uverbs0")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "node gpu-7: 1 of 2 HCAs have a device in the pod, missing: 0000:9b:00.0. Fix"
    )
    assert "spec.nodeName=gpu-7" in done.stdout
    assert (tmp_path / "dev/termination-log").read_text() == done.stdout


def test_where_the_kernel_does_not_say_which_hca_is_missing_all_are_named(tmp_path: Path) -> None:
    done = checked(tmp_path, "sh", {"PCIDEVICE_RDMA_IB": TWO}, "uverbs0", known=False)
    assert done.returncode == 1
    assert f"missing: {TWO.replace(',', ' ')}." in done.stdout


@pytest.mark.parametrize(
    ("promised", "devices"),
    [
        ({"PCIDEVICE_NVIDIA_COM_HOSTDEV": TWO}, ["uverbs0", "uverbs1"]),
        ({"PCIDEVICE_NVIDIA_COM_HOSTDEV": TWO}, ["uverbs0", "uverbs1", "uverbs2"]),
        (
            {"PCIDEVICE_A_INFO": '{"0000:1b:00.0": {"generic": {}}}', "PCIDEVICE_A": "0000:1b:00.0"},
            ["uverbs0"],
        ),
        ({}, []),
    ],
    ids=["all", "more, as with nvidia_fs", "with the plugin's description", "none promised"],
)
def test_a_pod_with_all_its_hcas_starts(tmp_path: Path, promised: dict[str, str], devices: list[str]) -> None:
    done = checked(tmp_path, "sh", promised, *devices)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
