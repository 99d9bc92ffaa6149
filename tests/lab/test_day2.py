"""Day-2 changes on running hosts: `make drills`. Every drill ends with the usual configuration."""

import ipaddress
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from tests.support.lab import SERVERS, Change, Lab, eventually

pytestmark = pytest.mark.drill


def _pods(lab: Lab) -> dict[str, str]:
    """The pods of DaemonSets, by what would change if one of them were restarted."""
    found = json.loads(lab.kubectl("get pods -A -o json"))["items"]
    return {
        pod["metadata"]["name"]: json.dumps(
            [pod["metadata"]["uid"], [each["restartCount"] for each in pod["status"]["containerStatuses"]]]
        )
        for pod in found
        if pod["metadata"].get("ownerReferences", [{}])[0].get("kind") == "DaemonSet"
    }


def test_a_renamed_pool_is_measured_under_its_new_name_and_no_host_is_touched(
    lab: Lab, changed: Change
) -> None:
    hosts = ("worker-1", "worker-2")
    nodes, pods, starts = lab.uids("nodes"), _pods(lab), [lab.last_start(host) for host in hosts]

    def rename(cluster: dict[str, Any]) -> None:
        cluster["validation"]["enabled"] = True
        cluster["pools"]["renamed"] = cluster["pools"].pop("lab")

    changed(rename)
    assert [
        name for name, pool in ClusterOutputs.from_dict(lab.outputs()).nccl.items() if not pool.not_passed
    ] == ["renamed"]
    assert lab.uids("nodes") == nodes
    assert {name: pods[name] for name in pods.keys() & _pods(lab).keys()} == pods
    assert [lab.last_start(host) for host in hosts] == starts


def test_a_renamed_load_balancer_goes_on(lab: Lab, changed: Change) -> None:
    started = lab.ssh("lb-1", "systemctl show -p ActiveEnterTimestamp --value haproxy")

    def rename(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["load_balancers"][0]["name"] = "front"

    changed(rename)
    assert lab.ssh("lb-1", "systemctl show -p ActiveEnterTimestamp --value haproxy") == started
    assert "busbar-load-balancer@front" in lab.ssh("lb-1", "cat /var/lib/busbar/owner")


def test_labels_restart_no_agent_and_another_setting_restarts_them_one_at_a_time(
    lab: Lab, changed: Change
) -> None:
    workers = ("worker-1", "worker-2")
    before, pods = [lab.last_start(worker) for worker in workers], _pods(lab)

    def labelled(cluster: dict[str, Any]) -> None:
        cluster["pools"]["lab"]["labels"] = {"drill": "labelled"}

    changed(labelled)
    nodes = lab.kubectl("get nodes -l drill=labelled -o name").split()
    assert nodes == [f"node/{worker}" for worker in workers]
    assert [lab.last_start(worker) for worker in workers] == before

    def fewer_pods(cluster: dict[str, Any]) -> None:
        cluster["k3s"]["agent_args"] = {"kubelet-arg": ["max-pods=109"]}
        cluster["pools"]["lab"]["max_unavailable"] = 1

    changed(fewer_pods)
    first, second = sorted(lab.last_start(worker) for worker in workers)
    assert max(max(before)) < first[0] < first[1] < second[0]
    assert _pods(lab) == pods


def test_another_name_of_the_api_is_in_every_certificate_and_no_agent_restarts(
    lab: Lab, changed: Change
) -> None:
    before = [lab.last_start(worker) for worker in ("worker-1", "worker-2")]
    ping = (
        "curl -s -o /dev/null --cacert /var/lib/rancher/k3s/server/tls/server-ca.crt "
        "--connect-to ::127.0.0.1:6443 https://api.drill.example:6443/ping || echo refused"
    )
    assert lab.ssh(SERVERS[0], ping).strip() == "refused"

    def named(cluster: dict[str, Any]) -> None:
        cluster["k3s"]["tls_san"] = ["api.drill.example"]

    changed(named)
    for server in SERVERS:
        assert lab.ssh(server, ping).strip() == "", server
    assert [lab.last_start(worker) for worker in ("worker-1", "worker-2")] == before


PAUSE = {"name": "pause", "image": "rancher/mirrored-pause:3.6"}


@pytest.fixture
def daemons(lab: Lab) -> Iterator[None]:
    """A DaemonSet `drill` with a pod on every Node until the test ends."""
    labels = {"app": "drill"}
    template = {"spec": {"containers": [PAUSE]}, "metadata": {"labels": labels}}
    lab.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "drill", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
    )
    yield
    lab.kubectl("delete daemonset drill -n default --ignore-not-found")


