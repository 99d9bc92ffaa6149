"""The Jobs that pull the image of a measurement: where they run, what they ask for, what stays of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from busbar.manifests import mpijob
from busbar.manifests.image_pull import ImagePull, render
from busbar.manifests.nccljob import NcclJob
from tests.support.kube_site import job

TAINT = {"key": "team", "value": "ml", "effect": "NoExecute"}
MADE_LATER = "nvidia"  # GPUs, HCAs and the RuntimeClass carry it in their names


def jobs(of: NcclJob) -> list[dict[str, Any]]:
    return render(ImagePull.of(of))


def pod(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return found


def worker(of: NcclJob) -> dict[str, Any]:
    found: dict[str, Any] = mpijob.render(of)["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    return found


def nodes(spec: Mapping[str, Any]) -> list[str]:
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    [expression] = term["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("kubernetes.io/hostname", "In")
    found: list[str] = expression["values"]
    return found


def names(manifests: list[dict[str, Any]]) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in manifests]


@pytest.mark.parametrize("wrong", [{"nodes": ()}, {"deadline_seconds": 0}])
def test_a_pull_needs_a_node_and_time(wrong: dict[str, Any]) -> None:
    of = ImagePull.of(job(nodes=1))
    assert len(render(of)) == 1
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ImagePull.model_validate(of.model_dump() | wrong)


def test_each_node_of_the_measurement_pulls_the_image_of_the_measurement() -> None:
    of = job()
    manifests = jobs(of)
    assert [nodes(pod(manifest)) for manifest in manifests] == [[node] for node in nodes(worker(of))]
    kinds = {
        (each["image"], each["imagePullPolicy"])
        for spec in (worker(of), *map(pod, manifests))
        for each in spec["containers"]
    }
    assert kinds == {(of.image, "IfNotPresent")}
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {of.namespace}


def test_the_taints_of_the_pool_are_tolerated_as_by_the_measurement() -> None:
    of = job({"taints": [TAINT]})
    assert {**TAINT, "operator": "Equal"} in pod(jobs(of)[0])["tolerations"]
    assert pod(jobs(of)[0])["tolerations"] == worker(of)["tolerations"]


def test_a_pull_asks_for_nothing_that_an_operator_brings() -> None:
    spec = pod(jobs(job())[0])
    assert MADE_LATER in str(worker(job())["containers"])
    assert MADE_LATER not in str(spec["containers"])
    assert "resources" not in spec["containers"][0]
    assert "runtimeClassName" not in spec


def test_nothing_stays_of_a_pull_whether_it_succeeds_or_not() -> None:
    for manifest in jobs(job(validation={"deadline_seconds": 600})):
        spec = manifest["spec"]
        assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
        assert spec["activeDeadlineSeconds"] == 600
        assert spec["ttlSecondsAfterFinished"] == 60


def test_another_deadline_or_measurement_of_the_same_image_is_the_same_pull() -> None:
    same = job(validation={"deadline_seconds": 600, "run": 2, "iterations": 3})
    assert names(jobs(same)) == names(jobs(job()))


def test_another_image_is_another_pull() -> None:
    other = job(validation={"image": "registry.example/nccl-tests:2"})
    assert not set(names(jobs(other))) & set(names(jobs(job())))


def test_a_worker_that_is_added_does_not_change_the_pull_of_the_others() -> None:
    assert names(jobs(job(nodes=4)))[:2] == names(jobs(job(nodes=2)))
    assert len(set(names(jobs(job(nodes=4))))) == 4
