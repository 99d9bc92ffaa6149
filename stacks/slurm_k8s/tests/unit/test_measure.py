"""`busbar measure` on Slurm in pods: the same job as the cluster's, asked on a server and read in a pod."""

import asyncio
import base64
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from busbar.config import load
from busbar.exits import Misuse, NoVerdict
from busbar.hosts.inventory import Host, Inventory
from busbar.hosts.remote import ScriptError, UnreachableError
from busbar.outputs.build import build_measured
from busbar.outputs.contract import read_result
from stacks.slurm_k8s.package import operations
from stacks.slurm_k8s.package.operations import InPods
from stacks.slurm_k8s.package.outputs import not_measured
from stacks.slurm_k8s.tests.support import configured, slurm
from tests.support.clusters import site
from tests.support.kube_cluster import Clock, Cluster
from tests.unit.collect import launcher_log

SITE = load(site())
SERVERS = Inventory.of(SITE).servers
ON = {f"gpu-{n}": f"h100-{n - 1}" for n in (1, 2)}
POD = "/api/v1/namespaces/slurm/pods/slurm-worker-h100-0"


class Answering:
    """Hosts that answer, without those that are `down`."""

    def __init__(self, *down: str) -> None:
        self.down, self.asked = down, list[tuple[str, Any]]()

    async def run(self, host: Host, script: str, values: Any, *_: Any, seconds: int) -> dict[str, Any]:
        self.asked.append((host.name, values))
        if host.name in self.down:
            raise UnreachableError(host, OSError("no route"))
        return {"script": script}


def reach(hosts: Answering, runner: asyncio.Runner, objects: dict[str, Any] | None = None) -> InPods:
    return InPods(runner, hosts, SERVERS, Cluster(objects or {}), "slurm")  # type: ignore[arg-type]


def test_commands_of_slurm_run_in_the_login_pod_and_the_log_is_read_in_the_pod_of_its_node() -> None:
    hosts = Answering()
    with asyncio.Runner() as runner:
        made = reach(hosts, runner)
        made.ask("submit", {"script": "x"}, job_name="n")
        made.ask("read", node="h100-1", offset="0")
    (server, submit), (_, read) = hosts.asked
    assert server == "server-1"
    assert submit["WITHIN"] == "k3s kubectl exec -i -n slurm deploy/slurm-login-slinky -c login --"
    assert (submit["VERB"], submit["JOB_NAME"]) == ("submit", "n")
    assert read["WITHIN"] == "k3s kubectl exec -i -n slurm slurm-worker-h100-1 -c slurmd --"


def test_a_server_that_is_not_responding_is_replaced_by_the_next_one_while_there_is_one() -> None:
    hosts, down = Answering("server-1"), Answering(*(server.name for server in SERVERS))
    with asyncio.Runner() as runner:
        made = reach(hosts, runner)
        made.ask("nodes")
        made.ask("nodes")
        with pytest.raises(UnreachableError, match="server-3"):
            reach(down, runner).ask("nodes")
    assert [name for name, _ in hosts.asked] == ["server-1", "server-2", "server-2"]


@pytest.mark.parametrize(("status", "is_gone"), [("True", False), ("False", True), (None, True)])
def test_a_node_without_a_ready_pod_is_gone(status: str | None, is_gone: bool) -> None:
    pod = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    with asyncio.Runner() as runner:
        found = reach(Answering(), runner, {POD: pod} if status else None).gone(["h100-0"])
    assert bool(found) is is_gone


def test_a_pool_is_measured_as_the_cluster_measures_it_on_its_nodes_of_slurm() -> None:
    spec = operations.measure_spec(slurm(), SITE, "h100", ["gpu-1", "gpu-2"], ON, None, Path("x"))
    assert (spec.partition, list(spec.hostnames)) == ("h100", ["h100-0", "h100-1"])
    assert spec.deadline_seconds == SITE.validation.deadline_seconds
    assert spec.expectation["rails"] == 8
    assert "#SBATCH --gpus-per-node=8" in spec.script
    assert "--container-image" not in spec.script.partition("srun --help")[0]
    with pytest.raises(Misuse, match="--idle is for K3s"):
        operations.measure(Path("Pulumi.dev.yaml"), idle=True)


