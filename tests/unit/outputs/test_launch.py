"""What a consumer learns of a pool, to start a job there as the validation did."""

from typing import Any

import pytest

from busbar.config import load
from busbar.outputs import ClusterOutputs, ContractError, NfsExport, PoolLaunch, build_outputs
from busbar.outputs.contract import summarize
from tests.support.clusters import H100_POOL, site
from tests.support.verdicts import passing

TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
RAILS = [f"mlx5_{i}" for i in range(8)]
RENAMED = [f"mlx5_{i}" for i in range(1, 8)] + ["mlx5_8:2"]


def exported(pool: Any = None, facts: Any = None, **sections: Any) -> dict[str, Any]:
    cluster = {**site(**sections), "pools": {"h100": {**H100_POOL, **(pool or {})}}}
    results = {"h100": summarize(passing())}
    return build_outputs(load(cluster), versions={}, facts=facts or {}, results=results)


def launch(pool: dict[str, Any] | None = None, **sections: Any) -> PoolLaunch:
    return ClusterOutputs.from_dict(exported(pool, **sections)).pools["h100"]


A100 = {"rate_gbps": 200, "gpu_model": "A100"}
EFA = {"nvidia.com/hostdev": "32", "hugepages-2Mi": "5120Mi"}
MACHINES = {"gpu-1": {"machine": "one"}, "server-1": {"machine": "two"}}
ROCE = {"gpu-1": {"roce": ["PFC on"]}, "gpu-2": {"roce": ["PFC off", "PFC on"]}}
GDRCOPY = {"profile": "a100-ib-8x200-gdrcopy", "memory": "900Gi", "shm_size": "8Gi"}


@pytest.mark.parametrize(
    ("pool", "sections", "carried"),
    [
        ({}, {}, {"workers": ["gpu-1", "gpu-2"], "gpus": 8, "rails": 8, "rate_gbps": 400}),
        ({"taints": [TAINT]}, {}, {"taints": [TAINT], "runtime_class": "nvidia", "roce": None}),
        (A100, {"validation": GDRCOPY}, {**A100, **GDRCOPY, "host_paths": {"/dev/gdrdrv": "CharDevice"}}),
        ({"rails": 32, "rate_gbps": 100}, {"validation": {"profile": "efa"}}, {"resources": EFA}),
        ({}, {"facts": MACHINES}, {"machines": {"gpu-1": "one"}}),
        ({}, {"facts": {"gpu-2": {"nfs_client": False}}}, {"without_nfs": ["gpu-2"]}),
        ({}, {"facts": ROCE}, {"roce": ["PFC off", "PFC on"]}),
    ],
)
def test_a_pool_carries_what_a_job_on_its_workers_must_know(pool: Any, sections: Any, carried: Any) -> None:
    found = launch(pool, **sections).model_dump(mode="json")
    assert {key: found[key] for key in carried} == carried


def test_a_pool_carries_the_nccl_settings_of_its_profile_and_none_of_the_validation_itself() -> None:
    env = launch(validation={"profile": "h100-ib-8x400", "env": {"NCCL_IB_TC": "106"}}).env
    assert env["NCCL_IB_QPS_PER_CONNECTION"] == "2"
    assert env["NCCL_IB_TC"] == "106"
    own = {*("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_RUNTIME_CONNECT"), *("NCCL_TOPO_FILE", "OMPI_MCA_pml")}
    given = launch(validation={"profile": "h100-ib-8x400", "env": dict.fromkeys(own, "INFO")}).env
    assert not own & {*env, *given}


def test_an_algorithm_that_only_all_reduce_has_is_not_handed_on() -> None:
    assert "NCCL_ALGO" in launch(validation={"algorithm": "ring"}).env
    assert "NCCL_ALGO" not in launch(validation={"algorithm": "nvls"}).env


def test_a_pool_names_the_labels_by_which_its_workers_are_near_each_other_the_farthest_first() -> None:
    assert launch().topology is None
    hosts = site()["hosts"]
    place = {"rail_group": "su03", "block": "b1"}
    hosts["workers"] = [{**each, "topology": place} for each in hosts["workers"]]
    assert launch(hosts=hosts).topology == ("fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0")


@pytest.mark.parametrize(
    ("found", "interfaces"),
    [
        ([["ens1", "ens2"], ["ens1", "ens2"]], (("ens1",), ("ens2",))),
        ([["ens1", "ens2"], ["ens2", "ens1"]], (("ens1", "ens2"), ("ens1", "ens2"))),
        ([["ens1", "ens2"], None], None),
        ([["ens1", "ens2"], ["ens1"]], None),
        ([None, None], None),
    ],
    ids=["equal", "mixed", "one not known", "another number", "none"],
)
def test_a_pool_names_the_interfaces_of_its_rails_that_all_workers_have(found: Any, interfaces: Any) -> None:
    facts = {f"gpu-{i}": {"rail_interfaces": names} for i, names in enumerate(found, 1) if names}
    assert launch(facts=facts).interfaces == interfaces


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([RAILS, RAILS], {"gpu-1": tuple(RAILS), "gpu-2": tuple(RAILS)}),
        ([RAILS, RENAMED], {"gpu-1": tuple(RAILS), "gpu-2": tuple(RENAMED)}),
        ([RAILS, None], {"gpu-1": tuple(RAILS)}),
        ([8, RAILS], {"gpu-2": tuple(RAILS)}),
        # A host that did not respond after its quarantine keeps what was found in it.
        ([RAILS[1:], RAILS], {"gpu-2": tuple(RAILS)}),
        ([None, None], None),
    ],
    ids=["equal", "other names", "one not asked", "a number", "too few", "none"],
)
def test_a_pool_names_the_rails_of_each_worker_of_which_all_were_found(found: Any, named: Any) -> None:
    facts = {f"gpu-{i}": {"rails": rails} for i, rails in enumerate(found, 1) if rails}
    assert launch(facts=facts).rail_hcas == named


def test_the_export_of_the_nfs_server_is_an_output() -> None:
    built = exported(nfs_server={"host": "lb-1", "folder": "/srv/busbar"})
    assert ClusterOutputs.from_dict(built).nfs_server == NfsExport(address="192.0.2.1", export="/srv/busbar")
    assert ClusterOutputs.from_dict(exported()).nfs_server is None
    with pytest.raises(ContractError, match=r"^nfs_server: Input should be a valid dictionary .* got '/srv'"):
        ClusterOutputs.from_dict({**exported(), "nfs_server": "/srv"})
