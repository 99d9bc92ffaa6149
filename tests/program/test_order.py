"""The order in which resources are made."""

import re

import pytest
import yaml

from busbar.kube import batches
from busbar.kube.client import ApiError
from tests.program import harness
from tests.program.answers import performed
from tests.program.harness import COMMAND, Run
from tests.support.clusters import site


@pytest.fixture(scope="module")
def run() -> Run:
    """The largest graph in kind: two load balancers, three servers, an NFS server, two pools."""
    nfs = {"host": "lb-1", "folder": "/srv/busbar"}
    return performed(site(load_balancers=2, servers=3, workers={"a": 2, "b": 1}, nfs_server=nfs))


def waits(run: Run, later: str, earlier: str) -> bool:
    return run.waits_for(run.named(later), run.named(earlier))


def test_no_host_is_changed_before_preflight_has_passed_on_all_of_them(run: Run) -> None:
    commands = run.of_type(COMMAND)
    assert len(commands) == 13
    assert [c.name for c in commands if not run.waits_for(c, run.named("busbar-preflight-hosts"))] == []


def test_hosts_are_prepared_after_preflight_and_nothing_waits_for_it(run: Run) -> None:
    prepared = run.named("busbar-prepare")
    assert run.waits_for(prepared, run.named("busbar-preflight-hosts"))
    assert [each.name for each in run.resources.values() if run.waits_for(each, prepared)] == []


# Step -> what it comes after, and what it does not wait for. Steps are named without "busbar-", and
# server-2, lb-1 and gpu-3 stand for the installation of that host.
ORDER = yaml.safe_load("""
servers come up one at a time in their order:
- [server-2, [server-1], []]
- [server-3, [server-2], []]
what the cluster is told and tells is asked of server 1 as soon as it is up:
- [control-plane-kubeconfig, [server-1], [server-2]]
- [control-plane-nodes, [server-1], [server-2]]
load balancers are installed while servers join, one at a time, and are removed one at a time:
- [lb-1, [server-1], [server-2]]
- [lb-2, [lb-1], []]
- [load-balancer-removal@lb-2, [load-balancer-removal@lb-1], []]
workers join through the load balancers, while other servers and workers do:
- [gpu-1, [lb-1, lb-2, server-1], [server-2]]
- [gpu-2, [lb-1, lb-2], [gpu-1]]
- [gpu-3, [lb-1, lb-2], [gpu-1]]
hosts join after the nodes of replaced machines were deleted:
- [server-2, [control-plane-nodes], []]
- [gpu-1, [control-plane-nodes], []]
taints are set through the load balancers and wait for no worker:
- [control-plane-taints, [control-plane-nodes, lb-1, lb-2], [gpu-1]]
operators are installed when every worker of every pool has joined:
- [gpu-operator-release, [gpu-1, gpu-2, gpu-3], []]
- [network-operator-release, [gpu-1, gpu-2, gpu-3], []]
- [mpi-operator-release, [gpu-1, gpu-2, gpu-3], []]
the Network Operator waits for the CRDs of the GPU Operator and not for its GPUs:
- [network-operator-release, [gpu-operator-release], [gpu-operator-gpus]]
GPUs and HCAs are waited for at the same time, so that only the slower operator counts:
- [network-operator-hcas, [network-operator-policy], [gpu-operator-gpus]]
- [gpu-operator-gpus, [gpu-operator-release], [network-operator-hcas]]
- [mpi-operator-release, [], [gpu-operator-gpus]]
the policy waits for the release that brings its kind:
- [network-operator-policy, [network-operator-release], []]
pools are measured one after the other, when servers, taints, devices and the MPI Operator are ready:
- - nccl-a-job
  - &ready [server-3, control-plane-taints, gpu-operator-gpus, network-operator-hcas, mpi-operator-release]
  - []
- [nccl-b-job, *ready, []]
- [nccl-a-collect, [nccl-a-job], []]
- [nccl-b-job, [nccl-a-collect], []]
the image of a measurement is pulled once the workers of its pool have joined:
- [nccl-a-image, [nccl-namespace, gpu-1, gpu-2], []]
- [nccl-b-image, [nccl-namespace, gpu-3], []]
workers leave after those that stay are installed and measured:
- [control-plane-stale-nodes, [gpu-1, gpu-3, nccl-a-collect, nccl-b-collect], []]
objects on the cluster wait for an API that answers, and not for what only acts when all is destroyed:
- [kubernetes, [lb-2, server-2, control-plane-kubeconfig], [control-plane-teardown]]
""")
HOSTS = {"lb": "load-balancer@", "server": "control-plane@", "gpu": "worker@"}


