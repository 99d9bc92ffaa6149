"""Updates of NVIDIA's operators: their rollouts go on after a policy is ready: `make drills`."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from busbar.outputs.contract import PoolResult
from tests.support.lab import PROJECT, WORKERS, Lab, eventually

pytestmark = pytest.mark.drill

REJECTED = "UnexpectedAdmissionError"
BOUND_SECONDS = 90
LEASE_SECONDS = 120
PULL_SECONDS = 45
# Longer than devices must be offered without interruption.
SLOW_SECONDS = 75
HCA_PLUGIN = ("nvidia-network-operator", "network-operator-sriov-device-plugin")
OTHER_HCAS = ["0000:20:00.0", "0000:23:00.0"]


Settings = Mapping[str, Mapping[str, Any]]


def up(lab: Lab, settings: Settings) -> tuple[bool, str]:
    """An update with these settings of sections: whether it succeeded, and what it printed."""

    def change(cluster: dict[str, Any]) -> None:
        for section, values in settings.items():
            cluster[section] |= values

    done = lab.up("--config-file", str(lab.config_with(change)))
    print(done.stdout, done.stderr)
    return done.returncode == 0, done.stdout + done.stderr


def measuring(run: int) -> Settings:
    """The settings of an update that measures."""
    return {"validation": {"run": run}}


def result(lab: Lab) -> PoolResult:
    return ClusterOutputs.from_dict(lab.outputs()).nccl["lab"]


def started(lab: Lab, worker: str) -> float:
    """When the agent was last up, in seconds since the epoch."""
    time = "systemctl show -p ActiveEnterTimestamp --value k3s-agent"
    return float(lab.ssh(worker, f'date -d "$({time})" +%s'))


def rolled_out(lab: Lab, namespace: str, daemon_set: str) -> bool:
    """Whether all pods of the DaemonSet are of its newest template, and available."""
    found = json.loads(lab.kubectl(f"get daemonset {daemon_set} -n {namespace} -o json"))
    status = found["status"]
    return bool(status["observedGeneration"] == found["metadata"]["generation"]) and (
        status.get("updatedNumberScheduled", 0)
        == status.get("numberAvailable", 0)
        == status["desiredNumberScheduled"]
    )


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Lab]:
    yield lab
    lab.updated()


@pytest.fixture
def restored(site: Lab) -> Iterator[None]:
    """The usual settings after the test: the next one begins without a rollout."""
    yield
    site.updated()


@pytest.fixture
def next_release(site: Lab) -> Path:
    """The chart of another release of the GPU Operator, which makes all of its DaemonSets anew.

    Its pod is Ready late, as after a slow pull: until then, and until its lease expires, the old one acts.
    """
    folder = site.temporary / "gpu-operator"
    shutil.copytree(PROJECT / "lab" / "charts" / "gpu-operator", folder)
    changes = {
        "Chart.yaml": ("version: 0.1.0", "version: 0.2.0"),
        "templates/operator.yaml": ("initialDelaySeconds: 5", f"initialDelaySeconds: {PULL_SECONDS}"),
    }
    for name, (former, now) in changes.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert former in text
        (folder / name).write_text(text.replace(former, now), encoding="utf-8")
    return folder


@pytest.mark.usefixtures("restored")
def test_an_update_of_the_gpu_operator_measures_after_the_last_restart_of_an_agent(
    site: Lab, next_release: Path
) -> None:
    before = {worker: started(site, worker) for worker in WORKERS}
    succeeded, text = up(site, {**measuring(101), "gpu_operator": {"chart": str(next_release)}})
    toolkit = ("gpu-operator", "nvidia-container-toolkit-daemonset")
    release = f"get daemonset {toolkit[1]} -n {toolkit[0]} -o yaml"
    eventually(lambda: "operator-release: 0.2.0" in site.kubectl(release), LEASE_SECONDS, "the new pod leads")
    eventually(lambda: rolled_out(site, *toolkit), BOUND_SECONDS, "the toolkit is rolled out")
    assert succeeded and result(site).verdict == "pass", text
    measured_at = result(site).measured_at
    assert measured_at is not None
    for worker in WORKERS:
        last = started(site, worker)
        assert before[worker] < last < measured_at.timestamp(), f"{worker}: {text}"


@pytest.mark.usefixtures("restored")
def test_an_update_of_the_toolkit_measures_a_healthy_fabric_also_where_a_signal_hits_the_toolkit(
    site: Lab,
) -> None:
    # The operator's pod stays: it acts at once. One toolkit ends itself and starts again.
    site.ssh("worker-1", "echo 1 > /usr/local/lib/busbar-lab/toolkit-misses")
    before = {worker: started(site, worker) for worker in WORKERS}
    toolkit: Settings = {"gpu_operator": {"values": {"toolkit": {"version": "drill"}}}}
    succeeded, text = up(site, {**measuring(104), **toolkit})
    assert all(started(site, worker) > before[worker] for worker in WORKERS), "the agents restarted"
    assert site.ssh("worker-1", "cat /usr/local/lib/busbar-lab/toolkit-misses").strip() == "0"
    assert succeeded and result(site).verdict == "pass", text


@pytest.fixture
def hca_plugins(site: Lab) -> Iterator[Callable[[], None]]:
    """The pods of the SR-IOV plugin, which are replaced no sooner than the function is called."""
    namespace, name = HCA_PLUGIN
    what = f"daemonset {name} -n {namespace}"

    def update(strategy: str) -> None:
        patch = json.dumps({"spec": {"updateStrategy": {"$retainKeys": ["type"], "type": strategy}}})
        site.kubectl(f"patch {what} --type strategic -p '{patch}'")

    update("OnDelete")
    yield lambda: update("RollingUpdate")
    update("RollingUpdate")
    eventually(lambda: rolled_out(site, *HCA_PLUGIN), BOUND_SECONDS, "the plugins are rolled out")


@pytest.mark.usefixtures("restored")
def test_a_change_of_rails_ends_after_the_last_plugin_with_the_old_addresses(
    site: Lab, hca_plugins: Callable[[], None]
) -> None:
    other: Settings = {
        "network_operator": {"selectors": {"pciAddresses": OTHER_HCAS}},
        "validation": {"enabled": False},
    }
    done: list[tuple[bool, str]] = []
    update = threading.Thread(target=lambda: done.append(up(site, other)))
    update.start()
    try:
        policy = "get nicclusterpolicies.mellanox.com nic-cluster-policy -o yaml"
        eventually(
            lambda: OTHER_HCAS[0] in site.kubectl(policy), BOUND_SECONDS, "the policy names other HCAs"
        )
        update.join(SLOW_SECONDS)
        assert not done, f"the old plugins run: {done}"
    finally:
        hca_plugins()
        update.join()
    [(succeeded, text)] = done
    assert succeeded, text
    assert rolled_out(site, *HCA_PLUGIN)


class Rejecting:
    """Rejects pods of the measurement: the agent of worker-1 is off while they are bound to it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._known = set(self._workers())

    def off(self) -> None:
        self._lab.ssh("worker-1", "systemctl stop k3s-agent")

    def reject(self) -> None:
        eventually(lambda: bool(self._new()), BOUND_SECONDS, "a pod of the job is bound to worker-1")
        new = self._new()
        self._known |= new
        self._lab.ssh("worker-1", "systemctl start k3s-agent")
        is_rejected: Callable[[], bool] = lambda: REJECTED in [self._workers().get(uid) for uid in new]  # noqa: E731
        eventually(is_rejected, BOUND_SECONDS, "the kubelet of worker-1 rejects it")

    def _new(self) -> set[str]:
        return set(self._workers()) - self._known

    def _workers(self) -> dict[str, str]:
        """The reason by uid of the jobs' pods on worker-1."""
        label = "training.kubeflow.org/job-role=worker"
        pods = json.loads(self._lab.kubectl(f"get pods -A -l {label} -o json"))["items"]
        return {
            pod["metadata"]["uid"]: pod["status"].get("reason", "")
            for pod in pods
            if pod["spec"].get("nodeName") == "worker-1"
        }


