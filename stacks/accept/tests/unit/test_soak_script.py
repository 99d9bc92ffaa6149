"""The sampler of a soak, in a real bash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from stacks.accept.package.subjects import soak
from tests.support import h200
from tests.unit.hosts.bash import output

# As nvidia-smi of driver 570 prints them: a GPU at its power limit, and one that is throttled by heat.
GPUS = """\
00000000:18:00.0, 0, 0x0000000000000004, 64, 1980
00000000:2A:00.0, [N/A], 0x0000000000000044, 88, 1410
"""


SAMPLE = "(sample) || true"
# In place of systemd-run, which gives the script to systemd.
START = 'systemd-run() { "${@: -2}" || true; }; end_unit() { :; }; LIMIT_SECONDS=9; start >/dev/null'


def sampled(
    folder: Path, loops: int, between: str = "", smi: str = "", call: str = SAMPLE
) -> list[dict[str, Any]]:
    """The samples of a host; BETWEEN runs after each, and SMI is the body of nvidia-smi."""
    programs, loops_left = folder / "programs", folder / "loops"
    programs.mkdir()
    count = f"read -r n <{loops_left}; echo $((n - 1)) >{loops_left}"
    own = {
        "nvidia-smi": smi or f"case $1 in nvlink) ;; *) cat {folder}/gpus ;; esac",
        "journalctl": "true",
        "systemctl": f"cat {folder}/invocation",
        "sleep": f"{between}\n{count}; ((n > 1)) || kill $PPID",
    }
    for name, body in own.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    (folder / "gpus").write_text(GPUS)
    loops_left.write_text(f"{loops}\n")
    values = f"PATH={programs}:$PATH INFINIBAND={folder}/hcas FILE={folder}/samples"
    output("accept/soak", f"{values} RUN=accept-1 SAMPLE_SECONDS=0 SOAK={folder} LC_ALL=C\n{call}")
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
    (first,) = sampled(tmp_path, 1, smi="exit 9")
    assert [first[key] for key in ("gpus", "heat", "nvlink", "k3s")] == [None] * 4


def test_a_sampler_ends_before_it_fills_the_disk(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text(f'{{"t": 1}}{" " * (8 << 20)}\n')
    assert len(sampled(tmp_path, 1)) == 1


def test_the_unit_has_all_that_a_sample_needs(tmp_path: Path) -> None:
    (tmp_path / "invocation").write_text("abc\n")
    by_unit = sampled(tmp_path, 2, call=START)
    (tmp_path / "samples").unlink()
    shutil.rmtree(tmp_path / "programs")
    by_hand = sampled(tmp_path, 2)
    assert [each | {"t": 0} for each in by_unit] == [each | {"t": 0} for each in by_hand]


def test_a_real_h200_at_its_power_limit_is_not_throttled_and_its_clock_is_read(tmp_path: Path) -> None:
    (tmp_path / "invocation").write_text("abc\n")
    h200.install(tmp_path / "real", h200.UNDER_LOAD)
    (first,) = sampled(tmp_path, 1, smi=f'exec {tmp_path}/real/nvidia-smi "$@"')
    assert (first["gpus"], first["heat"], first["nvlink"]) == ([["00000000:00:06.0", 0, 0]], [55, 1515], "")
