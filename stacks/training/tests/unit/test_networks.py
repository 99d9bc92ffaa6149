"""Secondary networks: what becomes of the configuration in the cluster and in a pod."""

import json
import re
import subprocess
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.frame import CRDS
from busbar.outputs import ClusterOutputs
from stacks.training.package.networks import create_crd, definition
from stacks.training.package.proof import Manifests, render
from stacks.training.package.target import Target, refusals
from stacks.training.package.trainer import deepspeed_runtime, torch_runtime
from stacks.training.tests.support import target, training
from stacks.training.tests.unit.test_proof import container, env
from tests.support import measured
from tests.support.kube_cluster import Cluster
from tests.unit.charts.published import complaints, published_crd

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


def test_a_network_is_valid_by_the_crd_that_is_made_before_multus_and_stays_at_a_destroy() -> None:
    """The Network Operator's chart brings the same one: no release may have it, or Helm installs neither."""
    cluster = Cluster()
    create_crd(cluster)
    [(path, made)] = cluster.created
    assert path == CRDS and "annotations" not in made["metadata"]
    for version in ("v26.1.2", "v26.7.0-rc.2"):
        crd = published_crd("network-operator", version, "NetworkAttachmentDefinition")
        for each in (crd, made):
            assert complaints(each, "v1", defined(rail(0))) == []
        assert made["spec"]["group"] == crd["spec"]["group"]


@pytest.mark.parametrize(("owner", "stays"), [("", False), ("mine", False), ("rke2-multus", True)])
def test_a_crd_that_the_cluster_has_is_left_alone_but_for_that_of_the_release(
    owner: str, stays: bool
) -> None:
    path = f"{CRDS}/network-attachment-definitions.k8s.cni.cncf.io"
    annotations = {"meta.helm.sh/release-name": owner} if owner else {}
    cluster = Cluster({path: {"metadata": {"name": path.rpartition("/")[2], "annotations": annotations}}})
    create_crd(cluster)
    assert cluster.created == []
    keep = {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}
    assert cluster.patched == [(path, keep)] * stays


