"""Day-2 changes on running hosts: `make drills`. Every drill ends with the usual configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab.conftest import Lab

pytestmark = pytest.mark.drill

SERVERS = ("server-1", "server-2", "server-3")


def _uids(lab: Lab, kind: str) -> dict[str, str]:
    """Name -> uid: an object that was deleted and made again has another one."""
    found = json.loads(lab.kubectl(f"get {kind} -A -o json"))["items"]
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}


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


def _members(lab: Lab) -> set[str]:
    nodes = json.loads(lab.kubectl("get nodes -l node-role.kubernetes.io/etcd=true -o json"))["items"]
    return {
        node["metadata"]["name"]
        for node in nodes
        if {"type": "EtcdIsVoter", "status": "True"}.items()
        <= next((each for each in node["status"]["conditions"] if each["type"] == "EtcdIsVoter"), {}).items()
    }


@pytest.fixture
def changed(lab: Lab) -> Iterator[Callable[..., str]]:
    """An update with a changed configuration and without the measurement; afterwards the usual one."""

    def up(change: Callable[[dict[str, Any]], None], *arguments: str, fails: bool = False) -> str:
        def and_unmeasured(cluster: dict[str, Any]) -> None:
            cluster["validation"]["enabled"] = False
            change(cluster)

        done = lab.up("--config-file", str(lab.config_with(and_unmeasured)), *arguments)
        text = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, text
        return text

    yield up
    done = lab.up()
    assert done.returncode == 0, done.stdout + done.stderr


def test_renamed_servers_are_refused_before_anything_changes(lab: Lab, changed: Callable[..., str]) -> None:
    nodes, pods = _uids(lab, "nodes"), _pods(lab)

    def rename(cluster: dict[str, Any]) -> None:
        for host in cluster["hosts"]["servers"]:
            host["name"] = f"renamed-{host['name']}"

    text = changed(rename, fails=True)
    for server in SERVERS:
        assert f"is a K3s server named {server}, which is its name in etcd and cannot change" in text
    assert (_uids(lab, "nodes"), _pods(lab)) == (nodes, pods)
    assert _members(lab) == set(SERVERS)


def test_a_worker_that_moves_to_another_pool_keeps_its_node_and_its_pods(
    lab: Lab, changed: Callable[..., str]
) -> None:
    nodes, pods = _uids(lab, "nodes"), _pods(lab)

    def move(cluster: dict[str, Any]) -> None:
        cluster["pools"]["other"] = dict(cluster["pools"]["lab"])
        first, second = cluster["hosts"]["workers"]
        first["pool"], second["pool"] = "lab", "other"

    changed(move)
    assert _uids(lab, "nodes") == nodes
    assert {name: pods[name] for name in pods.keys() & _pods(lab).keys()} == pods


def test_a_renamed_load_balancer_goes_on(lab: Lab, changed: Callable[..., str]) -> None:
    started = lab.ssh("lb-1", "systemctl show -p ActiveEnterTimestamp --value haproxy")

    def rename(cluster: dict[str, Any]) -> None:
        cluster["hosts"]["load_balancers"][0]["name"] = "front"

    changed(rename)
    assert lab.ssh("lb-1", "systemctl show -p ActiveEnterTimestamp --value haproxy") == started
    assert "load-balancer-front" in lab.ssh("lb-1", "cat /var/lib/busbar/owner")


def test_two_of_three_servers_leave_and_come_back_while_the_data_survive(
    lab: Lab, changed: Callable[..., str]
) -> None:
    lab.kubectl("create configmap drill --from-literal=a=b")
    try:

        def one_server(cluster: dict[str, Any]) -> None:
            del cluster["hosts"]["servers"][1:]

        changed(one_server)
        assert _members(lab) == {"server-1"}
        assert set(_uids(lab, "nodes")) == {"server-1", "worker-1", "worker-2"}
        assert lab.ssh("server-2", "ls /usr/local/bin/k3s /var/lib/busbar 2>/dev/null || true") == ""
        changed(lambda _: None)
        assert _members(lab) == set(SERVERS)
        assert lab.kubectl("get configmap drill -o jsonpath='{.data.a}'").strip() == "b"
    finally:
        lab.kubectl("delete configmap drill --ignore-not-found")


def test_a_replaced_worker_is_installed_and_ready_at_the_end(lab: Lab, changed: Callable[..., str]) -> None:
    exported = json.loads(lab.pulumi("stack", "export", "--stack", "dev").stdout)
    [urn] = [
        each["urn"]
        for each in exported["deployment"]["resources"]
        if each["urn"].endswith("::worker-worker-2")
    ]
    changed(lambda _: None, "--replace", urn)
    ready = "jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'"
    assert lab.ssh("worker-2", "systemctl is-active k3s-agent").strip() == "active"
    assert lab.kubectl(f"get node worker-2 -o {ready}").strip() == "True"


def test_a_removed_worker_keeps_the_files_of_the_site_and_comes_back(
    lab: Lab, changed: Callable[..., str]
) -> None:
    drop_in = "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/99-lab.conf"
    before = lab.ssh("worker-2", f"sha256sum {drop_in}")

    def without_worker_2(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["workers"][1]

    changed(without_worker_2)
    assert lab.ssh("worker-2", f"sha256sum {drop_in}") == before
    changed(lambda _: None)
    assert lab.ssh("worker-2", "systemctl is-active k3s-agent").strip() == "active"
