"""Secondary networks: what becomes of the configuration in the cluster and in a pod."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from stacks.training.package.networks import definition, pod_annotations
from stacks.training.package.proof import Manifests
from stacks.training.package.proof import render as render_proof
from stacks.training.package.target import Target, refusals, targets
from stacks.training.package.trainer import deepspeed_runtime, torch_runtime
from stacks.training.tests.support import training
from tests.support import measured

ROCE = {"link_layer": "ethernet"}
TCP = {"transport": "socket", "expected_busbw_gbps": 1}
GLOO = {"backend": "gloo"}
ANNOTATION = "k8s.v1.cni.cncf.io/networks"


def rail(number: int, subnet: str = "", **more: Any) -> dict[str, Any]:
    subnet = subnet or f"192.168.1{number}.0/24"
    return {
        "name": f"rail{number}", "type": "macvlan", "master": f"ens{number}f0np0", "subnet": subnet, **more,
    }  # fmt: skip


def hostdev(subnet: str = "192.168.20.0/24", **more: Any) -> dict[str, Any]:
    resource = "nvidia.com/hostdev"
    return {"name": "ib", "type": "host-device", "resource": resource, "subnet": subnet, **more}


def defined(network: dict[str, Any]) -> dict[str, Any]:
    config = training(networks={"h100": [network]})
    return definition(config.namespace, "h100", config.networks["h100"][0])


def cni(network: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(defined(network)["spec"]["config"])
    return parsed


def target(
    *networks: dict[str, Any], proof: dict[str, Any] | None = None, **site: Any
) -> tuple[Target, Manifests]:
    config = training(networks={"h100": list(networks)} if networks else {}, proof=proof or {})
    [only] = targets(ClusterOutputs.from_dict(measured.outputs(**site)), config).values()
    return only, render_proof(only, config, {"main.py": ""})


def template(found: Manifests) -> dict[str, Any]:
    made: dict[str, Any] = found.job["spec"]["template"]
    return made


def env(found: Manifests) -> dict[str, str]:
    [container] = template(found)["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def limits(found: Manifests) -> dict[str, Any]:
    [container] = template(found)["spec"]["containers"]
    made: dict[str, Any] = container["resources"]["limits"]
    return made


def interfaces(found: Manifests) -> list[str]:
    [container] = template(found)["spec"]["containers"]
    script: str = container["command"][-1]
    [names] = re.findall(r"^for name in (.*); do$", script, re.MULTILINE)
    return str(names).split()


# ---- objects ---------------------------------------------------------------------------------------------


def test_a_macvlan_network_is_a_definition_in_the_namespace_of_the_run() -> None:
    metadata = defined(rail(0))["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("h100-rail0", "busbar-training")
    plugin = {"name": "h100-rail0", "type": "macvlan", "master": "ens0f0np0", "mode": "bridge"}
    assert plugin.items() <= cni(rail(0)).items()
    asked = {"mode": "private", "mtu": 9000}
    assert asked.items() <= cni({**rail(0), **asked}).items()


def test_whereabouts_is_told_where_k3s_keeps_its_configuration() -> None:
    ipam = cni(rail(0, exclude=["192.168.10.0/28"]))["ipam"]
    assert (ipam["range"], ipam["exclude"]) == ("192.168.10.0/24", ["192.168.10.0/28"])
    folder = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
    assert ipam["configuration_path"] == f"{folder}/whereabouts.d/whereabouts.conf"


@pytest.mark.parametrize(("kind", "own"), [("host-device", {}), ("ib-sriov", {"link_state": "enable"})])
def test_a_network_of_devices_names_their_resource_and_no_device(kind: str, own: dict[str, str]) -> None:
    network = hostdev(type=kind)
    annotations = defined(network)["metadata"]["annotations"]
    assert annotations == {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/hostdev"}
    plugin = {"cniVersion": "1.0.0", "name": "h100-ib", "type": kind}
    assert {key: value for key, value in cni(network).items() if key != "ipam"} == {**plugin, **own}


# ---- pods ------------------------------------------------------------------------------------------------


def test_without_networks_a_pod_has_no_annotation_and_must_have_no_interface() -> None:
    _, found = target()
    assert "annotations" not in template(found)["metadata"]
    assert interfaces(found) == []
    assert env(found)["NCCL_SOCKET_IFNAME"] == "eth0"


def test_a_pod_is_attached_to_every_network_and_does_not_start_without_the_interfaces() -> None:
    _, found = target(rail(0), rail(1), pool=ROCE)
    assert template(found)["metadata"]["annotations"] == {
        ANNOTATION: "busbar-training/h100-rail0@net1,busbar-training/h100-rail1@net2"
    }
    assert interfaces(found) == ["net1", "net2"]


def test_another_network_under_the_same_name_is_another_run() -> None:
    names = {
        target({**rail(0), "master": master}, pool=ROCE)[1].name for master in ("ens0f0np0", "ens0f1np1")
    }
    assert len(names) == 2


def test_configured_interfaces_are_required_beside_those_of_the_networks() -> None:
    _, found = target(rail(0), pool=ROCE, proof={"interfaces": ["net1", "ib0"]})
    assert interfaces(found) == ["net1", "ib0"]


def test_a_pod_has_one_interface_per_device_that_it_is_given() -> None:
    _, found = target(hostdev())
    annotation = template(found)["metadata"]["annotations"][ANNOTATION].split(",")
    assert annotation == [f"busbar-training/h100-ib@net{n}" for n in range(1, 9)]


GPUS, HCAS = {"nvidia.com/gpu": 8}, {"nvidia.com/hostdev": "8"}


@pytest.mark.parametrize(
    ("network", "more", "expected"),
    [
        (hostdev(), {}, {**GPUS, **HCAS}),
        (hostdev(resource="nvidia.com/ib_vf", count=2), {}, {**GPUS, **HCAS, "nvidia.com/ib_vf": "2"}),
        (hostdev(count=1), {"proof": GLOO, "validation": TCP}, HCAS),
    ],
    ids=["of the pool", "as often as configured", "on CPUs"],
)
def test_a_pod_asks_for_the_devices_of_its_networks(
    network: dict[str, Any], more: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert limits(target(network, **more)[1]) == expected


def test_gloo_uses_the_interface_of_the_network() -> None:
    _, found = target(hostdev(count=1), proof=GLOO, validation=TCP)
    assert env(found)["GLOO_SOCKET_IFNAME"] == "net1"


def test_over_tcp_nccl_uses_the_networks_and_nothing_else() -> None:
    _, found = target(rail(0), rail(1), validation=TCP)
    assert env(found)["NCCL_SOCKET_IFNAME"] == "=net1,net2"


def test_over_rdma_the_bootstrap_stays_on_the_interface_that_every_pod_has() -> None:
    # Addresses choose nothing here: their families may differ.
    _, found = target(hostdev(), hostdev(name="ib6", subnet="fd02::/64"))
    assert env(found)["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_IB_ADDR_FAMILY" not in env(found)


def test_over_roce_gids_are_chosen_by_family_and_network_and_never_by_a_fixed_index() -> None:
    settings = {"env": {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106"}}
    _, without = target(pool=ROCE, validation=settings)
    assert env(without)["NCCL_IB_GID_INDEX"] == "3"
    _, found = target(rail(0), rail(1), pool=ROCE, validation=settings)
    assert "NCCL_IB_GID_INDEX" not in env(found)
    assert env(found)["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert env(found)["NCCL_IB_ADDR_RANGE"] == "192.168.10.0/23"
    assert env(found)["NCCL_IB_TC"] == "106"


def test_over_roce_the_range_has_all_of_a_large_network_in_it() -> None:
    subnets = (rail(0, "192.168.10.0/24"), rail(1, "192.168.12.0/22"))
    _, found = target(*subnets, pool=ROCE)
    assert env(found)["NCCL_IB_ADDR_RANGE"] == "192.168.8.0/21"


def test_over_roce_with_ipv6_the_family_is_that_of_the_networks() -> None:
    _, found = target(rail(0, "fd02::/64"), pool=ROCE)
    assert (env(found)["NCCL_IB_ADDR_FAMILY"], env(found)["NCCL_IB_ADDR_RANGE"]) == ("AF_INET6", "fd02::/64")


def test_a_train_job_of_the_pool_s_runtime_is_attached_from_any_namespace() -> None:
    only, _ = target(rail(0), pool=ROCE)
    [job] = torch_runtime(only, "torch:1")["spec"]["template"]["spec"]["replicatedJobs"]
    metadata = job["template"]["spec"]["template"]["metadata"]
    assert metadata == {"annotations": {ANNOTATION: "busbar-training/h100-rail0@net1"}}


def test_a_pod_of_a_runtime_that_was_not_attached_fails_before_it_trains_and_says_why() -> None:
    only, _ = target(rail(0), rail(1), pool=ROCE)
    for made in (torch_runtime(only, "torch:1"), deepspeed_runtime(only, "torch:1")):
        assert made
        for job in made["spec"]["template"]["spec"]["replicatedJobs"]:
            [check] = job["template"]["spec"]["template"]["spec"]["initContainers"]
            assert (check["image"], check["command"][-2:]) == ("torch:1", ["net1", "net2"])
    ran = subprocess.run([*check["command"][:-2], "lo"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "")
    ran = subprocess.run([*check["command"], "lo"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert (
        ran.stdout == "no interface net1 net2 in this pod. Fix: check Multus on its worker, delete the pod\n"
    )


# ---- what does not fit the cluster -----------------------------------------------------------------------


def refused(networks: dict[str, Any], **site: Any) -> str:
    found = refusals(ClusterOutputs.from_dict(measured.outputs(**site)), training(networks=networks))
    return "\n".join(found)


@pytest.mark.parametrize(
    ("pool", "networks", "site", "reason"),
    [
        ("h200", [rail(0)], {}, "has no pool h200. Fix: name in `networks` only pools of the cluster: h100"),
        ("h100", [rail(0)], {}, "rail0 of pool h100: macvlan needs Ethernet, the rails are InfiniBand"),
        (
            "h100",
            [hostdev(type="ib-sriov")],
            {"pool": ROCE},
            "ib of pool h100: ib-sriov needs InfiniBand, the rails are Ethernet. Fix: macvlan",
        ),
        (
            "h100",
            [hostdev(subnet="10.1.0.0/28")],
            {},
            "its subnet 10.1.0.0/28 has 14 addresses for pods, expected 16 for 2 workers",
        ),
        (
            "h100",
            [rail(0), rail(1, "fd02::/64")],
            {"pool": ROCE},
            "some are IPv4, some IPv6, expected one for",
        ),
    ],
    ids=["pool", "macvlan on InfiniBand", "ib-sriov on Ethernet", "subnet", "families"],
)
def test_networks_that_cannot_be_those_of_the_pool_are_refused(
    pool: str, networks: list[dict[str, Any]], site: dict[str, Any], reason: str
) -> None:
    found = refused({pool: networks}, **site)
    assert reason in found and "\n" not in found


def test_a_subnet_of_all_workers_may_be_just_large_enough() -> None:
    config = training(networks={"h100": [hostdev("10.1.0.0/28", exclude=["10.1.0.2/31"], count=6)]})
    assert targets(ClusterOutputs.from_dict(measured.outputs()), config)


def test_each_address_that_pods_must_not_get_is_counted_once() -> None:
    excluded = ["10.1.0.0/28", "10.1.0.0/29", "10.1.0.16/31"]
    network = hostdev("10.1.0.0/27", exclude=excluded)
    assert "has 13 addresses for pods" in refused({"h100": [network]})


def test_the_interfaces_of_a_pod_are_numbered_over_all_networks() -> None:
    only, _ = target(rail(0), hostdev(count=2), validation=TCP)
    assert [(each.interface, each.network.name) for each in only.attached] == [
        ("net1", "rail0"), ("net2", "ib"), ("net3", "ib"),
    ]  # fmt: skip
    assert pod_annotations(only.attached)[ANNOTATION].endswith("h100-ib@net3")