def test_an_image_is_started_by_pyxis_and_minutes_shorten_the_job() -> None:
    given = slurm(container_image="nccl.sqsh")
    spec = operations.measure_spec(given, SITE, "h100", ["gpu-1"], ON, 2, Path("x"))
    assert "--container-image=nccl.sqsh" in spec.script
    assert spec.deadline_seconds == 120


def test_workers_that_were_not_measured_are_named_and_a_pool_without_nodes_has_no_verdict() -> None:
    result = {"nodes_measured": ["h100-0"]}
    [reason] = not_measured(["gpu-1", "gpu-2", "gpu-9"], ON, result)
    assert reason == "1 of 3 workers were measured; not: gpu-2, gpu-9"
    assert not_measured(["gpu-1"], ON, result) == not_measured(["gpu-9"], ON, {}) == []
    with pytest.raises(NoVerdict, match="no worker of pool h100 is a node of Slurm: gpu-9"):
        operations.measure_spec(slurm(), SITE, "h100", ["gpu-9"], ON, None, Path("x"))


def test_an_update_without_nodes_that_are_ready_measures_nothing() -> None:
    spec = operations.UpdateSpec(slurm={}, pool="h100", nodes={}, folder="x", run=1, measured_as="x")
    found = operations.measure_update(Cluster(), spec, Clock(), print)  # type: ignore[arg-type]
    assert read_result(json.dumps(found))["reasons"] == ["no node of the pool is ready in Slurm"]


LOG = launcher_log.text().encode()
# As the ranks of the log call their hosts.
OF_LOG = {f"gpu-{number + 1}": f"nccl-worker-{number}" for number in range(2)}
VALIDATION = {
    "transport": "socket", "min_bytes": "1M", "max_bytes": "4M", "iterations": 20, "deadline_seconds": 300
}  # fmt: skip


class Pods:
    """Slurm in pods that runs one job. `lost`: what is said of the batch host when its log is read."""

    log_folder = "/tmp"

    def __init__(self, lost: str = "") -> None:
        self.lost = lost

    def ask(self, verb: str, *_: Any, node: str | None = None, **values: str) -> dict[str, Any]:
        if verb == "nodes":
            return {"nodes": {name: {"state": "idle", "reason": ""} for name in OF_LOG.values()}}
        if verb == "status":
            ended = {"known": True, "state": "COMPLETED", "reason": "None", "exit_code": "0:0"}
            of_job = {"batch_host": "nccl-worker-0", "restarts": "0", "submitted": "2026-01-01T00:00:00Z"}
            return {**ended, **of_job, "nodes": {}}
        if verb == "read" and self.lost:
            raise ScriptError(self.lost, "server-1")
        data = base64.b64encode(LOG[int(values.get("offset", 0)) :]).decode()
        return {"job_id": "7"} if verb != "read" else {"free_bytes": 10**9, "data": data}

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(nodes, self.lost) if self.lost else {}


@pytest.mark.parametrize(
    ("lost", "expected", "verdict"),
    [("", 2.0, "pass"), ("", 1000.0, "fail"), ("has no ready pod slurm-worker-h100-0", 2.0, "unknown")],
)
def test_an_update_judges_the_log_of_its_job_and_has_no_verdict_without_it(
    lost: str, expected: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = {"gpus": 1, "rails": 1, "rate_gbps": 400}
    cluster = load(site(pools={"h100": pool}, validation={**VALIDATION, "expected_busbw_gbps": expected}))
    monkeypatch.setattr(operations, "_cluster_of", lambda *_: (None, cluster))
    monkeypatch.setattr(operations, "in_pods", lambda *_: nullcontext(Pods(lost)))
    about = {"slurm": configured(), "folder": str(tmp_path / "h100"), "run": 1, "measured_as": ""}
    spec = operations.UpdateSpec.model_validate({**about, "pool": "h100", "nodes": OF_LOG})
    found = read_result(json.dumps(operations.measure_update(Cluster(), spec, Clock(), print)))  # type: ignore[arg-type]
    assert found["verdict"] == verdict, found
    assert bool(found.get("reasons")) is (verdict != "pass")
    assert build_measured("site", {"h100": found})["nccl_passed"] is (verdict == "pass")
