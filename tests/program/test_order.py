"""The order in which resources are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.preflight import facts
from tests.program import harness
from tests.program.answers import healthy
from tests.program.harness import COMMAND, RELEASE, Run, run_program
from tests.support.clusters import site


@pytest.fixture(scope="module")
def run() -> Run:
    """The largest graph in kind: two load balancers, three servers, two pools."""
    cluster = site(load_balancers=2, servers=3, workers={"a": 2, "b": 1})
    done = run_program(cluster, healthy(cluster))
    assert done.error is None
    return done


LAST = "busbar-control-plane@server-5"


@pytest.fixture
def upgraded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Run the program for five servers; the arguments are the names of those whose Node is in the cluster."""

    def perform(*found: str) -> Run:
        names = frozenset(found)
        monkeypatch.setattr(harness, "ask_nodes", lambda *_, **__: batches.Nodes(names=names, ready=names))
        cluster = site(servers=5, workers={"a": 1})
        done = run_program(cluster, healthy(cluster))
        assert done.error is None
        return done

    return perform


def waits(run: Run, later: str, earlier: str) -> bool:
    return run.waits_for(run.named(later), run.named(earlier))


def test_no_host_is_changed_before_preflight_has_passed_on_all_of_them(run: Run) -> None:
    commands = run.of_type(COMMAND)
    assert len(commands) == 11
    assert [c.name for c in commands if not run.waits_for(c, run.named("busbar-preflight-hosts"))] == []


def test_hosts_are_prepared_after_preflight_and_nothing_waits_for_it(run: Run) -> None:
    prepared = run.named("busbar-prepare")
    assert run.waits_for(prepared, run.named("busbar-preflight-hosts"))
    assert [each.name for each in run.resources.values() if run.waits_for(each, prepared)] == []


def test_servers_come_up_one_at_a_time_in_their_order(run: Run) -> None:
    assert waits(run, "busbar-control-plane@server-2", "busbar-control-plane@server-1")
    assert waits(run, "busbar-control-plane@server-3", "busbar-control-plane@server-2")


def test_the_kubeconfig_is_read_as_soon_as_server_1_is_up(run: Run) -> None:
    assert run.named("busbar-control-plane-kubeconfig").inputs["connection"]["host"] == "192.0.2.11"
    assert waits(run, "busbar-control-plane-kubeconfig", "busbar-control-plane@server-1")
    assert not waits(run, "busbar-control-plane-kubeconfig", "busbar-control-plane@server-2")


def test_the_cluster_learns_its_hosts_from_server_1_once_that_is_up(run: Run) -> None:
    assert run.named("busbar-control-plane-nodes").inputs["connection"]["host"] == "192.0.2.11"
    assert waits(run, "busbar-control-plane-nodes", "busbar-control-plane@server-1")
    assert not waits(run, "busbar-control-plane-nodes", "busbar-control-plane@server-2")


def test_load_balancers_are_installed_while_servers_join_and_one_at_a_time(run: Run) -> None:
    assert waits(run, "busbar-load-balancer@lb-1", "busbar-control-plane@server-1")
    assert not waits(run, "busbar-load-balancer@lb-1", "busbar-control-plane@server-2")
    assert waits(run, "busbar-load-balancer@lb-2", "busbar-load-balancer@lb-1")
    assert waits(run, "busbar-load-balancer-removal@lb-2", "busbar-load-balancer-removal@lb-1"), (
        "removed one at a time, too"
    )


def test_workers_join_through_the_load_balancers_and_not_before(run: Run) -> None:
    assert all(
        waits(run, worker, f"busbar-load-balancer@{balancer}")
        for worker in ("busbar-worker@gpu-1", "busbar-worker@gpu-2", "busbar-worker@gpu-3")
        for balancer in ("lb-1", "lb-2")
    )


@pytest.mark.parametrize("later", ["busbar-worker@gpu-1", "busbar-gpu-operator-release"])
def test_an_upgrade_changes_every_server_before_workers_and_charts(
    upgraded: Callable[..., Run], later: str
) -> None:
    assert waits(upgraded("server-1", "server-2", "server-3", "server-4", "server-5"), later, LAST)


@pytest.mark.parametrize("later", ["busbar-worker@gpu-1", "busbar-gpu-operator-release"])
def test_a_server_that_is_added_holds_up_neither_workers_nor_charts(
    upgraded: Callable[..., Run], later: str
) -> None:
    run = upgraded("server-1", "server-2", "server-3", "server-4")
    assert waits(run, later, "busbar-control-plane@server-4")
    assert not waits(run, later, LAST)


