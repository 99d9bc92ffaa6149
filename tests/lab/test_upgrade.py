"""Another version of K3s under load: servers one at a time, then the workers, each drained first."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from busbar.kube.client import ApiError
from lab.hosts import nspawn
from lab.mirror.artifacts import K3sRelease, sha256
from lab.topology import find
from tests.support.api_load import ApiLoad, rest_api
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, SNAPSHOTS, UP_SECONDS, Change, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

WORKERS = ("worker-1", "worker-2")
DOWNLOADS = "/var/lib/busbar/downloads"
DRAIN_SECONDS = 20
LABELS = {"app": "drill"}
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


class Site:
    """A Deployment of two pods on the workers, and its disruption budget."""

    def __init__(self) -> None:
        self.api = rest_api(KUBECONFIG)

    def create(self) -> None:
        host = "kubernetes.io/hostname"
        on_workers = {"matchExpressions": [{"key": host, "operator": "In", "values": list(WORKERS)}]}
        apart = {"topologyKey": host, "labelSelector": {"matchLabels": LABELS}}
        spec = {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_workers]}
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": apart}
                    ]
                },
            },
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "pause", "image": "rancher/mirrored-pause:3.6"}],
        }
        body = {
            "metadata": {"name": "drill"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": spec},
            },
        }
        self.api.create(DEPLOYMENTS, body)
        eventually(lambda: self.available() == 2, 60, "two pods of the Deployment")

    def delete(self) -> None:
        for collection in (DEPLOYMENTS, BUDGETS):
            try:
                self.api.delete(f"{collection}/drill")
            except ApiError as error:
                assert error.not_found

    def available(self) -> int:
        found: int = self.api.get(f"{DEPLOYMENTS}/drill")["status"].get("availableReplicas", 0)
        return found

    def uids(self) -> set[str]:
        pods = self.api.list("/api/v1/namespaces/default/pods", labelSelector="app=drill")
        found = [pod["metadata"] for pod in pods]
        return {each["uid"] for each in found if "deletionTimestamp" not in each}

    def budget(self, available: int) -> None:
        """At least so many pods have to be available."""
        spec = {"minAvailable": available, "selector": {"matchLabels": LABELS}}
        body = {"metadata": {"name": "drill"}, "spec": spec}
        try:
            self.api.create(BUDGETS, body)
        except ApiError as error:
            assert error.conflict
            self.api.merge(f"{BUDGETS}/drill", body)

    @contextmanager
    def sampled(self) -> Iterator[list[int]]:
        """How many pods are available, as often as the API answers."""
        seen: list[int] = []
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(0.2):
                try:
                    seen.append(self.available())
                except ApiError:  # a server restarts
                    continue

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def site(lab: Lab) -> Iterator[Site]:
    made = Site()
    made.delete()
    made.create()
    yield made
    made.delete()


def _nodes(lab: Lab) -> dict[str, tuple[str, bool]]:
    """The version of each kubelet, and whether its Node is cordoned."""
    return {
        node["metadata"]["name"]: (
            node["status"]["nodeInfo"]["kubeletVersion"],
            node["spec"].get("unschedulable", False),
        )
        for node in json.loads(lab.kubectl("get nodes -o json"))["items"]
    }


@pytest.mark.drill(needs="two releases of a real K3s")
@pytest.mark.usefixtures("next_k3s")
def test_an_upgrade_stops_at_a_budget_that_allows_no_eviction_and_goes_on_when_it_does(
    lab: Lab,
    changed: Change,
    upgrade: Callable[[dict[str, Any]], None],
    site: Site,
    real_k3s: str,
    next_k3s: K3sRelease,
) -> None:
    def drained(cluster: dict[str, Any]) -> None:
        upgrade(cluster)
        cluster["pools"]["lab"] |= {"max_unavailable": 1, "drain_timeout_seconds": DRAIN_SECONDS}

    other = next_k3s.version
    before, pods = [lab.last_start(worker) for worker in WORKERS], site.uids()
    servers = dict.fromkeys(SERVERS, (other, False))
    with site.sampled() as available, ApiLoad(KUBECONFIG) as load:
        site.budget(2)
        began = time.monotonic()
        text = changed(drained, "--continue-on-error", fails=True)
        print(f"an upgrade that a budget stops: {time.monotonic() - began:.0f} s")
        assert f"timed out after {DRAIN_SECONDS} s: remaining pods: " in text
        assert re.search(
            r"default/drill-\S+ \(Cannot evict .* budget drill needs 2 healthy pods and has 2 currently\)",
            text,
        )
        assert "not updated; no other agent of pool lab restarts" in text
        assert [lab.last_start(worker) for worker in WORKERS] == before
        assert (site.uids(), min(available)) == (pods, 2)
        assert _nodes(lab) == servers | dict.fromkeys(WORKERS, (real_k3s, False))

        site.budget(1)
        began = time.monotonic()
        changed(drained)
        print(f"the update after it: {time.monotonic() - began:.0f} s")
    print(load.account)
    saved = f"busbar-before-{other.replace('+', '-')}"
    for server in SERVERS:
        assert saved in lab.ssh(server, f"ls {SNAPSHOTS}"), server
    assert min(available) >= 1
    assert _nodes(lab) == servers | dict.fromkeys(WORKERS, (other, False))
    assert not site.uids() & pods
    assert lab.voters() == set(SERVERS)
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
    assert load.account.repeated_twice == 0


@pytest.mark.drill(needs="two releases of a real K3s")
def test_a_worker_that_reboots_before_its_turn_starts_its_former_release_and_is_upgraded_in_its_turn(
    lab: Lab, upgrade: Callable[[dict[str, Any]], None], real_k3s: str, next_k3s: K3sRelease, tmp_path: Path
) -> None:
    worker, last_server = WORKERS[1], SERVERS[-1]
    stack = OwnStack(PROJECT, tmp_path / "project", lab.environment)
    stack.configure(upgrade)
    wanted = sha256(next_k3s.binary)

    def version(host: str) -> str:
        return lab.ssh(host, "k3s --version").split()[2]

    update = stack.start_up()
    try:
        # The servers are first. Meanwhile the download of all hosts has ended here.
        eventually(lambda: wanted in lab.ssh(worker, f"ls {DOWNLOADS} || true"), 120, "the release is here")
        assert version(last_server) == real_k3s, "all servers are upgraded already: the reboot is too late"
        lab.ssh(worker, "systemctl reboot --no-block")
        eventually(lambda: nspawn.running(find(worker)) is None, 60, f"{worker} has stopped")
        lab.boot()
        assert version(worker) == real_k3s, "an agent newer than its servers would have started"
        ended = update.ended_within(UP_SECONDS)
    finally:
        update.kill()
    assert ended, update.printed
    assert _nodes(lab) == dict.fromkeys((*SERVERS, *WORKERS), (next_k3s.version, False))
    assert lab.ssh(worker, f"ls {DOWNLOADS} 2>/dev/null || true") == ""
    assert stack.busbar("verify", "dev").returncode == 0


@pytest.mark.usefixtures("changed")
def test_a_drain_that_was_killed_is_finished_by_the_next_update_and_no_worker_stays_cordoned(
    lab: Lab, site: Site, tmp_path: Path
) -> None:
    def drained(cluster: dict[str, Any]) -> None:
        cluster["k3s"]["agent_args"] = {"kubelet-arg": ["max-pods=109"]}
        cluster["pools"]["lab"] |= {"max_unavailable": 1, "drain": "always", "drain_timeout_seconds": 600}

    def cordoned() -> list[str]:
        return [name for name, (_, is_cordoned) in _nodes(lab).items() if is_cordoned]

    before = [lab.last_start(worker) for worker in WORKERS]
    stack = OwnStack(PROJECT, tmp_path / "project", lab.environment)
    stack.configure(drained)
    site.budget(2)
    update = stack.start_up()
    try:
        eventually(lambda: cordoned() != [], 180, "a worker is drained")
    finally:
        update.kill()
    assert len(cordoned()) == 1
    assert (
        "its Node is cordoned by an update that did not finish there" in stack.busbar("verify", "dev").stdout
    )
    assert [lab.last_start(worker) for worker in WORKERS] == before
    site.budget(1)
    stack.up()
    assert cordoned() == []
    assert all(lab.last_start(worker) > start for worker, start in zip(WORKERS, before, strict=True))
    assert stack.busbar("verify", "dev").returncode == 0