@pytest.mark.parametrize("rule", ORDER)
def test_a_step_waits_for_what_it_needs_and_for_nothing_else(run: Run, rule: str) -> None:
    def full(step: str) -> str:
        host = re.fullmatch(r"(lb|server|gpu)-\d", step)
        return f"busbar-{HOSTS[host[1]] if host else ''}{step}"

    for step, after, not_after in ORDER[rule]:
        assert [each for each in after if not waits(run, full(step), full(each))] == [], step
        assert [each for each in not_after if waits(run, full(step), full(each))] == [], step


def test_server_1_is_asked_for_the_kubeconfig_and_told_the_hosts(run: Run) -> None:
    for step in ("kubeconfig", "nodes"):
        assert run.named(f"busbar-control-plane-{step}").inputs["connection"]["host"] == "192.0.2.11"


@pytest.mark.parametrize("later", ["busbar-worker@gpu-1", "busbar-gpu-operator-release"])
@pytest.mark.parametrize(
    ("found", "waits_for_the_last"), [(5, True), (4, False)], ids=["an upgrade", "a server is added"]
)
def test_workers_and_charts_wait_for_every_server_that_is_in_the_cluster(
    monkeypatch: pytest.MonkeyPatch, later: str, found: int, waits_for_the_last: bool
) -> None:
    names = frozenset(f"server-{number + 1}" for number in range(found))
    monkeypatch.setattr(harness, "ask_nodes", lambda *_, **__: batches.Nodes(names=names, ready=names))
    done = performed(site(servers=5, workers={"a": 1}))
    assert waits(done, later, "busbar-control-plane@server-4")
    assert waits(done, later, "busbar-control-plane@server-5") is waits_for_the_last


def test_workers_of_a_silent_cluster_wait_for_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> batches.Nodes:
        raise ApiError("GET /api/v1/nodes", None, "cannot be reached")

    monkeypatch.setattr(harness, "ask_nodes", silent)
    run = performed(site(servers=3, workers={"a": 2}))
    assert waits(run, "busbar-worker@gpu-1", "busbar-control-plane@server-3")


def test_operators_of_a_new_cluster_wait_for_a_majority_of_its_servers() -> None:
    run = performed(site(servers=5, workers={"a": 1}))
    assert waits(run, "busbar-gpu-operator-release", "busbar-control-plane@server-3")
    assert not waits(run, "busbar-gpu-operator-release", "busbar-control-plane@server-4")


def test_the_image_of_a_measurement_is_pulled_while_all_else_installs_and_nothing_waits(run: Run) -> None:
    ahead = [r.name for r in run.custom if run.waits_for(run.named("busbar-nccl-a-image"), r)]
    others = ("gpu-operator", "network-operator", "mpi-operator", "worker@gpu-3", "control-plane@server-3")
    assert [name for name in ahead if name.removeprefix("busbar-").startswith(others)] == []
    pulls = [run.named(f"busbar-nccl-{pool}-image") for pool in ("a", "b")]
    assert [r.name for r in run.resources.values() for pull in pulls if run.waits_for(r, pull)] == []


def test_the_nfs_server_outlives_the_workers_that_mount_from_it_and_does_not_hold_up_their_start() -> None:
    done = performed(site(servers=1, workers={"a": 1}, nfs_server={"host": "lb-1", "folder": "/srv/busbar"}))
    server, removal = "busbar-nfs-server@lb-1", "busbar-nfs-server-removal@lb-1"
    assert waits(done, "busbar-worker@gpu-1", removal), "so that a destroy removes the worker first"
    assert waits(done, server, removal)
    assert not waits(done, "busbar-worker@gpu-1", server)
    drained, ends = "busbar-control-plane-stale-nodes", "busbar-nfs-server-exports@lb-1"
    assert waits(done, ends, drained) and waits(done, ends, server) and not waits(done, drained, ends)
    assert done.outputs["nfs_server"] == {"address": "192.0.2.1", "export": "/srv/busbar"}
