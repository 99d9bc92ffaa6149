"""A stack exports its outputs with details that fit their JSON Schema, and its gate fails the update."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from busbar.config import load
from busbar.outputs import CLUSTER_GATE, ClusterOutputs, build_outputs
from busbar.outputs.contract import details_schema, summarize
from tests.support.clusters import site
from tests.support.verdicts import failing, passing, unknown

VERSIONS = {"k3s": "v1.35.6+k3s1", "gpu_operator": "v26.7.0", "network_operator": None}
FACTS: dict[str, Any] = {"gpu-1": {"gpus": 8, "rails": 8}, "gpu-2": {"gpus": 8, "rails": ["mlx5_0"] * 8}}


def outputs(verdicts: dict[str, Any], *pools: str, **sections: Any) -> dict[str, Any]:
    cluster = load(site(workers=dict.fromkeys(pools or ("h100",), 2), **sections))
    results = {pool: summarize(verdict) for pool, verdict in verdicts.items()}
    return build_outputs(cluster, versions=VERSIONS, facts=FACTS, results=results)


def test_the_outputs_name_the_cluster_its_nodes_and_the_versions_that_were_found() -> None:
    out = outputs({"h100": passing()})
    assert (out["contract_version"], out["cluster_name"]) == (3, "site")
    assert out["api_endpoint"] == "https://192.0.2.1:6443"
    assert out["k3s_version"] == "v1.35.6+k3s1"
    assert out["versions"] == {"gpu_operator": "v26.7.0", "nccl": "2.28.3", "nccl_plugin": "IBext_v8"}
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


BETTER = failing(busbw_gbps=399.0, fraction=0.9975)
HEADLINES: dict[str, tuple[list[dict[str, Any]], bool, float | None, list[str]]] = {
    "the lowest fraction": ([passing(395.0), passing(180.0, 200.0), passing(399.0)], True, 180.0, []),
    "one that did not pass, though it is better": ([passing(370.0), BETTER], False, 399.0, ["pool b"]),
    "no evidence comes before a fail": ([failing(), unknown()], False, None, ["pool a", "pool b"]),
}


@pytest.mark.parametrize(("verdicts", "passed", "busbw", "pools"), HEADLINES.values(), ids=HEADLINES)
def test_the_worst_pool_makes_the_headline(verdicts: Any, passed: bool, busbw: Any, pools: list[str]) -> None:
    names = "abc"[: len(verdicts)]
    out = outputs(dict(zip(names, verdicts, strict=True)), *names)
    assert (out["nccl_passed"], out["nccl_busbw_gbps"]) == (passed, busbw)
    assert [reason.split(":")[0] for reason in out["nccl_reasons"]] == pools


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


def test_an_update_without_any_outputs_fails() -> None:
    assert CLUSTER_GATE.refusal({}, enforce=True) is not None


CHECKED_IN = Path(__file__).resolve().parents[3] / "schema" / "details.schema.json"


def details(verdict: dict[str, Any]) -> Any:
    """Read it as a program without busbar does."""
    built = build_outputs(
        load(site(nfs_server={"host": "lb-1", "folder": "/srv/busbar"})),
        versions={},
        facts={"gpu-1": {"gpus": 8, "rails": 8}},
        results={"h100": {**summarize(verdict), "measured_at": "2026-11-23T01:02:03Z"}},
    )
    return json.loads(json.loads(built["details"]))


def test_the_schema_that_is_checked_in_is_current() -> None:
    assert json.loads(CHECKED_IN.read_text()) == details_schema(), "run `make schema`"


@pytest.mark.parametrize("verdict", [passing(), unknown()], ids=["pass", "unknown"])
def test_what_is_exported_fits_the_schema_that_is_checked_in(verdict: dict[str, Any]) -> None:
    jsonschema.validate(details(verdict), json.loads(CHECKED_IN.read_text()))


def test_every_key_of_the_schema_is_described() -> None:
    schema = details_schema()
    models = {**schema["$defs"], "Details": schema}
    keys = [(name, *each) for name, model in models.items() for each in model["properties"].items()]
    assert [f"{name}.{key}" for name, key, value in keys if not value.get("description")] == []