def test_workers_of_a_cluster_that_does_not_answer_wait_for_every_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = site(servers=3, workers={"a": 2})

    def silent(*_: object, **__: object) -> batches.Nodes:
        raise ApiError("GET /api/v1/nodes", None, "cannot be reached")

    monkeypatch.setattr(harness, "ask_nodes", silent)
    run = run_program(cluster, healthy(cluster))
    assert run.error is None
    assert waits(run, "busbar-worker@gpu-1", "busbar-control-plane@server-3")


def test_workers_of_a_new_cluster_join_while_the_other_servers_do(run: Run) -> None:
    assert waits(run, "busbar-worker@gpu-1", "busbar-control-plane@server-1")
    assert not waits(run, "busbar-worker@gpu-1", "busbar-control-plane@server-2")


def test_hosts_join_after_the_nodes_of_replaced_machines_were_deleted(run: Run) -> None:
    assert waits(run, "busbar-control-plane@server-2", "busbar-control-plane-nodes")
    assert waits(run, "busbar-worker@gpu-1", "busbar-control-plane-nodes")


def test_taints_are_set_through_the_load_balancers_and_wait_for_no_worker(run: Run) -> None:
    for step in ("busbar-control-plane-nodes", "busbar-load-balancer@lb-1", "busbar-load-balancer@lb-2"):
        assert waits(run, "busbar-control-plane-taints", step)
    assert not waits(run, "busbar-control-plane-taints", "busbar-worker@gpu-1")
    assert waits(run, "busbar-nccl-a-job", "busbar-control-plane-taints")


def test_workers_do_not_wait_for_one_another(run: Run) -> None:
    assert not waits(run, "busbar-worker@gpu-2", "busbar-worker@gpu-1")
    assert not waits(run, "busbar-worker@gpu-3", "busbar-worker@gpu-1")


def test_a_worker_that_preflight_did_not_reach_changes_after_those_that_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = site(servers=1, workers={"a": 3})
    names = frozenset(["gpu-1", "gpu-2", "gpu-3"])
    monkeypatch.setattr(harness, "ask_nodes", lambda *_, **__: batches.Nodes(names=names, ready=names))

    def without_gpu_1(args: Any) -> Any:
        answer = dict(healthy(cluster)(args))
        if args.name == "busbar-preflight-hosts":
            records = facts.read(answer["stdout"])
            answer["stdout"] = facts.pack({**records, "gpu-1": replace(records["gpu-1"], fingerprint="")})
        return answer

    run = run_program(cluster, without_gpu_1)
    assert run.error is None
    begun = [each.name for each in run.of_type(COMMAND) if each.name.startswith("busbar-worker@")]
    assert begun == ["busbar-worker@gpu-2", "busbar-worker@gpu-3", "busbar-worker@gpu-1"]


def test_operators_are_installed_when_every_worker_of_every_pool_has_joined(run: Run) -> None:
    assert [
        (release.name, worker)
        for release in run.of_type(RELEASE)
        for worker in ("busbar-worker@gpu-1", "busbar-worker@gpu-2", "busbar-worker@gpu-3")
        if not waits(run, release.name, worker)
    ] == []


def test_operators_of_a_new_cluster_wait_for_a_majority_of_its_servers() -> None:
    cluster = site(servers=5, workers={"a": 1})
    run = run_program(cluster, healthy(cluster))
    assert run.error is None
    assert waits(run, "busbar-gpu-operator-release", "busbar-control-plane@server-3")
    assert not waits(run, "busbar-gpu-operator-release", "busbar-control-plane@server-4")


def test_a_measurement_waits_for_all_servers(run: Run) -> None:
    assert waits(run, "busbar-nccl-a-job", "busbar-control-plane@server-3")


def test_workers_leave_after_those_that_stay_are_installed_and_measured(run: Run) -> None:
    for step in (
        "busbar-worker@gpu-1",
        "busbar-worker@gpu-3",
        "busbar-nccl-a-collect",
        "busbar-nccl-b-collect",
    ):
        assert waits(run, "busbar-control-plane-stale-nodes", step)


def test_the_network_operator_waits_for_the_crds_of_the_gpu_operator_and_not_for_its_gpus(run: Run) -> None:
    assert waits(run, "busbar-network-operator-release", "busbar-gpu-operator-release")
    assert not waits(run, "busbar-network-operator-release", "busbar-gpu-operator-gpus")


def test_gpus_and_hcas_are_waited_for_at_the_same_time_so_that_only_the_slower_operator_counts(
    run: Run,
) -> None:
    assert not waits(run, "busbar-network-operator-hcas", "busbar-gpu-operator-gpus")
    assert not waits(run, "busbar-gpu-operator-gpus", "busbar-network-operator-hcas")
    assert not waits(run, "busbar-mpi-operator-release", "busbar-gpu-operator-gpus")


