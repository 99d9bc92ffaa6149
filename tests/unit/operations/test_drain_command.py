"""`busbar drain`, `uncordon` and `status` as a person calls them; the Node: kube/test_drain.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from busbar.cli.stack import report
from busbar.exits import USAGE
from busbar.kube.client import JsonObject
from busbar.kube.nodes import NODES, QUARANTINE, Node, Note
from tests.support import rolled_out
from tests.support.cli import busbar
from tests.support.clusters import H100_POOL, site, stack_file
from tests.support.kube_cluster import unreachable
from tests.unit.kube.node_cluster import Nodes, node, pod
from tests.unit.operations.test_verify import KUBECONFIG

Call = Callable[..., Result]
OFFERED = {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"}


class Api(Nodes):
    """The cluster of the stack, whose operators have a policy that is not ready, and no events."""

    timeout_seconds = 15.0
    operators = rolled_out.gpu_operator(["gpu-1", "gpu-2"]) | rolled_out.network_operator(["gpu-1", "gpu-2"])

    def list(self, path: str, **query: str) -> list[JsonObject]:
        policy = {"metadata": {"name": "cluster-policy"}, "status": {"state": "notReady"}}
        if path.startswith(("/apis/nvidia.com", "/apis/mellanox.com")):
            return [policy]
        return self.operators.get(path) or super().list(path, **query)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Api:
    """Its kubelets and time are those of this test."""
    made = Api(node("gpu-1", "b"), node("gpu-2", "c"), pods=(pod("train", "gpu-1", "MPIJob"),))
    made.objects |= {"/version": {}}
    made.clock.at(400, lambda: setattr(made, "pods", []))
    for name in ("gpu-1", "gpu-2"):
        made.objects[f"{NODES}/{name}"]["status"] |= {"allocatable": dict(OFFERED), "capacity": dict(OFFERED)}
    monkeypatch.setattr("busbar.operations.verify.RestApi", lambda _: made)
    monkeypatch.setattr("busbar.cli.stack.report.RestApi", lambda _: made)
    monkeypatch.setattr("busbar.cli.k3s.SystemClock", lambda: made.clock)
    monkeypatch.setattr("busbar.cli.k3s.requester", lambda: "anna@ops")
    return made


def change(file: Path, *path: Any, **values: Any) -> None:
    """Set these keys of an object of the configuration."""
    content = yaml.safe_load(file.read_text())
    place = content["config"]["busbar:cluster"]
    for step in path:
        place = place[step]
    place.update(values)
    file.write_text(yaml.safe_dump(content))


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Api) -> Call:
    """The command line beside the file of the stack `prod`, whose kubeconfig `busbar up` has kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    pool = {**H100_POOL, "drain_timeout_seconds": 240}
    stack_file(tmp_path, site(pools={"h100": pool}, network_operator={"enabled": True}))
    kept = tmp_path / ".busbar" / "prod" / "kubeconfig"
    kept.parent.mkdir(parents=True)
    kept.write_text(KUBECONFIG)
    return busbar


def test_a_drain_waits_for_the_job_goes_on_when_called_again_and_is_undone(call: Call, cluster: Api) -> None:
    first = call("drain", "prod", "gpu-1", "--reason", "driver 580")
    assert first.exit_code == 1, first.output
    said = " ".join(first.output.split())
    assert "error: drain of gpu-1 timed out after 240 s: remaining pods: default/train (of a job); " in said
    assert "gpu-1 stays cordoned. Fix: run it again, with --end-jobs to end jobs too; or: busbar" in said
    again = call("drain", "prod", "gpu-1", "--reason", "driver 580")
    assert again.exit_code == 0, again.output
    assert again.stdout == "gpu-1 is drained; when its repair is done: busbar uncordon prod gpu-1\n"
    back = call("uncordon", "prod", "gpu-1")
    assert (back.exit_code, back.stdout) == (0, "gpu-1 is back: pods can start there\n")
    assert cluster.log == ["gpu-1 cordoned", "gpu-1 cordoned", "gpu-1 uncordoned"]


def test_capabilities_are_told_of_a_drain_also_while_pods_remain_and_of_its_end(
    call: Call, cluster: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        "busbar.cli.k3s.notify",
        lambda *_: told.append(bool(Node.of(cluster.objects[f"{NODES}/gpu-1"]).drained)),
    )
    for command in ("drain", "drain", "uncordon"):
        call(command, "prod", "gpu-1")
    assert told == [True, True, False]


