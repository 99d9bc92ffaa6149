"""stacks/watch on the lab's cluster: a real operator, Prometheus and Alertmanager; counters are written.

A real node-problem-detector too; lines are written to the log of one host. The tests are one story, in this
order. What it does not prove: GPUs, real HCAs, the official chart, Grafana.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busbar.kube.client import RestApi
from stacks.watch.package import node_problems
from stacks.watch.tests.unit.test_dashboards import named_expressions
from tests.support.lab import PROJECT, Lab

pytestmark = pytest.mark.drill

WATCH = PROJECT / "stacks" / "watch"
MONITORING = "/api/v1/namespaces/kube-prometheus-stack/services"
HCAS = "/sys/class/infiniband"
COUNTERS = f"{HCAS}/mlx5_1/ports/1/counters"
# With the operator to be built.
FIRST_SECONDS = 3000
ALERT_SECONDS = 60
# kubelet mounts a changed ConfigMap within its sync period.
MOUNT_SECONDS = 150
CONDITIONS = {name for name, _, _ in node_problems.CONDITIONS}
LINES = {rule.reason: rule.matches[0] for rule in node_problems.rules()}
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "1h",
    "$pool": ".+",
    "$node": "worker-1",
    "$collective": "all_reduce",
}
# Why the lab has nothing to show -> dashboard, panel and letter of the expression.
WITHOUT_DATA = {
    "there is no DCGM": {
        "busbar-node: Power, A",
        *(f"busbar-node: {name}, {letter}" for name in ("Utilization", "Temperature") for letter in "AB"),
        *(f"busbar-node: Xid errors in five minutes, {letter}" for letter in "AB"),
        *(f"busbar-node: NVLink errors per second, {letter}" for letter in "ABCD"),
        *(f"busbar-node: Slowed down by heat and power (share of the time), {letter}" for letter in "ABC"),
        *(f"busbar-node: GPU memory, {letter}" for letter in "AB"),
        "busbar-node: SM clock, A",
        "busbar-node: NVLink traffic (as DCGM counts it), A",
        *(f"busbar-node: Memory errors since the driver was loaded, {letter}" for letter in "AB"),
    },
    "there is no kube-state-metrics": {"busbar-node: Devices that Kubernetes offers, B"},
    "node_exporter 1.5 does not read hw_counters": {
        *(f"busbar-fabric: RoCE: congestion notifications, {letter}" for letter in "ABC"),
        *(f"busbar-fabric: What NCCL sees: lost and late packets, {letter}" for letter in "ABCD"),
        *(f"busbar-node: Errors per second, {letter}" for letter in "DEF"),
    },
    "no node is in quarantine or drained": {"busbar-fabric: In quarantine or drained, A"},
}


def ask(service: str, path: str, **query: str) -> Any:
    """What Prometheus or Alertmanager answers."""
    kubeconfig = (PROJECT / ".busbar" / "dev" / "kubeconfig").read_text(encoding="utf-8")
    # Alertmanager answers with a list, which get() refuses.
    answer = RestApi(kubeconfig).stream(f"{MONITORING}/{service}/proxy/api/{path}", **query)
    return json.loads(b"".join(answer))


def alerts() -> list[dict[str, str]]:
    """The labels of what Alertmanager has, sent by the real Prometheus."""
    return [each["labels"] for each in ask("alertmanager-operated:9093", "v2/alerts")]


def query(expr: str) -> list[dict[str, Any]]:
    found = ask("prometheus-operated:9090", "v1/query", query=expr)["data"]["result"]
    assert isinstance(found, list)
    return found


def seconds_until(condition: Callable[[], bool], deadline: float) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < deadline, f"timed out after {deadline:.0f} s"
        time.sleep(1)
    return time.monotonic() - started


def named(alert: str, **labels: str) -> bool:
    return any({"alertname": alert, **labels}.items() <= each.items() for each in alerts())


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
    for node in ("worker-1", "worker-2"):
        gone = [{"type": name, "$patch": "delete"} for name in CONDITIONS]
        patch = json.dumps({"status": {"conditions": gone}})
        lab.kubectl(f"patch node {node} --subresource=status -p '{patch}'")
        assert not CONDITIONS & lab.conditions(node).keys()


def test_the_update_ends_with_all_rails_of_all_workers_read(lab: Lab, watched: str) -> None:
    assert "PASS  all rails of 2 nodes are read" in watched
    assert lab.outputs(WATCH)["watch_passed"] is True


def test_rails_of_the_lab_are_read_with_the_name_of_their_node(lab: Lab, watched: str) -> None:
    ports = query("node_infiniband_state_id")
    assert {each["metric"]["node"] for each in ports} == {"worker-1", "worker-2"}
    assert {each["metric"]["job"] for each in ports} == {"busbar-rails"}


def test_what_busbar_measured_is_a_series(lab: Lab, watched: str) -> None:
    [busbw] = query("busbar_nccl_busbw_gbps")
    assert float(busbw["value"][1]) == lab.outputs()["nccl_busbw_gbps"]
    [floor] = query("busbar_nccl_floor_gbps")
    assert float(floor["value"][1]) < float(busbw["value"][1])


def test_an_update_without_changes_installs_nothing_again(lab: Lab, watched: str) -> None:
    done = lab.up("--expect-no-changes", cwd=WATCH)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rail_that_is_down_fires_beside_other_hcas_and_an_unplugged_hca_does_not(
    lab: Lab, watched: str
) -> None:
    """The workers have two rails, and beside them an HCA of storage and one without a cable."""
    known = {(each["metric"]["node"], each["metric"]["device"]) for each in query("busbar_node_rail_info")}
    assert known == {(node, hca) for node in ("worker-1", "worker-2") for hca in ("mlx5_1", "mlx5_3")}
    panel = named_expressions(VARIABLES)["busbar-fabric: Rails that are not ACTIVE, A"]
    down = 'ALERTS{alertname="BusbarRailDown"}'
    assert not query(down), "pending or firing with all rails ACTIVE"
    assert [each["value"][1] for each in query(panel)] == ["0"]
    state = "/sys/class/infiniband/mlx5_1/ports/1/state"
    lab.ssh("worker-1", f"echo '1: DOWN' > {state}; echo 1 > {COUNTERS}/link_downed")
    try:
        # The alert waits for a minute.
        taken = seconds_until(lambda: named("BusbarRailDown", node="worker-1"), 60 + ALERT_SECONDS)
        print(f"BusbarRailDown fired in Alertmanager after {taken:.1f} s")
        assert {each["metric"]["node"] for each in query(down)} == {"worker-1"}
        # A cable that is pulled is one alert.
        on_node = {each["metric"]["alertname"] for each in query('ALERTS{node="worker-1"}')}
        assert on_node == {"BusbarRailDown"}
        assert [each["value"][1] for each in query(panel)] == ["1"]
    finally:
        lab.ssh("worker-1", f"echo '4: ACTIVE' > {state}; echo 0 > {COUNTERS}/link_downed")
    seconds_until(lambda: not query(down), ALERT_SECONDS)


def test_every_expression_of_a_dashboard_has_data_where_the_lab_has_any(lab: Lab, watched: str) -> None:
    exprs = named_expressions(VARIABLES)
    without: set[str] = set()

    def as_listed() -> bool:
        without.clear()
        # An expression that Prometheus cannot parse is an ApiError.
        without.update(name for name, expr in exprs.items() if not query(expr))
        return without == set().union(*WITHOUT_DATA.values())

    counters = "link_downed symbol_error port_rcv_errors port_xmit_discards port_xmit_data port_rcv_data"
    lab.ssh("worker-1", f"cd {COUNTERS}; for name in {counters}; do echo 1000000000000 > $name; done")
    try:
        taken = seconds_until(as_listed, ALERT_SECONDS)
    finally:
        print(f"{len(exprs)} expressions, {len(without)} without data: {sorted(without)}")
        lab.ssh("worker-1", f"cd {COUNTERS}; for name in {counters}; do echo 0 > $name; done")
    print(f"after {taken:.1f} s")


def test_a_fault_in_the_log_of_one_host_is_a_condition_of_its_node_alone(lab: Lab, watched: str) -> None:
    workers = ("worker-1", "worker-2")
    well = dict.fromkeys(CONDITIONS, "False")
    seconds_until(lambda: all(faults(lab, node) == well for node in workers), ALERT_SECONDS)
    write_to_kernel_log(lab, "worker-2", LINES["XidHardware"])
    taken = seconds_until(lambda: faults(lab, "worker-2") == {**well, "BusbarGPU": "True"}, ALERT_SECONDS)
    print(f"BusbarGPU after {taken:.1f} s")
    assert faults(lab, "worker-1") == well
    done = lab.run(sys.executable, "-m", "busbar", "nodes", "dev", "--json")
    shown = {each["name"]: each["node"] for each in json.loads(done.stdout)["nodes"]}
    assert shown["worker-1"] == "Ready"
    assert shown["worker-2"].startswith("condition BusbarGPU of node-problem-detector (")


def test_a_condition_stays_when_its_pod_is_replaced(lab: Lab, watched: str) -> None:
    before = heartbeat(lab)
    on_worker = "-l app=busbar-npd --field-selector spec.nodeName=worker-2"
    lab.kubectl(f"-n busbar-watch delete pod --wait {on_worker}")
    # The new one begins without a fault, and finds it in the log.
    seconds_until(lambda: heartbeat(lab) > before, ALERT_SECONDS)
    seconds_until(lambda: faults(lab, "worker-2")["BusbarGPU"] == "True", ALERT_SECONDS)


def test_a_line_of_no_lasting_fault_is_an_event(lab: Lab, watched: str) -> None:
    write_to_kernel_log(lab, "worker-1", LINES["OOMKilling"])
    events = "get events --field-selector reason=OOMKilling,involvedObject.name=worker-1 -o name"
    seconds_until(lambda: bool(lab.kubectl(events)), ALERT_SECONDS)
    assert set(faults(lab, "worker-1").values()) == {"False"}


def faults(lab: Lab, node: str) -> dict[str, str]:
    """The status of busbar's conditions that the Node has."""
    return {name: status for name, status in lab.conditions(node).items() if name in CONDITIONS}


