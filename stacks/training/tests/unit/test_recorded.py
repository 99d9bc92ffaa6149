"""Logs of real runs of stacks/training/program.

nccl-h200: two hosts, which are namespaces of one machine, with TCP between them, and share its H200
(NCCL_MULTI_RANK_GPU_ENABLE); driver 580.159.04, torch 2.11, NCCL 2.32.3. The others are with gloo and torch
2.6 of Debian:
gloo-pods: the lab's cluster, `make up-training`, two pods on two workers that share a folder.
gloo-2x2: two agents of two ranks each on one machine, started by the script of package/proof.py;
gloo-2x2-shared-store: the same without TORCH_DISABLE_SHARE_RDZV_TCP_STORE: after the kill the ranks did
not find each other again. Debian builds torch without libuv: `use_libuv=False` was added where torchrun opens
a store.
Records that a run does not print any more, on the speed of storage and on interfaces, were taken out.
"""

from pathlib import Path
from typing import Any

import pytest

from busbar.judge.nccl import Expectation as System
from busbar.zstd import ZstdFile
from stacks.training.package.log import read_lines
from stacks.training.package.target import Expectation
from stacks.training.package.verdict import Verdict, judge
from stacks.training.tests.unit.made import codes

RECORDED = Path(__file__).parent / "recorded"


def log(name: str) -> list[bytes]:
    with ZstdFile(RECORDED / f"{name}.log.zst") as file:
        return file.read().splitlines(keepends=True)


def judged(lines: list[bytes], file: str = "expectation", **want: Any) -> Verdict:
    expectation = Expectation.model_validate_json((RECORDED / f"{file}.json").read_text())
    return judge(read_lines(lines), expectation.model_copy(update=want))


def test_a_real_run_passes_and_its_numbers_are_read() -> None:
    found = judged(log("gloo-2x2"))
    assert (found.verdict, found.reasons) == ("pass", [])
    assert (found.ranks, found.nodes, found.starts, found.torch) == (4, 2, 2, "2.6.0+debian")
    assert found.first_loss == pytest.approx(1.898, abs=0.001)
    assert found.busbw_gbps is not None and 0.1 < found.busbw_gbps < 1
    assert found.allreduce_share is not None and 0 < found.allreduce_share < 1


def test_a_real_run_on_a_gpu_with_nccl_passes() -> None:
    fabric = System(nodes=2, gpus_per_node=1, gpu="H200", transport="socket")
    own: dict[str, Any] = {
        "ranks_per_node": 1,
        "backend": "nccl",
        "gradient_bytes": 256 << 20,
        "fabric": fabric,
    }
    found = judged(log("nccl-h200"), **own, busbw_gbps=1.8, min_busbw_fraction=0.9, shared_checkpoint=True)
    assert (found.verdict, found.reasons) == ("pass", [])
    assert (found.ranks, found.nodes, found.starts, found.torch) == (2, 2, 2, "2.11.0+cu130")
    assert found.busbw_gbps == pytest.approx(1.84, abs=0.01)


def test_a_real_run_that_did_not_recover_fails() -> None:
    found = judged(log("gloo-2x2-shared-store"))
    assert found.verdict == "fail"
    assert {"log.no_end", "recovery.not_restarted"} & codes(found)


def test_a_run_on_a_cluster_passes_with_one_checkpoint_on_all_workers() -> None:
    found = judged(log("gloo-pods"), "gloo-pods")
    assert (found.verdict, found.reasons) == ("pass", [])
    assert (found.nodes, found.starts) == (2, 2)
