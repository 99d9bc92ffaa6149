"""busbar's own series: what they say of a cluster, and how they get into it."""

import json
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from busbar.kube.client import ApiError
from busbar.kube.nodes import DRAINED, NODES, QUARANTINE, Note
from stacks.watch.package.series import SeriesSpec, follow, render, write
from stacks.watch.tests.promtool import promtool
from stacks.watch.tests.support import MEASURED_AT, Served, cluster, outputs, watch
from tests.support.verdicts import failing, passing

NOW = datetime(2026, 11, 24, 6, 0, tzinfo=UTC)
CONFIG_MAPS = "/api/v1/namespaces/busbar-watch/configmaps"
MEASUREMENTS = "/api/v1/namespaces/nccl/configmaps"
VERDICT = f"{MEASUREMENTS}/nccl-h100-result-1"


def spec(verdict: dict[str, Any] | None = None, **config: Any) -> SeriesSpec:
    return SeriesSpec.of(cluster(verdict), watch(**config))


def lines(**config: Any) -> list[str]:
    return list(map(str, render(spec(**config), {}, {"h100": 360.0}, NOW)))


def api(*quarantined: str) -> Served:
    held = {QUARANTINE: Note('rail 3 "flaps"', since=MEASURED_AT).text}
    nodes = [
        {"metadata": {"name": name, "annotations": held if name in quarantined else {}}}
        for name in ("gpu-1", "gpu-2")
    ]
    verdict = {"data": {"verdict.json": json.dumps({"floor_gbps": 360.0})}}
    return Served({NODES: nodes, MEASUREMENTS: [], VERDICT: verdict})


def written(found: Served) -> list[str]:
    stored = found.objects[f"{CONFIG_MAPS}/busbar-metrics"]
    return str(stored["data"]["busbar.prom"]).splitlines()


def test_workers_have_what_their_pool_has_and_a_pool_what_it_was_measured_to_do() -> None:
    expected = {
        'busbar_node_gpus_expected{node="gpu-1",pool="h100"} 8',
        'busbar_node_rails_expected{node="gpu-2",pool="h100",link_layer="infiniband"} 8',
        'busbar_node_rail_rate_bytes_per_second{node="gpu-1",pool="h100"} 5e+10',
        'busbar_node_devices_expected{node="gpu-1",pool="h100",resource="nvidia_com_gpu"} 8',
        'busbar_node_devices_expected{node="gpu-1",pool="h100",resource="nvidia_com_hostdev"} 8',
        'busbar_nccl_passed{pool="h100"} 1',
        'busbar_nccl_busbw_gbps{pool="h100"} 390.28',
        'busbar_nccl_expected_gbps{pool="h100"} 400',
        'busbar_nccl_floor_gbps{pool="h100"} 360',
        'busbar_nccl_last_run_timestamp_seconds{pool="h100"} 1795496400',
        'busbar_nccl_curve_gbps{pool="h100",collective="all_reduce",bytes="8589934592"} 390.28',
        "busbar_metrics_written_timestamp_seconds 1795500000",
    }
    assert expected - {*lines()} == set()


def of_launch(name: str, **update: Any) -> list[str]:
    """The samples of this name for a cluster with other settings of its pool."""
    launch = cluster().pools["h100"].model_copy(update=update)
    changed = spec().model_copy(update={"pools": {"h100": launch}})
    return [str(each) for each in render(changed, {}, {}, NOW) if each.name == name]


def test_the_rails_of_each_node_are_named_by_device_and_port_where_they_are_known() -> None:
    named = {"gpu-1": ("mlx5_0", "mlx5_3:2"), "gpu-3": ("mlx5_0", "mlx5_1")}
    assert of_launch("busbar_node_rail_info", rail_hcas=named) == [
        'busbar_node_rail_info{node="gpu-1",pool="h100",device="mlx5_0",port="1"} 1',
        'busbar_node_rail_info{node="gpu-1",pool="h100",device="mlx5_3",port="2"} 1',
    ]


def test_resources_that_are_no_devices_are_no_series() -> None:
    resources = {"hugepages-2Mi": "5120Mi", "hugepages-1Gi": "1073741824", "a.b/c": "x"}
    found = of_launch("busbar_node_devices_expected", resources=resources)
    assert [each for each in found if 'resource="nvidia_com_gpu"' not in each] == []


def test_a_pool_without_a_pass_says_so_and_has_no_value_it_was_not_measured_with() -> None:
    failed = spec(failing())
    unknown = failed.results["h100"].model_copy(update={"verdict": "unknown"})
    for results in (failed.results, {"h100": unknown}, {}):
        found = render(failed.model_copy(update={"results": results}), {}, {}, NOW)
        samples = {sample.name: sample.value for sample in found}
        assert samples["busbar_nccl_passed"] == 0
        assert "busbar_nccl_floor_gbps" not in samples


def test_the_age_of_a_measurement_is_limited_only_where_it_is_configured() -> None:
    assert "busbar_nccl_max_age_seconds 3600" in lines(max_age_hours=1)
    assert "busbar_gpu_hung_power_fraction 0.4" in lines(hung_power_fraction=0.4)
    assert not [line for line in lines() if line.startswith("busbar_nccl_max_age")]


def test_of_a_node_in_quarantine_nothing_is_expected_and_the_reason_is_a_label() -> None:
    found = api("gpu-1")
    assert write(found, spec(), NOW)["quarantined"] == ["gpu-1"]
    text = written(found)
    assert 'busbar_node_quarantined{node="gpu-1",reason="rail 3 \\"flaps\\""} 1' in text
    # Its rails keep their names, for the dashboard of whoever repairs it.
    of_node = {line.partition("{")[0] for line in text if 'node="gpu-1"' in line}
    assert of_node == {"busbar_node_quarantined", "busbar_node_rail_info"}
    assert [line for line in text if line.startswith("busbar_node_rails_expected")] == [
        'busbar_node_rails_expected{node="gpu-2",pool="h100",link_layer="infiniband"} 8'
    ]


