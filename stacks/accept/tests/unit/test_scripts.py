"""The scripts on hosts, in a real bash: who a worker is, and the sampler of a soak."""

import hashlib
import json
from pathlib import Path
from typing import Any

from busbar.hosts import scripts
from stacks.accept.package.evidence import Parts
from stacks.accept.package.subjects import soak
from tests.support import h200
from tests.support.bash import output, programs

# As nvidia-smi of driver 570 prints them.
GPUS = "GPU-1, 1652922000123, 96.00.89.00.01, Enabled\nGPU-2, [N/A], 96.00.89.00.01, Disabled\n"
LINKS = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"


def reported(tmp_path: Path, smi: str) -> dict[str, Any]:
    """The report, where SMI is the body of a function nvidia-smi."""
    programs(tmp_path / "smi", {"nvidia-smi": smi})
    set_up = f"PATH={tmp_path}/smi:$PATH; INFINIBAND={tmp_path}/infiniband\n"
    found: dict[str, Any] = json.loads(output("preflight", set_up + scripts.part("accept/inventory")))
    return found


def test_gpus_ports_and_links_are_told_with_what_identifies_them(tmp_path: Path) -> None:
    gid = tmp_path / "infiniband/mlx5_3/ports/1/gids/0"
    gid.parent.mkdir(parents=True)
    gid.write_text("fe80:0000:0000:0000:b8ce:f603:00ab:12cd\n")
    virtual = tmp_path / "infiniband/mlx5_4"
    (virtual / "ports/1/gids").mkdir(parents=True)
    (virtual / "ports/1/gids/0").write_text("fe80:0000:0000:0000:0011:2233:4455:6677\n")
    (virtual / "device/physfn").mkdir(parents=True)
    (virtual / "ports/1/counters").mkdir()
    (virtual / "ports/1/counters/link_downed").write_text("0\n")
    (tmp_path / "gpus").write_text(GPUS)
    (tmp_path / "links").write_text(LINKS)
    found = reported(
        tmp_path, f"case $1 in --query*) cat {tmp_path}/gpus ;; nvlink) cat {tmp_path}/links ;; esac"
    )
    machine = Path("/etc/machine-id").read_bytes() if Path("/etc/machine-id").exists() else b""
    assert found["machine"] == hashlib.sha256(machine + b"busbar\n").hexdigest()
    assert found["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found["gpus"] == [
        {"uuid": "GPU-1", "serial": "1652922000123", "vbios": "96.00.89.00.01", "ecc": "Enabled"},
        {"uuid": "GPU-2", "serial": "[N/A]", "vbios": "96.00.89.00.01", "ecc": "Disabled"},
    ]
    other = found["hcas"].pop()
    assert (other["vf"], other["counters"], len(Parts(**found).identity.hcas)) == (True, True, 1)
    first = {"name": "mlx5_3", "port": 1, "guid": "b8ce:f603:00ab:12cd"}
    assert found["hcas"] == [{**first, "vf": False, "counters": False}]
    assert (found["nvlinks"], found["simulated"]) == (LINKS.rstrip("\n"), "")


def test_what_nvidia_smi_does_not_tell_is_empty_and_a_simulator_names_itself(tmp_path: Path) -> None:
    version = "NVIDIA-SMI version : 580.95 (a simulator)"
    found = reported(tmp_path, f"[[ $1 == --version ]] || exit 6; echo '{version}'")
    assert (found["gpus"], found["hcas"], found["nvlinks"]) == ([], [], None)
    assert found["simulated"] == version


def test_a_real_h200_without_peers_is_told_with_its_identity_and_no_nvlink(tmp_path: Path) -> None:
    h200.install(tmp_path / "real")
    found = reported(tmp_path, f'exec {tmp_path}/real/nvidia-smi "$@"')
    uuid = "GPU-b05ba200-0000-4000-8000-000000000001"
    known = {"uuid": uuid, "serial": "1650000000001", "vbios": "96.00.A5.00.1A", "ecc": "Enabled"}
    assert (found["gpus"], found["nvlinks"], found["simulated"]) == ([known], "", "")


# A GPU at its power limit, and one that is throttled by heat.
STATES = """\
00000000:18:00.0, 0, 0x0000000000000004, 64, 1980
00000000:2A:00.0, [N/A], 0x0000000000000044, 88, 1410
"""


def sampled(folder: Path, loops: int, between: str = "", smi: str = "") -> list[dict[str, Any]]:
    """The samples of a host; BETWEEN runs after each, and SMI is the body of nvidia-smi."""
    loops_left = folder / "loops"
    count = f"read -r n <{loops_left}; echo $((n - 1)) >{loops_left}"
    own = {
        "nvidia-smi": smi or f"case $1 in nvlink) ;; *) cat {folder}/gpus ;; esac",
        "journalctl": "true",
        "systemctl": f"cat {folder}/invocation",
        "sleep": f"{between}\n{count}; ((n > 1)) || kill $PPID",
    }
    programs(folder / "programs", own)
    (folder / "gpus").write_text(STATES)
    loops_left.write_text(f"{loops}\n")
    values = f"PATH={folder}/programs:$PATH INFINIBAND={folder}/hcas FILE={folder}/samples"
    output("accept/soak", f"{values} RUN=accept-1 SAMPLE_SECONDS=0 SOAK={folder} LC_ALL=C\n(sample) || true")
    return [json.loads(line) for line in (folder / "samples").read_text().splitlines()]


def test_a_sample_has_what_has_changed_since_the_one_before(tmp_path: Path) -> None:
    counter = tmp_path / "hcas/mlx5_0/ports/1/counters/link_downed"
    counter.parent.mkdir(parents=True)
    counter.write_text("0\n")
    (tmp_path / "invocation").write_text("abc\n")
    first, second, third = sampled(tmp_path, 3, f"echo 1 >{counter}")
    assert (first["run"], first["node"], len(first["machine"])) == ("accept-1", "worker-1", 8)
    assert first["gpus"] == [["00000000:18:00.0", 0, 0], ["00000000:2A:00.0", None, 0x40]]
    assert (first["heat"], first["ports"], first["xids"], first["nvlink"]) == ([88, 1410], [], [], "")
    assert first["k3s"] == "abc"
    assert second.keys() == {"t", "ports"} and third.keys() == {"t"}
    assert [event.kind for event in soak.watch([first, second, third]).events] == ["throttling", "links"]


def test_what_cannot_be_read_is_null(tmp_path: Path) -> None:
    (tmp_path / "invocation").write_text("")
    (tmp_path / "hcas/bnxt_re0/ports/1").mkdir(parents=True)  # of a driver that has no counters
    (first,) = sampled(tmp_path, 1, smi="exit 9")
    assert [first[key] for key in ("gpus", "heat", "nvlink", "k3s", "ports")] == [None] * 5


def test_a_sampler_ends_before_it_fills_the_disk(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text(f'{{"t": 1}}{" " * (8 << 20)}\n')
    assert len(sampled(tmp_path, 1)) == 1


def test_a_real_h200_at_its_power_limit_is_not_throttled_and_its_clock_is_read(tmp_path: Path) -> None:
    (tmp_path / "invocation").write_text("abc\n")
    h200.install(tmp_path / "real", h200.UNDER_LOAD)
    (first,) = sampled(tmp_path, 1, smi=f'exec {tmp_path}/real/nvidia-smi "$@"')
    assert (first["gpus"], first["heat"], first["nvlink"]) == ([["00000000:00:06.0", 0, 0]], [55, 1515], "")
