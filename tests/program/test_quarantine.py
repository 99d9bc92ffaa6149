"""What a quarantine changes in the program: jobs stay away from the worker, and nothing on it is touched."""

import json
from typing import Any

from busbar.outputs import ClusterOutputs
from tests.program.answers import healthy, performed
from tests.program.harness import Run, run_program
from tests.support.clusters import all_operators, site

REASON = "rail 3 slow, run 7f2a"


def with_gpu_2(reason: str | None) -> Run:
    nfs = {"host": "lb-1", "folder": "/srv/busbar"}
    cluster: dict[str, Any] = site(workers={"h100": 3}, nfs_server=nfs, **all_operators(enabled=True))
    if reason:
        cluster["hosts"]["workers"][1]["quarantine"] = reason
    return performed(cluster)


def test_its_node_gets_the_taint_and_the_reason_and_no_host_is_touched() -> None:
    before, after = with_gpu_2(None), with_gpu_2(REASON)
    asked = after.request("busbar-control-plane-taints")
    assert asked["taints"] == {"gpu-1": [], "gpu-2": ["busbar/quarantine=true:NoSchedule"], "gpu-3": []}
    assert asked["quarantine"] == {"gpu-2": REASON}
    same = ("worker@gpu-2", "worker-removal@gpu-2", "control-plane@server-1", "control-plane-nodes")
    for name in (*same, "nfs-server@lb-1", "gpu-operator", "network-operator"):
        assert before.named(f"busbar-{name}").inputs == after.named(f"busbar-{name}").inputs


def test_its_node_is_cordoned_too_where_its_pool_says_so() -> None:
    cluster: dict[str, Any] = site(workers={"h100": 2})
    cluster["pools"]["h100"]["quarantine_cordon"] = True
    cluster["hosts"]["workers"][1]["quarantine"] = REASON
    run = run_program(cluster, healthy(cluster))
    assert run.request("busbar-control-plane-taints")["cordon"] == ["gpu-2"]


def test_it_is_left_out_of_measurements_waits_and_the_pools_of_the_outputs() -> None:
    run = with_gpu_2(REASON)
    [job] = [each for each in run.custom if each.type.endswith(":MPIJob")]
    assert "gpu-2" not in json.dumps(job.inputs) and "gpu-3" in json.dumps(job.inputs)
    for wait in ("busbar-gpu-operator-gpus", "busbar-network-operator-hcas"):
        assert set(run.request(wait)["nodes"]) == {"gpu-1", "gpu-3"}
    outputs = ClusterOutputs.from_dict(run.outputs)
    assert outputs.pools["h100"].workers == ("gpu-1", "gpu-3")
    assert "gpu-2" in {node.name for node in outputs.nodes}, "it is still a host of the cluster"


def test_preflight_is_told_that_its_hardware_may_be_broken() -> None:
    assert with_gpu_2(REASON).request("busbar-preflight-hosts")["quarantined"] == ["gpu-2"]
    assert with_gpu_2(None).request("busbar-preflight-hosts")["quarantined"] == []
