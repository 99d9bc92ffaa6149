"""What a stack exports, and when its gate fails the update."""

from __future__ import annotations

from typing import Any

import pytest

from busbar import __version__
from busbar.config import Cluster, load
from busbar.outputs import CLUSTER, ClusterOutputs, build_outputs
from busbar.outputs.contract import summarize
from tests.support.clusters import site
from tests.support.verdicts import failing, passing, unknown

VERSIONS = {"k3s": "v1.35.6+k3s1", "gpu_operator": "v26.7.0", "network_operator": None}
FACTS: dict[str, Any] = {"gpu-1": {"gpus": 8, "rails": 8}, "gpu-2": {"gpus": 8, "rails": ["mlx5_0"] * 8}}


def cluster(*pools: str, **sections: Any) -> Cluster:
    return load(site(workers=dict.fromkeys(pools or ("h100",), 2), **sections))


def outputs(verdicts: dict[str, Any], *pools: str, **sections: Any) -> dict[str, Any]:
    results = {pool: summarize(verdict) for pool, verdict in verdicts.items()}
    return build_outputs(cluster(*pools, **sections), versions=VERSIONS, facts=FACTS, results=results)


def test_a_pass_carries_its_numbers_and_no_reason() -> None:
    out = outputs({"h100": passing()})
    assert out["nccl_passed"] is True
    assert out["nccl_reasons"] == []
    assert (out["nccl_busbw_gbps"], out["nccl_expected_gbps"]) == (390.28, 400.0)
    assert out["nccl_fraction"] == pytest.approx(0.9757)


def test_the_outputs_name_the_cluster_its_nodes_and_the_versions_that_were_found() -> None:
    out = outputs({"h100": passing()})
    assert (out["contract_version"], out["cluster_name"]) == (3, "site")
    assert out["api_endpoint"] == "https://192.0.2.1:6443"
    assert out["k3s_version"] == "v1.35.6+k3s1"
    assert out["versions"] == {
        "gpu_operator": "v26.7.0", "nccl": "2.28.3", "nccl_plugin": "IBext_v8",
    }  # fmt: skip
    nodes = ClusterOutputs.from_dict(out).nodes
    assert [(node.name, node.role, node.gpus, node.rails) for node in nodes] == [
        ("lb-1", "lb", 0, 0),
        *((f"server-{i}", "server", 0, 0) for i in (1, 2, 3)),
        ("gpu-1", "worker", 8, 8),
        ("gpu-2", "worker", 8, 8),
    ]


def test_the_outputs_take_few_lines_however_many_workers_and_sizes_there_are() -> None:
    """The engine prints each item of a mapping or a list in a line of its own."""

    def lines(value: Any) -> int:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(lines, items))

    verdict = passing()
    [result] = verdict["collectives"].values()
    curve = [{**result["curve"][0], "size_bytes": 2**power} for power in range(10, 35)]
    names = ("all_reduce", "all_gather")
    sweep = {**verdict, "collectives": {name: {**result, "curve": curve} for name in names}}
    for workers in (2, 60):
        made = load(site(load_balancers=2, workers={"h100": workers}))
        out = build_outputs(made, versions=VERSIONS, facts={}, results={"h100": summarize(sweep)})
        assert lines(out) <= 30, workers


def test_the_outputs_tell_which_busbar_wrote_them() -> None:
    assert ClusterOutputs.from_dict(outputs({})).busbar_version == __version__


def test_of_several_passing_pools_the_one_with_the_lowest_fraction_makes_the_headline() -> None:
    verdicts = {"a": passing(395.0), "b": passing(180.0, 200.0), "c": passing(399.0)}
    out = outputs(verdicts, "a", "b", "c")
    assert out["nccl_passed"] is True
    assert (out["nccl_busbw_gbps"], out["nccl_fraction"]) == (180.0, 0.9)


def test_a_pool_that_did_not_pass_makes_the_headline_even_with_the_better_number() -> None:
    out = outputs({"a": passing(370.0), "b": failing(busbw_gbps=399.0, fraction=0.9975)}, "a", "b")
    assert out["nccl_passed"] is False
    assert out["nccl_busbw_gbps"] == 399.0
    assert out["nccl_reasons"] == ["pool b: busbw 46.9 GB/s is below the floor of 360 GB/s"]


def test_a_pool_without_evidence_comes_before_one_that_failed() -> None:
    out = outputs({"a": failing(), "b": unknown()}, "a", "b")
    assert out["nccl_busbw_gbps"] is None
    assert [reason.split(":")[0] for reason in out["nccl_reasons"]] == ["pool a", "pool b"]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (None, "no verdict: nothing was measured"),
        (unknown("the launcher never started"), "the launcher never started"),
        ({**passing(), "passed": "true"}, "the verdict is 'unknown' and gives no reason"),
        ({**passing(), "verdict": "fail"}, "the verdict is 'unknown' and gives no reason"),
        ({**failing(), "reasons": []}, "the verdict is 'fail' and gives no reason"),
        ({**passing(), "busbw_gbps": None}, "the verdict is a pass without a bandwidth"),
        ({**passing(), "busbw_gbps": True}, "the verdict is a pass without a bandwidth"),
        ({**passing(), "busbw_gbps": float("nan")}, "the verdict is a pass without a bandwidth"),
    ],
)
def test_anything_but_a_plain_pass_is_not_a_pass_and_says_why(verdict: Any, reason: str) -> None:
    out = outputs({} if verdict is None else {"h100": verdict})
    assert out["nccl_passed"] is False
    assert out["nccl_reasons"] == [reason]


def test_a_pool_that_was_not_measured_has_not_passed() -> None:
    out = outputs({"a": passing()}, "a", "b")
    assert out["nccl_reasons"] == ["pool b: no verdict: nothing was measured"]


def test_without_validation_the_outputs_say_that_nothing_was_measured() -> None:
    out = outputs({}, validation={"enabled": False})
    assert (out["nccl_passed"], out["nccl_reasons"]) == (
        False,
        ["not measured: validation.enabled is false"],
    )


def test_an_update_may_succeed_after_a_pass() -> None:
    assert CLUSTER.refusal(outputs({"h100": passing()}), enforce=True) is None


def test_an_update_fails_with_every_reason_after_a_fail() -> None:
    text = CLUSTER.refusal(outputs({"h100": failing("GDRDMA is missing on 3 channels")}), enforce=True)
    assert text is not None
    assert "site" in text
    assert "GDRDMA is missing on 3 channels" in text
    assert "validation.enforce" in text


def test_an_update_without_any_outputs_fails() -> None:
    assert CLUSTER.refusal({}, enforce=True) is not None


def test_without_enforcement_the_update_may_succeed_and_the_output_is_still_false() -> None:
    out = outputs({"h100": failing()})
    assert CLUSTER.refusal(out, enforce=False) is None
    assert out["nccl_passed"] is False