@pytest.mark.parametrize(
    ("stored", "floor"),
    [
        ({"data": {"verdict.json": '{"floor_gbps": 360.0}'}}, ['busbar_nccl_floor_gbps{pool="h100"} 360']),
        (None, []),
        ({"data": {"verdict.json": "x"}}, []),
        ({"data": {"verdict.json": "[]"}}, []),
        ({}, []),
    ],
)
def test_the_floor_is_that_of_the_verdict_in_the_cluster(stored: Any, floor: list[str]) -> None:
    found = api()
    found.objects.pop(VERDICT)
    if stored is not None:
        found.objects[VERDICT] = stored
    assert write(found, spec(), NOW) == {"series": len(written(found)), "quarantined": []}
    assert [line for line in written(found) if "floor" in line] == floor


def test_a_verdict_that_cannot_be_read_now_leaves_the_series_as_they_are() -> None:
    found = api()
    found.failures = [None, None, ApiError("GET", 503, "no leader")]
    with pytest.raises(ApiError, match="no leader"):
        write(found, spec(), NOW)
    assert (found.created, found.patched) == ([], [])


def measured(at: str, verdict: dict[str, Any], *nodes: str) -> dict[str, Any]:
    """The ConfigMap of a measurement of the pool."""
    record = {
        "job_uid": at, "pool": "h100", "kind": "measure", "folder": "f", "nodes": nodes, "measured_at": at,
        "expectation": {},
    }  # fmt: skip
    data = {"verdict.json": json.dumps(verdict), "record.json": json.dumps(record)}
    return {"metadata": {"name": f"nccl-history-{at}"}, "data": data}


LATER, EARLIER = "2026-11-24T05:30:00Z", "2026-11-23T05:30:00Z"


ALL = ("gpu-1", "gpu-2")


@pytest.mark.parametrize(
    ("first", "quarantined", "at", "last", "nodes", "counts"),
    [
        pytest.param(passing(), (), LATER, failing(), ALL, True, id="newer"),
        pytest.param(passing(), (), EARLIER, failing(), ALL, False, id="older"),
        pytest.param(passing(), ("gpu-1",), LATER, failing(), ("gpu-1",), False, id="of one in quarantine"),
        pytest.param(passing(), (), LATER, failing(), ("gpu-1",), True, id="a failure of a part"),
        pytest.param(failing(), (), LATER, passing(), ("gpu-1",), False, id="a pass of a part"),
        pytest.param(failing(), ("gpu-2",), LATER, passing(), ("gpu-1",), True, id="a pass of the others"),
    ],
)
def test_a_pool_has_the_result_of_its_last_measurement_in_the_cluster(
    first: Any, quarantined: tuple[str, ...], at: str, last: Any, nodes: tuple[str, ...], counts: bool
) -> None:
    found = api(*quarantined)
    found.objects[MEASUREMENTS] = [measured(at, last, *nodes), measured(EARLIER, first, *nodes)]
    write(found, spec(first), NOW)
    passed, time = (last["passed"], 1795498200) if counts else (first["passed"], 1795496400)
    assert {
        f'busbar_nccl_passed{{pool="h100"}} {passed:d}',
        f'busbar_nccl_last_run_timestamp_seconds{{pool="h100"}} {time}',
    } <= {*written(found)}


def test_nothing_is_expected_of_a_node_that_is_drained_or_gone() -> None:
    found = api()
    first, _ = found.objects[NODES]
    first["metadata"]["annotations"] = {DRAINED: Note("cable", since=MEASURED_AT).text}
    found.objects[NODES] = [first]
    assert write(found, spec(), NOW)["quarantined"] == []
    text = written(found)
    assert not [line for line in text if line.startswith("busbar_node") and "_expected" in line]
    assert [line for line in text if line.startswith('busbar_node_drained{node="gpu-1",reason="cable')]


EVERYWHERE = "/api/v1/configmaps"


def written_before(found: Served, **config: Any) -> None:
    """Series of a passing cluster are in the cluster, and can be found."""
    write(found, spec(**config), NOW)
    stored = found.objects[f"{CONFIG_MAPS}/busbar-metrics"]
    found.objects[EVERYWHERE] = [{**stored, "metadata": {**stored["metadata"], "namespace": "busbar-watch"}}]


def test_a_change_of_the_cluster_is_in_the_series_with_or_without_new_outputs() -> None:
    found = api()
    found.objects[EVERYWHERE] = []
    follow(found, outputs())
    assert (found.created, found.patched) == ([], []), "where there are no series none are written"
    written_before(found, max_age_hours=2)
    for given, passed in ((None, 1), (outputs(failing()), 0), (None, 1)):
        follow(found, given)
        path, body = found.patched[-1]
        assert path == f"{CONFIG_MAPS}/busbar-metrics"
        text = body["data"]["busbar.prom"].splitlines()
        assert f'busbar_nccl_passed{{pool="h100"}} {passed}' in text
        assert "busbar_nccl_max_age_seconds 7200" in text
        assert "busbar_metrics_written_timestamp_seconds 1795500000" not in text


def test_prometheus_reads_the_text() -> None:
    found = api("gpu-1")
    write(found, spec(max_age_hours=1), NOW)
    text = "\n".join(written(found)) + "\n"
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    # 3: it would like a HELP text of each series; 1: it cannot read it.
    assert done.returncode in (0, 3), done.stderr
