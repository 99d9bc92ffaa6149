"""Which clusters and pools are refused, and the bandwidth that a run is held against."""

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
from stacks.training.tests.support import cluster, curve, target, training
from tests.support.clusters import site

MIB = 1 << 20
GIB = 1 << 30
FABRIC = {"nodes": 2, "gpu": "H100", "rate_gbps": 400.0, "transport": "gpudirect-rdma"}
OF_CLUSTER = {"mode": "nfs", "nfs": {"from_cluster": True}}


def with_curve(measured: dict[str, Any]) -> ClusterOutputs:
    """A cluster that has passed, with other measured sizes."""
    return cluster(nccl={"h100": cluster().nccl["h100"].model_copy(update={"curve": measured})})


def of_verdict(verdict: str) -> ClusterOutputs:
    passed = cluster().nccl["h100"]
    return cluster(nccl={"h100": passed.model_copy(update={"verdict": verdict})})


# A cluster whose headline is a pass, what is configured, and the reason. Without one it can be trained on.
REFUSED: dict[str, tuple[ClusterOutputs, dict[str, Any], str]] = {
    "no such pool": (
        cluster(), {"pools": ["b200"]},
        "has no pool b200. Fix: list in `pools` only pools of the cluster: h100",
    ),
    "not measured": (cluster(nccl={}), {}, "pool h100 has no result in the output `nccl`, expected pass"),
    "fail": (of_verdict("fail"), {}, "pool h100 has the verdict fail in the output `nccl`, expected pass"),
    "unknown": (
        of_verdict("unknown"), {},
        "the verdict unknown in the output `nccl`, expected pass. Fix: raise validation.run there",
    ),
    "no all-reduce": (
        with_curve({"all_gather": [(GIB, 300.0)]}), {}, "all_reduce was not measured, and training needs it",
    ),
    "small gradients": (
        cluster(curve(B1048576=100.0)), {"proof": {"gradient_bytes": "512K"}},
        "the smallest measured all_reduce has 1048576 bytes, the gradients 524288",
    ),
    "no export": (cluster(), {"storage": OF_CLUSTER}, "has no output `nfs_server`"),
    "nothing is trained": (with_curve({}), {"proof": {"enabled": False}}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("found", "config", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_pool_that_cannot_be_trained_on_is_refused_whatever_the_headline_says(
    found: ClusterOutputs, config: dict[str, Any], reason: str
) -> None:
    said = [*refusals(found, training(**config))]
    assert len(said) == bool(reason) and reason in "".join(said), said


def test_the_gradients_are_as_large_as_the_largest_measured_message_up_to_one_gib() -> None:
    found = targets(cluster(curve(B1048576=1.0, B1073741824=2.0, B8589934592=3.0)), training())
    assert found["h100"].gradient_bytes(training().proof) == GIB
    larger = targets(cluster(curve(B2147483648=2.0, B8589934592=3.0)), training())
    assert larger["h100"].gradient_bytes(training().proof) == 2 * GIB


@pytest.mark.parametrize(
    ("size", "busbw"), [(MIB - 1, None), (MIB, 100.0), (2 * MIB, 200.0), (4 * MIB, 300.0), (64 * MIB, 300.0)]
)
def test_between_two_measured_sizes_the_bandwidth_follows_the_logarithm_of_the_size(
    size: int, busbw: float | None
) -> None:
    assert busbw_at(((MIB, 100.0), (4 * MIB, 300.0)), size) == (busbw and pytest.approx(busbw))
    assert busbw_at((), size) is None


def expected(pool: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """What a run must show on a pool of which 1 GiB was measured with 390 GB/s."""
    configured = training(**config)
    found = target(configured, verdict=curve(B1073741824=390.0), pool=pool)
    return expectation(found, configured).model_dump(mode="json", exclude_defaults=True)


def test_a_run_is_held_against_what_its_pool_has_and_the_configuration_asks_for() -> None:
    asked = {"steps": 31, "min_loss_drop": 0.4, "min_busbw_fraction": 0.6}
    found = expected(proof={**asked, "gradient_bytes": "2G"}, storage={"mode": "path", "path": "/mnt"})
    of_pool = {"nodes": ["gpu-1", "gpu-2"], "ranks_per_node": 8, "device": "H100", "busbw_gbps": 390.0}
    of_run = {"backend": "nccl", "gradient_bytes": 2 << 30, "shared_checkpoint": True}
    of_run["machines"] = {name: f"machine-{name}" for name in ("gpu-1", "gpu-2")}
    assert found == {**asked, **of_pool, **of_run, "fabric": {**FABRIC, "gpus_per_node": 8, "rails": 8}}


def test_fewer_ranks_than_gpus_need_not_use_every_rail_and_gloo_names_no_gpu() -> None:
    few = expected(proof={"ranks_per_node": 4})
    assert few["fabric"] == {**FABRIC, "gpus_per_node": 4, "rails": 0}
    assert (few["ranks_per_node"], "shared_checkpoint" in few) == (4, False)
    assert "device" not in expected(proof={"backend": "gloo"})


def test_a_collector_expects_of_nccl_what_the_program_did() -> None:
    found = target(training(), verdict=curve(B1048576=100.0))
    sent = collect_spec(found, training(), "job", folder="folder").model_dump_json(exclude_none=True)
    assert CollectSpec.model_validate_json(sent).expectation == expectation(found, training())


def test_the_export_of_the_cluster_takes_the_place_of_a_named_one_and_leads_to_the_same_claim() -> None:
    found = cluster(nfs_server={"address": "10.0.0.9", "export": "/srv/busbar"})
    given = with_cluster_export(found, training(storage=OF_CLUSTER)).storage
    same, other = (
        training(storage={"mode": "nfs", "nfs": {"server": server, "export": "/srv/busbar"}})
        for server in ("10.0.0.9", "10.0.0.5")
    )
    assert given.nfs is not None and same.storage.nfs is not None
    assert (given.nfs.server, given.nfs.export) == ("10.0.0.9", "/srv/busbar")
    assert claim_name(given) == claim_name(same.storage)
    assert with_cluster_export(found, other) == other


def test_workers_without_an_nfs_client_are_named_where_storage_is_nfs() -> None:
    facts = {"gpu-1": {"gpus": 8, "rails": 8}, "gpu-2": {"gpus": 8, "rails": 8, "nfs_client": False}}
    found = cluster(pools=launches(Inventory.of(load(site())), facts))
    mounted = training(storage={"mode": "nfs", "nfs": {"server": "10.0.0.9", "export": "/srv/x"}})
    (warning,) = warnings(targets(found, mounted), mounted)
    assert "preflight found no mount.nfs on gpu-2" in warning
    assert list(warnings(targets(found, training()), training())) == []
