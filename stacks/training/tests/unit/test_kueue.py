"""Kueue: which jobs it admits, the quota of a pool, and its objects beside the published CRDs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.outputs import ClusterOutputs
from stacks.training.package import kueue
from stacks.training.package.target import Target, targets
from stacks.training.tests.support import training
from tests.support import measured
from tests.unit.charts.published import complaints, published_crd, published_values

HELM_VALUES = Path(__file__).resolve().parents[2] / "helm_values"
RELEASE = ("kueue", "v0.19.2")
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def target(**site: Any) -> Target:
    [found] = targets(ClusterOutputs.from_dict(measured.outputs(**site)), training()).values()
    return found


def configuration(**config: Any) -> dict[str, Any]:
    """The controller's configuration."""
    values = kueue.values(HELM_VALUES, training(**{"kueue": {"enabled": True}, **config}))
    found = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("kind", "manifest"),
    [
        ("ResourceFlavor", lambda: kueue.flavor(target(pool={"taints": [TAINT]}))),
        ("ClusterQueue", lambda: kueue.cluster_queue(target(), training())),
        ("LocalQueue", lambda: kueue.local_queue(target(), "busbar-training")),
    ],
)
def test_an_object_is_valid_by_the_published_crd(kind: str, manifest: Any) -> None:
    assert complaints(published_crd(*RELEASE, kind), "v1beta2", manifest()) == []


def test_every_value_that_we_set_is_one_that_the_chart_reads() -> None:
    published = published_values(*RELEASE)
    values = kueue.values(HELM_VALUES, training(kueue={"enabled": True}))
    assert set(values) == {"controllerManager", "managerConfig"}
    for part, below in values.items():
        assert set(below) <= set(published[part])


def test_the_quota_of_a_pool_is_all_devices_of_its_workers() -> None:
    spec = kueue.cluster_queue(target(workers={"h100": 3}), training())["spec"]
    [group] = spec["resourceGroups"]
    [flavor] = group["flavors"]
    assert {each["name"]: each["nominalQuota"] for each in flavor["resources"]} == {
        "nvidia.com/gpu": "24", "nvidia.com/hostdev": "24",
    }  # fmt: skip
    assert group["coveredResources"] == [each["name"] for each in flavor["resources"]]


def test_huge_pages_of_a_pool_are_counted_in_their_own_unit() -> None:
    found = target(workers={"h100": 3})
    for each, all_of_them in (("5120Mi", "15360Mi"), ("2Ti", "6Ti"), ("4k", "12k")):
        launch = found.launch.model_copy(update={"resources": {"hugepages-2Mi": each}})
        spec = kueue.cluster_queue(dataclasses.replace(found, launch=launch), training())["spec"]
        quotas = spec["resourceGroups"][0]["flavors"][0]["resources"]
        assert {"name": "hugepages-2Mi", "nominalQuota": all_of_them} in quotas


def test_a_queue_leads_to_the_queue_of_its_pool_and_that_to_its_flavor() -> None:
    local, cluster = kueue.local_queue(target(), "team"), kueue.cluster_queue(target(), training())
    flavor = kueue.flavor(target())
    assert (local["metadata"]["name"], local["metadata"]["namespace"]) == ("h100", "team")
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    assert cluster["spec"]["resourceGroups"][0]["flavors"][0]["name"] == flavor["metadata"]["name"]


def test_an_admitted_pod_tolerates_the_taints_of_its_pool() -> None:
    spec = kueue.flavor(target(pool={"taints": [TAINT]}))["spec"]
    assert {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"} in spec["tolerations"]


def test_a_job_that_asks_for_cpus_and_memory_is_admitted_by_its_devices() -> None:
    assert configuration()["resources"]["excludeResourcePrefixes"] == ["cpu", "memory", "ephemeral-storage"]


def test_jobs_are_queued_but_not_the_pods_of_others() -> None:
    frameworks = configuration()["integrations"]["frameworks"]
    assert {"batch/job", "kubeflow.org/mpijob", "trainer.kubeflow.org/trainjob"} <= set(frameworks)
    assert not {"pod", "deployment", "statefulset"} & set(frameworks)


def test_jobs_of_training_operator_v1_are_queued_where_it_is_installed() -> None:
    kinds = ["PyTorchJob", "JAXJob"]
    installed = configuration(training_operator={"enabled": True, "kinds": kinds})
    assert {"kubeflow.org/pytorchjob", "kubeflow.org/jaxjob"} <= set(installed["integrations"]["frameworks"])
    assert "kubeflow.org/pytorchjob" not in configuration()["integrations"]["frameworks"]


def test_a_job_whose_pods_are_not_all_ready_in_time_gives_its_quota_back() -> None:
    waits = configuration(kueue={"enabled": True, "pods_ready_seconds": 600})["waitForPodsReady"]
    assert waits == {"timeout": "600s", "blockAdmission": False}


def test_one_controller_acts_at_a_time_on_jobs_of_any_namespace() -> None:
    assert configuration()["leaderElection"]["leaderElect"] is True
    assert kueue.cluster_queue(target(), training())["spec"]["namespaceSelector"] == {}


def test_the_stack_s_own_values_win() -> None:
    values = kueue.values(HELM_VALUES, training(kueue={"values": {"controllerManager": {"replicas": 2}}}))
    assert values["controllerManager"]["replicas"] == 2
    servers = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}
    assert values["controllerManager"]["tolerations"] == [servers]


def test_the_order_of_a_queue_is_as_configured() -> None:
    spec = kueue.cluster_queue(target(), training(kueue={"strategy": "StrictFIFO"}))["spec"]
    assert spec["queueingStrategy"] == "StrictFIFO"
