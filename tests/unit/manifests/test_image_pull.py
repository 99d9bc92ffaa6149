"""The Jobs that pull the image of a measurement: where they run, what they ask for, what stays of them."""

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
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [[expression]] = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert (expression["key"], expression["operator"]) == ("kubernetes.io/hostname", "In")
    found: list[str] = expression["values"]
    return found


def names(of: NcclJob) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in jobs(of)]


@pytest.mark.parametrize("wrong", [{"nodes": ()}, {"deadline_seconds": 0}])
def test_a_pull_needs_a_node_and_time(wrong: dict[str, Any]) -> None:
    of = ImagePull.of(job(nodes=1))
    assert len(render(of)) == 1
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ImagePull.model_validate(of.model_dump() | wrong)


def test_each_node_of_the_measurement_pulls_its_image_under_the_tolerations_of_the_measurement() -> None:
    of = job({"taints": [TAINT]})
    manifests = jobs(of)
    assert [nodes(pod(manifest)) for manifest in manifests] == [[node] for node in nodes(worker(of))]
    for manifest in manifests:
        [container] = pod(manifest)["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (of.image, "IfNotPresent")
        assert manifest["metadata"]["namespace"] == of.namespace
        assert {**TAINT, "operator": "Equal"} in pod(manifest)["tolerations"]
        assert pod(manifest)["tolerations"] == worker(of)["tolerations"]


def test_a_pull_asks_for_nothing_that_an_operator_brings() -> None:
    spec = pod(jobs(job())[0])
    assert MADE_LATER in str(worker(job())["containers"])
    assert MADE_LATER not in str(spec["containers"])
    assert not {"resources", "runtimeClassName"} & {*spec, *spec["containers"][0]}


def test_nothing_stays_of_a_pull_whether_it_succeeds_or_not() -> None:
    for manifest in jobs(job(validation={"deadline_seconds": 600})):
        spec = manifest["spec"]
        assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
        assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (600, 60)


def test_each_image_and_node_is_another_pull_and_another_measurement_or_worker_is_not() -> None:
    assert names(job(validation={"deadline_seconds": 600, "run": 2, "iterations": 3})) == names(job())
    assert not {*names(job(validation={"image": "registry.example/nccl-tests:2"}))} & {*names(job())}
    assert names(job(nodes=4))[:2] == names(job(nodes=2))
    assert len({*names(job(nodes=4))}) == 4