@pytest.mark.parametrize(("resource", "lacks"), [("nvidia.com/gpu", 7), ("nvidia.com/hostdev", 6)])
def test_a_worker_without_devices_stays_drained(call: Call, cluster: Api, resource: str, lacks: int) -> None:
    call("drain", "prod", "gpu-2")
    cluster.objects[f"{NODES}/gpu-2"]["status"]["allocatable"][resource] = str(lacks)
    done = call("uncordon", "prod", "gpu-2")
    assert done.exit_code == 1
    assert f"{resource}: timed out after 300 s" in done.output
    assert cluster.log == ["gpu-2 cordoned"]


@pytest.mark.parametrize(
    ("path", "value", "lacks"),
    [
        (("hosts", "workers", 1), {"quarantine": "fan"}, "nvidia.com/gpu"),
        (("network_operator",), {"enabled": False}, "nvidia.com/hostdev"),
    ],
    ids=["in quarantine", "no operator is to offer HCAs"],
)
def test_a_worker_comes_back_without_what_nobody_expects_of_it(
    call: Call, cluster: Api, tmp_path: Path, path: tuple[Any, ...], value: dict[str, Any], lacks: str
) -> None:
    change(tmp_path / "Pulumi.prod.yaml", *path, **value)
    call("drain", "prod", "gpu-2")
    cluster.objects[f"{NODES}/gpu-2"]["status"]["allocatable"][lacks] = "0"
    assert call("uncordon", "prod", "gpu-2").exit_code == 0


def test_a_node_that_somebody_else_has_cordoned_stays_so(call: Call, cluster: Api) -> None:
    cluster.objects[f"{NODES}/gpu-2"]["spec"]["unschedulable"] = True
    call("drain", "prod", "gpu-2")
    done = call("uncordon", "prod", "gpu-2")
    assert (done.exit_code, cluster.objects[f"{NODES}/gpu-2"]["spec"]["unschedulable"]) == (1, True)
    said = " ".join(done.output.split())
    assert "stays cordoned for another reason. Fix: see by whom: busbar verify prod" in said


def test_a_cordon_of_a_quarantine_has_its_end_as_the_fix(call: Call, cluster: Api, tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.prod.yaml"
    change(file, "pools", "h100", quarantine_cordon=True)
    change(file, "hosts", "workers", 1, quarantine="fan")
    note = Note("fan", cordoned=True).text
    cluster.objects[f"{NODES}/gpu-2"]["spec"]["unschedulable"] = True
    cluster.objects[f"{NODES}/gpu-2"]["metadata"].setdefault("annotations", {})[QUARANTINE] = note
    call("drain", "prod", "gpu-2")
    said = " ".join(call("uncordon", "prod", "gpu-2").output.split())
    assert "Fix: end its quarantine in Pulumi.prod.yaml, then: busbar up prod" in said


@pytest.mark.parametrize("command", ["drain", "uncordon"])
@pytest.mark.parametrize("host", ["gpu-11", "server-1", "lb-1"])
def test_what_is_not_a_worker_is_refused(call: Call, cluster: Api, command: str, host: str) -> None:
    done = call(command, "prod", host)
    assert done.exit_code == USAGE
    assert f"error: {host} is not a worker of Pulumi.prod.yaml" in done.output
    assert cluster.log == []


def test_status_names_drained_workers_and_a_silent_cluster(call: Call, cluster: Api) -> None:
    assert (report.drained_lines("kubeconfig"), cluster.timeout_seconds) == ([], 5)
    call("drain", "prod", "gpu-2", "--reason", "fan")
    [line] = report.drained_lines("kubeconfig")
    assert line.strip().startswith("drained  gpu-2: fan (by anna@ops, since 20")
    assert line.endswith("when its repair is done: busbar uncordon prod gpu-2")
    cluster.failures = [unreachable()]
    assert report.drained_lines("kubeconfig") == ["       drained  unknown: GET /: connection refused"]


@pytest.mark.parametrize("output", ["s3cret", None, {}])
def test_status_of_a_project_without_a_cluster_says_nothing_of_nodes(output: object) -> None:
    assert report.drained_lines(output) == []