@pytest.fixture
def rejecting(site: Lab) -> Iterator[Rejecting]:
    yield Rejecting(site)
    site.ssh("worker-1", "systemctl start k3s-agent")


def during(update: Callable[[], Any], act: Callable[[], None]) -> list[Any]:
    """What `update` returned, while `act` went on."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(update()))
    thread.start()
    try:
        act()
    finally:
        thread.join()
    return done


def test_a_job_whose_pods_a_starting_kubelet_has_rejected_starts_once_more(
    site: Lab, rejecting: Rejecting
) -> None:
    rejecting.off()
    [(succeeded, text)] = during(lambda: up(site, measuring(102)), rejecting.reject)
    assert succeeded and "the job starts once more" in text and result(site).verdict == "pass", text


def test_an_update_whose_job_was_rejected_twice_fails_and_the_next_one_measures(
    site: Lab, rejecting: Rejecting
) -> None:
    def twice() -> None:
        rejecting.reject()
        rejecting.off()
        rejecting.reject()

    rejecting.off()
    [(succeeded, text)] = during(lambda: up(site, measuring(103)), twice)
    assert not succeeded and "it was started once more before" in text, text
    measured_at = result(site).measured_at
    succeeded, text = up(site, measuring(103))
    now = result(site)
    assert succeeded and now.verdict == "pass" and now.measured_at != measured_at, text


@pytest.fixture
def broken_worker(site: Lab) -> Iterator[None]:
    """The driver's validation fails on worker-2, and holds the ClusterPolicy at notReady."""
    site.ssh("worker-2", "echo 0 > /usr/local/lib/busbar-lab/gpus")
    site.kubectl(
        "delete pod -n gpu-operator -l app=nvidia-operator-validator --field-selector spec.nodeName=worker-2"
    )
    state = "get clusterpolicies.nvidia.com -o jsonpath='{.items[0].status.state}'"
    eventually(lambda: site.kubectl(state).strip() == "notReady", BOUND_SECONDS, "the policy is notReady")
    yield
    site.ssh("worker-2", "echo 2 > /usr/local/lib/busbar-lab/gpus")


def names_the_broken_worker(said: str) -> bool:
    return bool(re.search(r"not waited for: worker-2: .*nvidia-operator-validator", said))


def rolling_out(lab: Lab, version: str, quarantine: str | None = None) -> str:
    """Return the output of an update that rolls out the toolkit, and measures nothing. It must succeed."""

    def change(cluster: dict[str, Any]) -> None:
        cluster["gpu_operator"]["values"] = {"toolkit": {"version": version}}
        cluster["validation"]["enabled"] = False
        if quarantine:
            cluster["hosts"]["workers"][1]["quarantine"] = quarantine

    return lab.updated("--config-file", str(lab.config_with(change)))


@pytest.mark.usefixtures("restored", "broken_worker")
def test_a_broken_worker_in_quarantine_delays_no_update_and_is_named(site: Lab) -> None:
    said = rolling_out(site, "quarantined", quarantine="drill: GPU 1 is lost")
    assert names_the_broken_worker(said), said
