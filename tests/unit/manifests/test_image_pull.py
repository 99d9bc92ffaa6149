"""The Jobs that pull the image of a measurement: where they run, what they ask for, what stays of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest
from pydantic import ValidationError

from busbar.manifests import mpijob
from busbar.manifests.image_pull import ImagePull, render
from busbar.manifests.nccljob import NcclJob
from tests.support.kube_site import job

TAINT = {"key": "team", "value": "ml", "effect": "NoExecute"}
TYPES = {
    name.removesuffix("ArgsDict"): kind.__annotations__
    for group in ("batch", "core", "meta")
    for name, kind in vars(import_module(f"pulumi_kubernetes.{group}.v1._inputs")).items()
    if name.endswith("ArgsDict")
}
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


def test_every_field_is_one_of_the_api_which_drops_those_that_it_does_not_know() -> None:
    manifest = jobs(job({"taints": [TAINT]}))[0]
    assert list(unknown_fields(manifest, "Job")) == []
    assert list(unknown_fields({"spec": {"ttlSeconds": 60}}, "Job")) == ["JobSpec.ttlSeconds"]


def test_another_deadline_or_measurement_of_the_same_image_is_the_same_pull() -> None:
    same = job(validation={"deadline_seconds": 600, "run": 2, "iterations": 3})
    assert names(jobs(same)) == names(jobs(job()))


def test_another_image_is_another_pull() -> None:
    other = job(validation={"image": "registry.example/nccl-tests:2"})
    assert not set(names(jobs(other))) & set(names(jobs(job())))


def test_a_worker_that_is_added_does_not_change_the_pull_of_the_others() -> None:
    assert names(jobs(job(nodes=4)))[:2] == names(jobs(job(nodes=2)))
    assert len(set(names(jobs(job(nodes=4))))) == 4


def unknown_fields(value: Any, model: str) -> Iterator[str]:
    """The keys of `value` that the API's type `model` does not have."""
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, model)
        return
    if not isinstance(value, dict) or model not in TYPES:
        return  # a plain value, or a map of texts
    fields = {name.replace("_", ""): str(kind) for name, kind in TYPES[model].items()}
    for key, item in value.items():
        if key.lower() in fields:
            found = re.search(r"(\w+)ArgsDict", fields[key.lower()])
            yield from unknown_fields(item, found[1] if found else "")
        else:
            yield f"{model}.{key}"
