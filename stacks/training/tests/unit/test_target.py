"""Which clusters and pools are refused, and the bandwidth that a run is held against."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import load
from busbar.hosts.inventory import Inventory
from busbar.outputs import ClusterOutputs
from busbar.outputs.contract import launches
from stacks.training.package.collect import CollectSpec, collect_spec
from stacks.training.package.storage import claim_name
from stacks.training.package.target import (
    busbw_at,
    expectation,
    refusals,
    targets,
    warnings,
    with_cluster_export,
)
from stacks.training.tests.support import cluster, curve, training
from tests.support import measured
from tests.support.clusters import site

MIB = 1 << 20
GIB = 1 << 30
FABRIC = {"nodes": 2, "gpu": "H100", "rate_gbps": 400.0, "transport": "gpudirect-rdma"}


def refusal(found: ClusterOutputs, **config: Any) -> str:
    return "\n".join(refusals(found, training(**config)))


def with_curve(measured: dict[str, Any]) -> ClusterOutputs:
    """A cluster that has passed, with other measured sizes."""
    return cluster(nccl={"h100": cluster().nccl["h100"].model_copy(update={"curve": measured})})


def test_a_cluster_that_passed_gives_its_pools_with_their_launch_settings_and_their_curve() -> None:
    found = targets(cluster(curve(B1048576=100.0)), training())
    assert found["h100"].launch.workers == ("gpu-1", "gpu-2")
    assert found["h100"].curve == ((MIB, 100.0),)


def test_a_pool_that_the_cluster_does_not_have_is_refused() -> None:
    assert refusal(cluster(), pools=["b200"]) == (
        "has no pool b200. Fix: list in `pools` only pools of the cluster: h100"
    )


def test_a_pool_without_a_pass_of_its_own_is_refused_whatever_the_headline_says() -> None:
    assert "pool h100 has no result in the output `nccl`, expected pass" in refusal(cluster(nccl={}))
    passed = cluster().nccl["h100"]
    for verdict in ("fail", "unknown"):
        found = cluster(nccl={"h100": passed.model_copy(update={"verdict": verdict})})
        assert f"pool h100 has the verdict {verdict} in the output `nccl`, expected pass" in refusal(found)


def test_a_pool_whose_all_reduce_was_not_measured_is_refused() -> None:
    found = with_curve({"all_gather": [(1 << 30, 300.0)]})
    assert "all_reduce was not measured, and training needs it" in refusal(found)


def test_gradients_below_the_smallest_measured_message_are_refused() -> None:
    text = refusal(cluster(curve(B1048576=100.0)), proof={"gradient_bytes": "512K"})
    assert "the smallest measured all_reduce has 1048576 bytes, the gradients 524288" in text


def test_without_the_proof_no_measured_all_reduce_is_needed() -> None:
    assert targets(with_curve({}), training(proof={"enabled": False}))


def test_the_gradients_are_as_large_as_the_largest_measured_message_up_to_one_gib() -> None:
    found = targets(cluster(curve(B1048576=1.0, B1073741824=2.0, B8589934592=3.0)), training())
    assert found["h100"].gradient_bytes(training().proof) == GIB
    larger = targets(cluster(curve(B2147483648=2.0, B8589934592=3.0)), training())
    assert larger["h100"].gradient_bytes(training().proof) == 2 * GIB


def test_between_two_measured_sizes_the_bandwidth_follows_the_logarithm_of_the_size() -> None:
    measured = ((MIB, 100.0), (4 * MIB, 300.0))
    assert busbw_at(measured, MIB) == 100.0
    assert busbw_at(measured, 2 * MIB) == pytest.approx(200.0)
    assert busbw_at(measured, 64 * MIB) == 300.0


def test_below_the_smallest_measured_size_no_bandwidth_is_known() -> None:
    assert busbw_at(((MIB, 100.0),), MIB - 1) is None
    assert busbw_at((), MIB) is None


def expected(pool: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """What a run must show on a pool of which 1 GiB was measured with 390 GB/s."""
    configured = training(**config)
    read = ClusterOutputs.from_dict(measured.outputs(curve(B1073741824=390.0), pool))
    [target] = targets(read, configured).values()
    return expectation(target, configured).model_dump(mode="json", exclude_defaults=True)


def test_a_run_is_held_against_what_its_pool_has_and_the_configuration_asks_for() -> None:
    proof = {"steps": 31, "gradient_bytes": "2G", "min_loss_drop": 0.4, "min_busbw_fraction": 0.6}
    assert expected(proof=proof, storage={"mode": "path", "path": "/mnt"}) == {
        "nodes": ["gpu-1", "gpu-2"],
        "ranks_per_node": 8,
        "backend": "nccl",
        "device": "H100",
        "steps": 31,
        "gradient_bytes": 2 << 30,
        "min_loss_drop": 0.4,
        "busbw_gbps": 390.0,
        "min_busbw_fraction": 0.6,
        "shared_checkpoint": True,
        "fabric": {**FABRIC, "gpus_per_node": 8, "rails": 8},
    }


def test_fewer_ranks_than_gpus_need_not_use_every_rail_and_gloo_names_no_gpu() -> None:
    few = expected(proof={"ranks_per_node": 4})
    assert few["fabric"] == {**FABRIC, "gpus_per_node": 4, "rails": 0}
    assert (few["ranks_per_node"], "shared_checkpoint" in few) == (4, False)
    assert "device" not in expected(proof={"backend": "gloo"})


def test_a_collector_expects_of_nccl_what_the_program_did() -> None:
    [target] = targets(cluster(curve(B1048576=100.0)), training()).values()
    sent = collect_spec(target, training(), "job", folder="folder").model_dump_json(exclude_none=True)
    assert CollectSpec.model_validate_json(sent).expectation == expectation(target, training())


def test_a_topology_file_that_the_run_does_not_have_is_a_warning() -> None:
    launch = cluster().pools["h100"].model_copy(update={"topology_file": "topo.xml"})
    config = training()
    [warning] = warnings(targets(cluster(pools={"h100": launch}), config), config)
    assert "NCCL topology file topo.xml, which the training run does not have" in warning


def test_the_export_of_the_cluster_takes_the_place_of_a_named_one() -> None:
    asked = training(storage={"mode": "nfs", "nfs": {"from_cluster": True}})
    found = cluster(nfs_server={"address": "10.0.0.9", "export": "/srv/busbar"})
    nfs = with_cluster_export(found, asked).storage.nfs
    assert nfs is not None
    assert (nfs.server, nfs.export) == ("10.0.0.9", "/srv/busbar")
    assert "has no output `nfs_server`" in "".join(refusals(cluster(), asked))
    named = training(storage={"mode": "nfs", "nfs": {"server": "10.0.0.5", "export": "/srv/x"}})
    assert with_cluster_export(found, named) == named


def test_a_claim_has_the_same_name_whether_the_export_is_named_or_the_clusters() -> None:
    asked = training(storage={"mode": "nfs", "nfs": {"from_cluster": True}})
    found = cluster(nfs_server={"address": "10.0.0.9", "export": "/srv/busbar"})
    named = training(storage={"mode": "nfs", "nfs": {"server": "10.0.0.9", "export": "/srv/busbar"}})
    assert claim_name(with_cluster_export(found, asked).storage) == claim_name(named.storage)


def test_workers_without_an_nfs_client_are_named_where_storage_is_nfs() -> None:
    facts = {"gpu-1": {"gpus": 8, "rails": 8}, "gpu-2": {"gpus": 8, "rails": 8, "nfs_client": False}}
    found = cluster(pools=launches(Inventory.of(load(site())), facts))
    mounted = training(storage={"mode": "nfs", "nfs": {"server": "10.0.0.9", "export": "/srv/x"}})
    (warning,) = warnings(targets(found, mounted), mounted)
    assert "preflight found no mount.nfs on gpu-2" in warning
    assert list(warnings(targets(found, training()), training())) == []