def _address_of_pod(lab: Lab, node: str) -> str:
    """Of the pod of the DaemonSet on this Node; empty until it is Ready."""
    pods = f"get pods -n default -l app=drill --field-selector spec.nodeName={node} -o json"
    for pod in json.loads(lab.kubectl(pods))["items"]:
        status = pod["status"]
        if any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"]):
            return str(status["podIP"])
    return ""


def _pod_network(lab: Lab, node: str) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(lab.kubectl(f"get node {node} -o jsonpath='{{.spec.podCIDR}}'").strip())


@pytest.mark.usefixtures("daemons")
def test_pods_start_on_a_renamed_worker_and_are_reached_from_another_one(lab: Lab, changed: Change) -> None:
    eventually(lambda: _address_of_pod(lab, "worker-2") != "", 60, "a pod runs on worker-2")
    former = _pod_network(lab, "worker-2")

    def rename(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["workers"][1]["name"] = "gpu-2"

    changed(rename)
    assert set(lab.uids("nodes")) == {*SERVERS, "worker-1", "gpu-2"}
    eventually(lambda: _address_of_pod(lab, "gpu-2") != "", 60, "a pod runs on gpu-2")
    address = _address_of_pod(lab, "gpu-2")
    assert ipaddress.ip_address(address) in _pod_network(lab, "gpu-2")
    assert ipaddress.ip_address(address) not in former
    lab.ssh("worker-1", f"ping -c 1 -w 30 {address}")


@pytest.fixture
def job(lab: Lab) -> Iterator[str]:
    """The pod of a Job that runs on worker-1 until the test ends."""
    template = {"nodeName": "worker-1", "restartPolicy": "Never", "containers": [PAUSE]}
    lab.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "drill", "namespace": "default"},
            "spec": {"template": {"spec": template}},
        }
    )
    pods = "get pods -n default -l job-name=drill --field-selector status.phase=Running -o name"
    eventually(lambda: lab.kubectl(pods) != "", 60, "the pod of the Job runs")
    yield lab.kubectl(pods).strip().removeprefix("pod/")
    lab.kubectl("delete job drill -n default --ignore-not-found")


def test_no_agent_restarts_under_a_running_job_if_its_pool_refuses_that(
    lab: Lab, changed: Change, job: str
) -> None:
    before = {worker: lab.last_start(worker) for worker in ("worker-1", "worker-2")}

    def fewer_pods(cluster: dict[str, Any]) -> None:
        cluster["k3s"]["agent_args"] = {"kubelet-arg": ["max-pods=109"]}
        cluster["pools"]["lab"]["running_jobs"] = "refuse"

    text = changed(fewer_pods, "--continue-on-error", fails=True)
    assert f"worker-1: jobs are running here: default/{job}; the agent was not restarted" in text
    assert lab.last_start("worker-1") == before["worker-1"]
    assert lab.last_start("worker-2") > before["worker-2"]


def test_a_replaced_worker_that_lost_its_script_is_installed_and_ready_at_the_end(
    lab: Lab, changed: Change
) -> None:
    exported = json.loads(lab.pulumi("stack", "export", "--stack", "dev").stdout)
    [urn] = [
        each["urn"]
        for each in exported["deployment"]["resources"]
        if each["urn"].endswith("::busbar-worker@worker-2")
    ]
    lab.ssh("worker-2", "rm -r /run/busbar")  # as after a reboot
    changed(lambda _: None, "--replace", urn)
    ready = "jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'"
    assert lab.ssh("worker-2", "systemctl is-active k3s-agent").strip() == "active"
    assert lab.kubectl(f"get node worker-2 -o {ready}").strip() == "True"
    assert lab.ssh("worker-2", "stat -c %a /run/busbar").strip() == "700"