def cni(network: dict[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(defined(network)["spec"]["config"])
    return parsed


def rendered(*networks: dict[str, Any], proof: Any = None, **site: Any) -> tuple[Target, Manifests]:
    config = training(networks={"h100": list(networks)} if networks else {}, proof=proof or {})
    only = target(config, **site)
    return only, render(only, config, {"main.py": ""})


def interfaces(found: Manifests) -> list[str]:
    [names] = re.findall(r"^for name in (.*); do$", container(found)["command"][-1], re.MULTILINE)
    return str(names).split()


def test_a_macvlan_network_is_a_definition_in_the_namespace_of_the_run_with_whereabouts_of_k3s() -> None:
    metadata = defined(rail(0))["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("h100-rail0", "busbar-training")
    plugin = {"name": "h100-rail0", "type": "macvlan", "master": "ens0f0np0", "mode": "bridge"}
    assert plugin.items() <= cni(rail(0)).items()
    asked = {"mode": "private", "mtu": 9000}
    assert asked.items() <= cni({**rail(0), **asked}).items()
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


@pytest.mark.parametrize(
    ("networks", "site", "attached", "required"),
    [
        ([], {}, None, []),
        ([rail(0), rail(1)], {"pool": ROCE}, "h100-rail0@net1 h100-rail1@net2", ["net1", "net2"]),
        # One per device that the pod is given.
        (
            [rail(0), hostdev(count=2)],
            {"validation": TCP},
            "h100-rail0@net1 h100-ib@net2 h100-ib@net3",
            ["net1", "net2", "net3"],
        ),
        ([hostdev()], {}, " ".join(f"h100-ib@net{n}" for n in range(1, 9)), [f"net{n}" for n in range(1, 9)]),
        # A configured list is required in their place.
        (
            [rail(0)],
            {"pool": ROCE, "proof": {"interfaces": ["net1", "ib0"]}},
            "h100-rail0@net1",
            ["net1", "ib0"],
        ),
    ],
    ids=["none", "rails", "devices as configured", "devices of the pool", "configured"],
)
def test_a_pod_is_attached_to_every_network_and_does_not_start_without_the_interfaces(
    networks: list[dict[str, Any]], site: dict[str, Any], attached: str | None, required: list[str]
) -> None:
    only, found = rendered(*networks, **site)
    names = attached and ",".join(f"busbar-training/{each}" for each in attached.split())
    assert found.job["spec"]["template"]["metadata"].get("annotations", {}).get(ANNOTATION) == names
    assert interfaces(found) == required
    # A TrainJob of the pool's runtime has the same, from any namespace.
    [job] = torch_runtime(only, "torch:1")["spec"]["template"]["spec"]["replicatedJobs"]
    metadata = job["template"]["spec"]["template"].get("metadata", {})
    assert metadata.get("annotations", {}).get(ANNOTATION) == names


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
    assert container(rendered(network, **more)[1])["resources"]["limits"] == expected


RAILS = [rail(0), rail(1)]
GIDS = {"env": {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106"}}
IPV4, IPV6 = "AF_INET", "AF_INET6"


@pytest.mark.parametrize(
    ("networks", "site", "expected"),
    [
        ([], {}, {"NCCL_SOCKET_IFNAME": "eth0"}),
        ([hostdev(count=1)], {"proof": GLOO, "validation": TCP}, {"GLOO_SOCKET_IFNAME": "net1"}),
        (RAILS, {"validation": TCP}, {"NCCL_SOCKET_IFNAME": "=net1,net2", "NCCL_IB_DISABLE": "1"}),
        # The bootstrap stays on the interface that every pod has, and no address chooses anything.
        ([hostdev(), hostdev(name="ib6", subnet="fd02::/64")], {}, {"NCCL_SOCKET_IFNAME": "eth0"}),
        ([], {"pool": ROCE, "validation": GIDS}, {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_TC": "106"}),
        # An index differs from pod to pod, so family and range take its place.
        (
            RAILS,
            {"pool": ROCE, "validation": GIDS},
            {"NCCL_IB_ADDR_FAMILY": IPV4, "NCCL_IB_ADDR_RANGE": "192.168.10.0/23", "NCCL_IB_TC": "106"},
        ),
        (
            [rail(0, "192.168.10.0/24"), rail(1, "192.168.12.0/22")],
            {"pool": ROCE},
            {"NCCL_IB_ADDR_FAMILY": IPV4, "NCCL_IB_ADDR_RANGE": "192.168.8.0/21"},
        ),
        (
            [rail(0, "fd02::/64")],
            {"pool": ROCE},
            {"NCCL_IB_ADDR_FAMILY": IPV6, "NCCL_IB_ADDR_RANGE": "fd02::/64"},
        ),
    ],
    ids=["none", "gloo", "TCP", "RDMA", "RoCE without", "RoCE", "RoCE, large", "RoCE, IPv6"],
)
def test_nccl_finds_its_network_by_interface_over_tcp_and_by_address_over_roce(
    networks: list[dict[str, Any]], site: dict[str, Any], expected: dict[str, str]
) -> None:
    found = env(rendered(*networks, **site)[1])
    chosen = {key: value for key, value in found.items() if key.startswith("NCCL_IB_")}
    interface = {key: found[key] for key in expected if key.endswith("_IFNAME")}
    assert {**chosen, **interface} == expected


def test_a_pod_of_a_runtime_that_was_not_attached_fails_before_it_trains_and_says_why() -> None:
    only, _ = rendered(rail(0), rail(1), pool=ROCE)
    for made in (torch_runtime(only, "torch:1"), deepspeed_runtime(only, "torch:1")):
        assert made
        for job in made["spec"]["template"]["spec"]["replicatedJobs"]:
            [check] = job["template"]["spec"]["template"]["spec"]["initContainers"]
            assert (check["image"], check["command"][-2:]) == ("torch:1", ["net1", "net2"])
    said = "no interface net1 net2 in this pod. Fix: check Multus on its worker, delete the pod\n"
    for command, ended in ((check["command"][:-2], (0, "")), (check["command"], (1, said))):
        ran = subprocess.run([*command, "lo"], capture_output=True, text=True, timeout=120)
        assert (ran.returncode, ran.stdout) == ended


SMALL, FAMILIES = "10.1.0.0/28", [rail(0), rail(1, "fd02::/64")]
EXCLUDED = ["10.1.0.0/28", "10.1.0.0/29", "10.1.0.16/31"]
# A pool, its networks, what differs in the cluster, and the reason. Without one they can be used.
REFUSED: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], str]] = {
    "pool": ("h200", [rail(0)], {}, "no pool h200. Fix: name in `networks` only pools of the cluster: h100"),
    "macvlan on InfiniBand": (
        "h100", [rail(0)], {}, "rail0 of pool h100: macvlan needs Ethernet, the rails are InfiniBand",
    ),
    "ib-sriov on Ethernet": (
        "h100", [hostdev(type="ib-sriov")], {"pool": ROCE},
        "ib of pool h100: ib-sriov needs InfiniBand, the rails are Ethernet. Fix: macvlan",
    ),
    "subnet": (
        "h100", [hostdev(SMALL)], {},
        "its subnet 10.1.0.0/28 has 14 addresses for pods, expected 16 for 2 workers",
    ),
    "just large enough": ("h100", [hostdev(SMALL, exclude=["10.1.0.2/31"], count=6)], {}, ""),
    "excluded twice": ("h100", [hostdev("10.1.0.0/27", exclude=EXCLUDED)], {}, "has 13 addresses for pods"),
    "families": ("h100", FAMILIES, {"pool": ROCE}, "some are IPv4, some IPv6, expected one for"),
}  # fmt: skip


@pytest.mark.parametrize(("pool", "networks", "site", "reason"), REFUSED.values(), ids=REFUSED)
def test_networks_that_cannot_be_those_of_the_pool_are_refused(
    pool: str, networks: list[dict[str, Any]], site: dict[str, Any], reason: str
) -> None:
    read = ClusterOutputs.from_dict(measured.outputs(**site))
    found = [*refusals(read, training(networks={pool: networks}))]
    assert len(found) == bool(reason) and reason in "".join(found), found


@pytest.mark.parametrize("namespace", ["multus", "nvidia-network-operator"])
def test_no_second_multus_is_installed_beside_that_of_another_tool(namespace: str) -> None:
    theirs = {"metadata": {"name": "kube-multus-ds", "namespace": namespace}}
    cluster = Cluster({"/apis/apps/v1/daemonsets": {"items": [theirs]}})
    if namespace == "multus":
        return create_crd(cluster)
    with pytest.raises(Failed, match=r"nvidia-network-operator/kube-multus-ds .* Fix: set multus\.enabled"):
        create_crd(cluster)
    assert cluster.created == []