def heartbeat(lab: Lab) -> str:
    """When BusbarGPU of worker-2 was written."""
    path = '{.status.conditions[?(@.type=="BusbarGPU")].lastHeartbeatTime}'
    return lab.kubectl(f"get node worker-2 -o jsonpath='{path}'")


def write_to_kernel_log(lab: Lab, host: str, line: str) -> None:
    lab.ssh(host, f"echo {shlex.quote(line)} > /dev/kmsg")


def test_a_quarantine_is_a_series_after_a_refresh_and_nothing_is_expected_of_its_node(
    lab: Lab, watched: str
) -> None:
    reason = json.dumps({"why": "drill", "since": "2026-11-24T00:00:00Z"})
    lab.kubectl(f"annotate node worker-2 busbar/quarantine='{reason}'")
    try:
        assert refresh(lab)["quarantined"] == ["worker-2"]
        seconds_until(lambda: len(query("busbar_node_quarantined")) == 1, MOUNT_SECONDS)
        assert {each["metric"]["node"] for each in query("busbar_node_rails_expected")} == {"worker-1"}
    finally:
        lab.kubectl("annotate node worker-2 busbar/quarantine-")
        assert refresh(lab)["quarantined"] == []


def refresh(lab: Lab) -> dict[str, Any]:
    done = lab.run(sys.executable, "-m", "busbar", "watch", "refresh", "dev", "--project", str(WATCH))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found
