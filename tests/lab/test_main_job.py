"""The main job, in the order a user lives it: up, look, up again, consume, fail the gate, recover.

What this does not prove: GPUs, InfiniBand and the NVIDIA charts, which the lab stands in for.
"""

import json
import re
from typing import Any

from busbar.outputs import ClusterOutputs
from tests.support.lab import PROJECT, Lab, gpu_holder

CONSUMER = PROJECT / "examples" / "consumer"


def _nodes(lab: Lab) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["name"]: node for node in json.loads(lab.kubectl("get nodes -o json"))["items"]}


def test_make_up_ends_with_a_measured_bus_bandwidth(lab: Lab) -> None:
    assert "PASS" in lab.printed
    outputs = lab.outputs()
    assert outputs["nccl_passed"] is True
    assert outputs["nccl_reasons"] == []
    assert outputs["nccl_busbw_gbps"] > 0
    pool = ClusterOutputs.from_dict(outputs).nccl["lab"]
    assert pool.transport == "socket" and pool.gdrdma_edges == 0 and pool.network_edges
    assert pool.simulated, "a simulated number must say so"
    assert pool.measured_at, "the job tells when it was created"
    assert set(pool.curve) == {"all_reduce", "all_gather"}
    verdict = json.loads((PROJECT / str(pool.verdict_file)).read_text(encoding="utf-8"))
    assert verdict["ranks"] == 4 and verdict["nodes"] == 2
    namespace, name = str(pool.config_map).split("/")
    assert json.loads(lab.kubectl(f"-n {namespace} get configmap {name} -o json"))["data"]["verdict.json"]


def test_what_make_up_printed_names_the_report_and_the_report_exists(lab: Lab) -> None:
    named = re.search(r"report\s+(\S+report\.html)", lab.printed)
    assert named, lab.printed
    report = (PROJECT / named[1]).read_text(encoding="utf-8")
    assert "busbw" in report and "http" not in re.sub(r"http://www\.w3\.org\S*", "", report), "opens offline"


def test_every_server_votes_in_etcd_and_every_worker_offers_its_gpus_and_hcas(lab: Lab) -> None:
    nodes = _nodes(lab)
    for name in ("server-1", "server-2", "server-3"):
        conditions = {c["type"]: c["status"] for c in nodes[name]["status"]["conditions"]}
        assert conditions["Ready"] == "True" and conditions["EtcdIsVoter"] == "True", name
    for name in ("worker-1", "worker-2"):
        allocatable = nodes[name]["status"]["allocatable"]
        assert allocatable["nvidia.com/gpu"] == "2" and allocatable["nvidia.com/hostdev"] == "2", name


def test_pods_of_workers_may_lock_all_memory_that_their_host_allows(lab: Lab) -> None:
    """As RDMA needs. A lab that may not raise limits (CAP_SYS_RESOURCE) keeps its own for K3s and pods."""
    worker, pod = "worker-1", "memlock"
    namespace = str(ClusterOutputs.from_dict(lab.outputs()).nccl["lab"].config_map).partition("/")[0]
    container = "spec.mpiReplicaSpecs.Worker.template.spec.containers[0]"
    image = lab.kubectl(f"-n {namespace} get mpijobs -o jsonpath='{{.items[0].{container}.image}}'").strip()
    assert lab.ssh(worker, "systemctl show -P LimitMEMLOCK k3s-agent").strip() == "infinity"
    limit = "prlimit --memlock --noheadings --output SOFT --pid $(systemctl show -P MainPID k3s-agent)"
    allowed = lab.ssh(worker, limit).strip()
    spec = json.dumps({"spec": {"nodeName": worker}})
    options = f"--image={image} --restart=Never --overrides='{spec}' --command -- bash -c 'ulimit -l'"
    lab.kubectl(f"-n {namespace} run {pod} {options}")
    lab.kubectl(f"-n {namespace} wait --for=jsonpath='{{.status.phase}}'=Succeeded pod/{pod} --timeout=90s")
    of_pod = lab.kubectl(f"-n {namespace} logs {pod}").strip()
    assert of_pod == (allowed if allowed == "unlimited" else str(int(allowed) // 1024))
    lab.kubectl(f"-n {namespace} delete pod {pod}")


def test_containerd_gives_a_pod_the_gpu_that_the_device_plugin_has_only_named(lab: Lab) -> None:
    """By the Container Device Interface: NVIDIA_VISIBLE_DEVICES is only in the file that it reads."""
    lab.apply(gpu_holder("worker-1", name="cdi"))
    lab.kubectl("wait --for=condition=Ready pod/cdi --timeout=90s")
    found = lab.kubectl("exec cdi -- bash -c 'ls /dev/nvidia*; env'").split()
    lab.kubectl("delete pod cdi")
    assert len([word for word in found if word.startswith("/dev/nvidia")]) == 1, found
    assert "NVIDIA_VISIBLE_DEVICES=void" in found


def test_a_second_up_changes_nothing_and_logs_in_nowhere(lab: Lab) -> None:
    before = lab.logins()
    lab.updated("--expect-no-changes")
    after = lab.logins()
    own = {host: count + 1 for host, count in before.items()}
    assert after == own, "a no-op must not touch the hosts; to count is one login"


def test_a_consumer_stack_reads_the_measured_bandwidth(lab: Lab) -> None:
    lab.pulumi("stack", "init", "dev", cwd=CONSUMER)
    lab.updated(cwd=CONSUMER)
    assert str(round(lab.outputs()["nccl_busbw_gbps"], 2)) in json.dumps(lab.outputs(CONSUMER))


def test_an_expectation_set_too_high_fails_the_update_and_keeps_the_outputs(lab: Lab) -> None:
    def expect_too_much(cluster: dict[str, Any]) -> None:
        cluster["validation"]["expected_busbw_gbps"] = 400

    done = lab.up("--config-file", str(lab.config_with(expect_too_much)))
    assert done.returncode != 0
    assert "400" in done.stdout + done.stderr, "the reason names what was expected"
    outputs = lab.outputs()
    assert outputs["nccl_passed"] is False
    assert outputs["nccl_busbw_gbps"] > 0, "the measured number is kept"
    assert any("busbw" in reason for reason in outputs["nccl_reasons"])


def test_the_consumer_refuses_a_fabric_that_has_not_passed(lab: Lab) -> None:
    done = lab.up(cwd=CONSUMER)
    assert done.returncode != 0
    assert "nccl_passed" in done.stdout + done.stderr


def test_a_host_that_cannot_be_reached_stops_the_update_before_anything_changes(lab: Lab) -> None:
    def one_dead_host(cluster: dict[str, Any]) -> None:
        dead = {**cluster["hosts"]["workers"][1], "name": "worker-9", "address": "10.77.0.99"}
        cluster["hosts"]["workers"].append(dead)

    done = lab.up("--config-file", str(lab.config_with(one_dead_host)))
    text = done.stdout + done.stderr
    assert done.returncode != 0
    assert "worker-9" in text and "10.77.0.99" in text
    assert set(_nodes(lab)) == {"server-1", "server-2", "server-3", "worker-1", "worker-2"}


def test_the_right_configuration_makes_the_stack_pass_again(lab: Lab) -> None:
    lab.updated()
    assert lab.outputs()["nccl_passed"] is True