def test_gpus_are_waited_for_when_their_operator_is_installed(run: Run) -> None:
    assert waits(run, "busbar-gpu-operator-gpus", "busbar-gpu-operator-release")


def test_the_policy_waits_for_the_release_that_brings_its_kind(run: Run) -> None:
    assert waits(run, "busbar-network-operator-policy", "busbar-network-operator-release")
    assert waits(run, "busbar-network-operator-hcas", "busbar-network-operator-policy")


@pytest.mark.parametrize("pool", ["a", "b"])
@pytest.mark.parametrize(
    "earlier", ["busbar-gpu-operator-gpus", "busbar-network-operator-hcas", "busbar-mpi-operator-release"]
)
def test_no_measurement_begins_before_gpus_hcas_and_the_mpi_operator_are_ready(
    run: Run, pool: str, earlier: str
) -> None:
    assert waits(run, f"busbar-nccl-{pool}-job", earlier)


@pytest.mark.parametrize(
    ("pool", "workers"),
    [("a", ["busbar-worker@gpu-1", "busbar-worker@gpu-2"]), ("b", ["busbar-worker@gpu-3"])],
)
def test_the_image_of_a_measurement_is_pulled_once_the_workers_of_its_pool_have_joined(
    run: Run, pool: str, workers: list[str]
) -> None:
    for earlier in (*workers, "busbar-nccl-namespace"):
        assert waits(run, f"busbar-nccl-{pool}-image", earlier)


def test_the_image_of_a_measurement_is_pulled_while_operators_other_pools_and_servers_install(
    run: Run,
) -> None:
    ahead = [r.name for r in run.custom if run.waits_for(run.named("busbar-nccl-a-image"), r)]
    others = (
        "busbar-gpu-operator",
        "busbar-network-operator",
        "busbar-mpi-operator",
        "busbar-worker@gpu-3",
        "busbar-control-plane@server-3",
    )
    assert [name for name in ahead if name.startswith(others)] == []


def test_nothing_waits_for_the_image_of_a_measurement(run: Run) -> None:
    pulls = [run.named(f"busbar-nccl-{pool}-image") for pool in ("a", "b")]
    assert [r.name for r in run.resources.values() for pull in pulls if run.waits_for(r, pull)] == []


def test_pools_are_measured_one_after_the_other(run: Run) -> None:
    assert waits(run, "busbar-nccl-b-job", "busbar-nccl-a-collect")


def test_the_log_is_collected_once_its_job_exists(run: Run) -> None:
    assert waits(run, "busbar-nccl-a-collect", "busbar-nccl-a-job")


def test_objects_on_the_cluster_wait_for_an_api_that_answers(run: Run) -> None:
    assert waits(run, "busbar-kubernetes", "busbar-load-balancer@lb-2")
    assert waits(run, "busbar-kubernetes", "busbar-control-plane@server-2")
    assert waits(run, "busbar-kubernetes", "busbar-control-plane-kubeconfig")
    assert not waits(run, "busbar-kubernetes", "busbar-control-plane-teardown"), (
        "it only acts when all is destroyed"
    )


def test_a_single_server_is_followed_by_the_load_balancer() -> None:
    cluster = site(servers=1)
    run = run_program(cluster, healthy(cluster))
    assert run.error is None
    assert [c.name for c in run.of_type(COMMAND) if c.name.startswith("busbar-control-plane@server")] == [
        "busbar-control-plane@server-1"
    ]
    assert waits(run, "busbar-load-balancer@lb-1", "busbar-control-plane@server-1")


def test_the_nfs_server_outlives_the_workers_that_mount_from_it_and_does_not_hold_up_their_start() -> None:
    cluster = site(servers=1, workers={"a": 1}, nfs_server={"host": "lb-1", "folder": "/srv/busbar"})
    done = run_program(cluster, healthy(cluster))
    assert done.error is None
    server, removal = "busbar-nfs-server@lb-1", "busbar-nfs-server-removal@lb-1"
    assert waits(done, "busbar-worker@gpu-1", removal), "so that a destroy removes the worker first"
    assert waits(done, server, removal)
    assert not waits(done, "busbar-worker@gpu-1", server)
    assert done.outputs["nfs_server"] == {"address": "192.0.2.1", "export": "/srv/busbar"}


def test_without_an_nfs_server_none_is_made(run: Run) -> None:
    assert [each.name for each in run.custom if each.name.startswith("nfs-server")] == []
