"""The operators: Helm values in three layers, the request to wait, the NicClusterPolicy's selectors."""

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.config import Cluster
from busbar.kube.allocatable import AllocatableSpec
from busbar.manifests import operators
from busbar.manifests.operators import GPU_OPERATOR, MPI_OPERATOR, NETWORK_OPERATOR
from busbar.manifests.scheduling import taints_of
from tests.support.clusters import OWN_NFD
from tests.support.kube_site import cluster

HELM_VALUES = Path(__file__).resolve().parents[3] / "helm_values"
TAINT = {"key": "team", "value": "ml", "effect": "NoSchedule"}


def gpu_values(site: Cluster) -> Any:
    return GPU_OPERATOR.values(HELM_VALUES, site.gpu_operator, taints_of(site.pools.values()))


def test_what_the_stack_says_wins_mappings_are_merged_and_lists_replaced() -> None:
    site = cluster(
        gpu_operator={"values": {"toolkit": {"env": [], "enabled": False}, "driver": {"enabled": True}}}
    )
    made = gpu_values(site)
    assert made["toolkit"] == {"env": [], "enabled": False}
    assert made["driver"] == {"enabled": True, "rdma": {"enabled": True, "useHostMofed": True}}


def test_there_is_one_node_feature_discovery() -> None:
    """Two of them overwrite each other's labels; the GPU Operator brings it."""
    site = cluster()
    assert NETWORK_OPERATOR.values(HELM_VALUES, site.network_operator)["nfd"] == {"enabled": False}
    assert "nfd" not in gpu_values(site), "the default: enabled"


def test_a_tainted_pool_is_reached_by_operands_discovery_and_device_plugin_once_each() -> None:
    site = cluster({"taints": [TAINT]})
    taints = taints_of([*site.pools.values(), *site.pools.values()])
    made = GPU_OPERATOR.values(HELM_VALUES, site.gpu_operator, taints)
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    both = [gpu, {**TAINT, "operator": "Equal"}]
    assert made["daemonsets"]["tolerations"] == both
    assert made["node-feature-discovery"]["worker"]["tolerations"][1:] == both
    policy = operators.render_policy(site.network_operator, taints, RAILS)["spec"]
    assert set(policy) == {"sriovDevicePlugin", "tolerations"} and policy["tolerations"] == both
    untainted = gpu_values(cluster())
    assert "tolerations" not in untainted["daemonsets"], "those of the chart stay"
    assert "worker" not in untainted["node-feature-discovery"]


def test_what_is_not_on_every_worker_tolerates_the_taints_of_servers_that_coredns_tolerates() -> None:
    site = cluster()
    gpu = GPU_OPERATOR.values(HELM_VALUES, site.gpu_operator)
    network = NETWORK_OPERATOR.values(HELM_VALUES, site.network_operator)
    discovery = gpu["node-feature-discovery"]
    tolerated = [
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
    ]
    for each in (gpu["operator"], network["operator"], discovery["master"], discovery["gc"]):
        assert each["tolerations"] == tolerated


def test_the_controllers_image_is_the_configured_one() -> None:
    site = cluster(mpi_operator={"image": "registry.example/mpi-operator@sha256:" + "0" * 64})
    made = MPI_OPERATOR.values(HELM_VALUES, site.mpi_operator)
    assert made["image"] == "registry.example/mpi-operator@sha256:" + "0" * 64


def test_a_values_file_that_is_not_a_mapping_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu-operator.yaml").write_text("- a\n- b\n")
    with pytest.raises(ValueError, match=r"gpu-operator\.yaml: expected a mapping of Helm values"):
        operators.load(tmp_path, "gpu-operator")


RAILS = ["0000:1b:00.0", "0000:9b:00.0"]


@pytest.mark.parametrize(
    ("of_site", "more"),
    [
        ({}, {}),
        ({"pfNames": ["ib0"]}, {"pfNames": ["ib0"]}),
        # Those that a site lists itself take the place of what preflight has found.
        ({"pciAddresses": ["0000:af:00.0"]}, {"pciAddresses": ["0000:af:00.0"]}),
    ],
)
def test_pods_are_offered_the_rails_and_no_other_hca(of_site: dict[str, Any], more: dict[str, Any]) -> None:
    site = cluster(network_operator={"selectors": of_site})
    (resource,) = operators.plugin_config(site.network_operator, RAILS)["resourceList"]
    assert resource["selectors"] == {"vendors": ["15b3"], "isRdma": True, "pciAddresses": RAILS, **more}


def test_without_a_rail_there_is_no_policy_that_would_offer_every_hca() -> None:
    with pytest.raises(ValueError, match=r"no PCI address of a rail.* --converge WORKER"):
        operators.plugin_config(cluster().network_operator, [])


def test_the_policy_offers_the_configured_resource_from_the_image_of_the_charts_version() -> None:
    site = cluster(
        network_operator={"resource": "rdma/ib", "version": "26.1.2"}, gpu_operator={"version": "v26.3.3"}
    )
    plugin = operators.render_policy(site.network_operator, [], RAILS)["spec"]["sriovDevicePlugin"]
    assert plugin["version"] == "network-operator-v26.1.2"
    (resource,) = json.loads(plugin["config"])["resourceList"]
    assert (resource["resourcePrefix"], resource["resourceName"]) == ("rdma", "ib")


def test_the_request_to_wait_is_one_that_the_command_takes() -> None:
    site = cluster(gpu_operator={"timeout_seconds": 77})
    for operator in (GPU_OPERATOR, NETWORK_OPERATOR):
        config = getattr(site, operator.config_key)
        spec = AllocatableSpec.model_validate(operator.wait_request(config, "nvidia.com/gpu", {"w1": 8}))
        assert spec.nodes == {"w1": 8}
        assert spec.deadline_seconds > config.timeout_seconds
        assert spec.namespace == operator.namespace
        assert spec.policy is not None
        assert spec.fix and spec.labels


def test_hundreds_of_nodes_get_more_time_for_a_rollout_and_longer_one_node_at_a_time() -> None:
    site, nodes = cluster(), {f"w{n}": 8 for n in range(440)}
    gpus = GPU_OPERATOR.wait_request(site.gpu_operator, "nvidia.com/gpu", nodes)["deadline_seconds"]
    hcas = NETWORK_OPERATOR.wait_request(site.network_operator, "nvidia.com/hostdev", nodes)[
        "deadline_seconds"
    ]
    assert gpus - site.gpu_operator.timeout_seconds == 2200
    assert hcas - site.network_operator.timeout_seconds > 2 * 2200


@pytest.mark.parametrize(
    ("values", "apps"),
    [
        ({}, ["nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset"]),
        ({"toolkit": {"enabled": False}}, ["nvidia-device-plugin-daemonset"]),
        ({"devicePlugin": {"enabled": False}}, ["nvidia-container-toolkit-daemonset"]),
    ],
)
def test_what_a_site_switches_off_is_not_waited_for(values: dict[str, Any], apps: list[str]) -> None:
    config = cluster(gpu_operator={"values": values}).gpu_operator
    assert GPU_OPERATOR.wait_request(config, "nvidia.com/gpu", {"w1": 8})["rollout"]["apps"] == apps


def test_the_namespace_of_an_operator_that_another_tool_installed_is_not_known() -> None:
    site = cluster(gpu_operator={"enabled": False}, network_operator=OWN_NFD)
    request = GPU_OPERATOR.wait_request(site.gpu_operator, "nvidia.com/gpu", {"w1": 8})
    spec = AllocatableSpec.model_validate(request)
    assert (spec.namespace, spec.rollout, spec.stable_seconds) == (None, None, 30)