@pytest.fixture
def on_worker_2(lab: Lab) -> Iterator[Callable[[str], None]]:
    """Makes a pod that the scheduler may place on worker-2 only."""
    made: list[str] = []

    def make(name: str) -> None:
        made.append(name)
        spec = {"nodeSelector": {"kubernetes.io/hostname": "worker-2"}, "containers": [PAUSE]}
        metadata = {"name": name, "namespace": "default"}
        lab.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    yield make
    lab.kubectl(f"delete pod -n default --ignore-not-found {' '.join(made)}")


def test_a_worker_in_quarantine_gets_no_new_pods_and_keeps_those_that_run(
    lab: Lab, changed: Change, on_worker_2: Callable[[str], None]
) -> None:
    def held(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["workers"][1]["quarantine"] = "drill: rail 0 is slow"

    def phase(name: str) -> str:
        return lab.kubectl(f"get pod {name} -o jsonpath='{{.status.phase}}'").strip()

    started = lab.last_start("worker-2")
    lab.kubectl("taint node worker-2 site=drill:PreferNoSchedule")
    try:
        on_worker_2("before")
        eventually(lambda: phase("before") == "Running", 60, "a pod runs on worker-2")
        changed(held)
        assert "drill: rail 0 is slow" in lab.kubectl("get node worker-2 -o yaml")
        on_worker_2("during")
        untolerated = "untolerated taint(s)"
        eventually(lambda: untolerated in lab.kubectl("describe pod during"), 60, "the scheduler says why")
        assert (phase("before"), phase("during")) == ("Running", "Pending")
        changed(lambda _: None)
        eventually(lambda: phase("during") == "Running", 60, "the pod starts after the quarantine")
        taints = lab.kubectl("get node worker-2 -o jsonpath='{.spec.taints[*].key}'").split()
        assert taints == ["site"], "the taint of somebody else stays"
        assert lab.last_start("worker-2") == started
    finally:
        lab.kubectl("taint node worker-2 site-")


def test_a_drained_worker_stays_cordoned_over_an_update_while_it_is_off_and_comes_back(
    lab: Lab, changed: Change, on_worker_2: Callable[[str], None]
) -> None:
    def busbar(command: str, *words: str) -> tuple[int, str]:
        # A table as wide as the longest reason.
        wide = ("env", "COLUMNS=300")
        done = lab.run(*wide, sys.executable, "-m", "busbar", command, "dev", *words)
        return done.returncode, done.stdout + done.stderr

    def is_cordoned() -> bool:
        return bool(lab.kubectl("get node worker-2 -o jsonpath='{.spec.unschedulable}'").strip())

    def is_ready(state: bool) -> Callable[[], bool]:
        return lambda: (lab.conditions("worker-2")["Ready"] == "True") is state

    on_worker_2("alone")
    phase = "get pod alone --ignore-not-found -o jsonpath='{.status.phase}'"
    eventually(lambda: lab.kubectl(phase).strip() == "Running", 60, "a pod runs on worker-2")
    try:
        code, text = busbar("drain", "worker-2", "--reason", "drill: fan", "--end-jobs")
        assert code == 0, text
        assert (is_cordoned(), lab.kubectl(phase).strip()) == (True, "")
        for command in ("verify", "status", "nodes"):
            assert "drill: fan (by " in busbar(command)[1]
        lab.ssh("worker-2", "systemctl stop k3s-agent")
        eventually(is_ready(False), 120, "worker-2 is not Ready")
        assert "worker-2 is not waited for, it was drained: drill: fan" in changed(lambda _: None)
        assert is_cordoned()
    finally:
        lab.ssh("worker-2", "systemctl start k3s-agent")
        eventually(is_ready(True), 120, "worker-2 is Ready")
        code, text = busbar("uncordon", "worker-2")
    assert (code, is_cordoned()) == (0, False), text
    lab.kubectl("cordon worker-2")
    try:
        assert "its Node is cordoned by kubectl" in busbar("verify")[1]
        assert "is cordoned by kubectl" in busbar("uncordon", "worker-2")[1]
        assert is_cordoned()
    finally:
        lab.kubectl("uncordon worker-2")
