"""stacks/watch on the lab's cluster: a real operator, Prometheus and Alertmanager; counters are written.

The tests are one story, in this order. What it does not prove: GPUs, real HCAs, the official chart, Grafana.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import PROJECT, Lab

pytestmark = pytest.mark.drill

WATCH = PROJECT / "stacks" / "watch"
MONITORING = "/api/v1/namespaces/kube-prometheus-stack/services"
COUNTERS = "/sys/class/infiniband/mlx5_0/ports/1/counters"
# With the operator to be built.
FIRST_SECONDS = 3000
ALERT_SECONDS = 60


def raw(lab: Lab, service: str, path: str) -> Any:
    return json.loads(lab.kubectl(f"get --raw '{MONITORING}/{service}/proxy{path}'"))


def alerts(lab: Lab) -> list[dict[str, str]]:
    """The labels of what Alertmanager has, sent by the real Prometheus."""
    return [each["labels"] for each in raw(lab, "alertmanager-operated:9093", "/api/v2/alerts")]


def query(lab: Lab, expr: str) -> list[dict[str, Any]]:
    found = raw(lab, "prometheus-operated:9090", f"/api/v1/query?query={expr}")["data"]["result"]
    assert isinstance(found, list)
    return found


def seconds_until(condition: Callable[[], bool], deadline: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < deadline, f"timed out after {deadline:.0f} s"
        time.sleep(1)
    return time.monotonic() - started


def named(lab: Lab, alert: str, **labels: str) -> bool:
    return any({"alertname": alert, **labels}.items() <= each.items() for each in alerts(lab))


@pytest.fixture(scope="module")
def watched(lab: Lab) -> Iterator[str]:
    """What `make up-watch` printed. Nothing is left afterwards."""
    done = lab.run(sys.executable, "-m", "lab", "bringup", "watch", seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    yield done.stdout
    destroyed = lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", "dev", cwd=WATCH)
    assert destroyed.returncode == 0, destroyed.stdout + destroyed.stderr
    assert "namespace/busbar-watch" not in lab.kubectl("get namespaces -o name").split()
    lab.kubectl("delete storageclass busbar-lab")


def test_the_update_ends_with_all_rails_of_all_workers_read(lab: Lab, watched: str) -> None:
    assert "PASS  all rails of 2 nodes are read" in watched
    assert lab.outputs(WATCH)["watch_passed"] is True


def test_rails_of_the_lab_are_read_with_the_name_of_their_node(lab: Lab, watched: str) -> None:
    ports = query(lab, "node_infiniband_state_id")
    assert {each["metric"]["node"] for each in ports} == {"worker-1", "worker-2"}
    assert {each["metric"]["job"] for each in ports} == {"busbar-rails"}


def test_what_busbar_measured_is_a_series(lab: Lab, watched: str) -> None:
    [busbw] = query(lab, "busbar_nccl_busbw_gbps")
    assert float(busbw["value"][1]) == lab.outputs()["nccl_busbw_gbps"]
    [floor] = query(lab, "busbar_nccl_floor_gbps")
    assert float(floor["value"][1]) < float(busbw["value"][1])


def test_an_update_without_changes_installs_nothing_again(lab: Lab, watched: str) -> None:
    done = lab.up("--expect-no-changes", cwd=WATCH)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_counter_that_is_written_fires_in_alertmanager_within_a_minute(lab: Lab, watched: str) -> None:
    assert not named(lab, "BusbarRailFlapped")
    lab.ssh("worker-1", f"echo 1 > {COUNTERS}/link_downed")
    taken = seconds_until(lambda: named(lab, "BusbarRailFlapped", node="worker-1"), ALERT_SECONDS)
    print(f"BusbarRailFlapped fired in Alertmanager after {taken:.1f} s")
    assert not named(lab, "BusbarRailFlapped", node="worker-2")
    lab.ssh("worker-1", f"echo 0 > {COUNTERS}/link_downed")


def test_one_port_that_cannot_be_read_takes_all_series_of_its_node_and_is_an_alert(
    lab: Lab, watched: str
) -> None:
    file = "/sys/class/infiniband/mlx5_0/ports/1/state"
    lab.ssh("worker-2", f"mv {file} {file}.gone")
    gone = "ALERTS%7Balertname=%22BusbarRailStateIdAbsent%22,node=%22worker-2%22%7D"
    seconds_until(lambda: bool(query(lab, gone)), ALERT_SECONDS)
    lab.ssh("worker-2", f"mv {file}.gone {file}")
    seconds_until(lambda: not query(lab, gone), ALERT_SECONDS)


def test_a_quarantine_is_a_series_after_a_refresh_and_nothing_is_expected_of_its_node(
    lab: Lab, watched: str
) -> None:
    reason = json.dumps({"reason": "drill", "since": "2026-11-24T00:00:00Z"})
    lab.kubectl(f"annotate node worker-2 busbar/quarantine='{reason}'")
    try:
        assert refresh(lab)["quarantined"] == ["worker-2"]
        # kubelet mounts a changed ConfigMap within its sync period.
        seconds_until(lambda: len(query(lab, "busbar_node_quarantined")) == 1, 150)
        assert {each["metric"]["node"] for each in query(lab, "busbar_node_rails_expected")} == {"worker-1"}
    finally:
        lab.kubectl("annotate node worker-2 busbar/quarantine-")
        assert refresh(lab)["quarantined"] == []


def refresh(lab: Lab) -> dict[str, Any]:
    done = lab.run(sys.executable, "-m", "busbar", "watch", "refresh", "dev", "--project", str(WATCH))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_storage_class_that_is_missing_is_named_and_nothing_is_changed(
    lab: Lab, watched: str, tmp_path: Path
) -> None:
    stack = yaml.safe_load((WATCH / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    stack["config"]["busbar-watch:watch"]["stack"]["storage_class"] = "fast"
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text(yaml.safe_dump(stack), encoding="utf-8")
    done = lab.up(f"--config-file={file}", cwd=WATCH)
    assert done.returncode != 0
    assert "there is no StorageClass fast; the cluster has" in done.stdout + done.stderr
