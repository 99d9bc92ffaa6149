"""Stacks of contract 2: their outputs are read for one release, what was measured there stays a verdict.

contract2.json was written by busbar at 84223d6: the outputs of a site, and what its collector had printed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.config import load
from busbar.outputs import ClusterOutputs, ContractError, build_outputs
from busbar.outputs.pool import PoolResult, read_result
from tests.support.clusters import site

RECORDED = json.loads(Path(__file__).with_name("contract2.json").read_text())
MIB = 1 << 20


def read(**change: Any) -> ClusterOutputs:
    with pytest.warns(FutureWarning, match="contract 2, which the next release of busbar does not read"):
        return ClusterOutputs.from_dict({**RECORDED["outputs"], **change})


def printed(**change: Any) -> PoolResult:
    text = json.dumps({**json.loads(RECORDED["printed"]), **change})
    return PoolResult.model_validate(read_result(text))


def test_the_outputs_of_a_stack_that_was_not_updated_since_are_read_with_a_warning() -> None:
    cluster = read()
    assert (cluster.contract_version, cluster.nccl_passed, cluster.nccl_busbw_gbps) == (2, True, 390.28)
    assert [(node.name, node.role, node.address, node.gpus, node.rails) for node in cluster.nodes][3:5] == [
        ("server-3", "server", "192.0.2.13", 0, 0),
        ("gpu-1", "worker", "198.18.0.2", 8, 8),
    ]
    assert cluster.pools["h100"].workers == ("gpu-1", "gpu-2")
    assert cluster.nfs_server is not None


def test_the_result_of_a_pool_is_the_same_from_the_outputs_as_from_what_the_collector_printed() -> None:
    measured = {"nccl_version": "2.28.3", "plugin": "IBext_v8"}
    assert read().nccl["h100"].model_copy(update=measured) == printed()


def test_a_verdict_that_was_measured_under_contract_2_is_kept_without_another_measurement() -> None:
    out = build_outputs(
        load(site()), versions={}, facts={}, results={"h100": read_result(RECORDED["printed"])}
    )
    assert out["contract_version"] == 3
    assert (out["nccl_passed"], out["nccl_busbw_gbps"]) == (True, 390.28)
    assert out["versions"] == {"nccl": "2.28.3", "nccl_plugin": "IBext_v8"}
    pool = ClusterOutputs.from_dict(out).nccl["h100"]
    assert (pool.gdrdma_edges, pool.network_edges, pool.hosts_by_rails) == (704, 704, {8: 1, 6: 1})
    assert pool.curve == {
        "all_reduce": ((1025, 0.0182), (512 * MIB, 371.2), (8192 * MIB, 390.28)),
        "all_gather": ((8192 * MIB, 371.123),),
    }
    assert (pool.measured_at, pool.config_map) == (None, "jobs/nccl-h100-result")


def test_a_failed_verdict_keeps_its_reasons() -> None:
    found = printed(verdict="fail", passed=False, reasons=["rails: 7 of 8"])
    assert (found.verdict, found.reasons) == ("fail", ("rails: 7 of 8",))


def test_a_verdict_without_any_network_is_read() -> None:
    old = {
        key: value
        for key, value in json.loads(RECORDED["printed"]).items()
        if key not in ("gdrdma_edges", "rails")
    }
    found = PoolResult.model_validate(read_result(json.dumps(old)))
    assert (found.verdict, found.network_edges, found.hosts_by_rails) == ("pass", None, {})


@pytest.mark.parametrize(
    "change",
    [
        {"passed": False},
        {"verdict": "fail"},
        {"gdrdma_edges": "all"},
        {"curve": {"all_reduce": "8XiB=390"}},
        {"curve": {"all_reduce": "512MiB"}},
        {"curve": [1]},
        {"schema": 1},
    ],
)
def test_anything_but_a_plain_verdict_of_contract_2_is_no_evidence(change: dict[str, Any]) -> None:
    assert printed(**change).verdict == "unknown"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": {"worker": "gpu-1"}}, "the outputs are not those of contract 2: not enough values"),
        ({"nodes": "gpu-1"}, "the outputs are not those of contract 2: "),
        ({"nccl": {"h100": {"gdrdma_edges": "all"}}}, "the outputs are not those of contract 2: "),
        ({"pools": "["}, "the outputs are not those of contract 2: "),
        ({"pools": '{"h100": {"gpus": 8}}'}, "pools.h100.workers: Field required"),
    ],
)
def test_outputs_of_another_form_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        ClusterOutputs.from_dict({**RECORDED["outputs"], **change})
