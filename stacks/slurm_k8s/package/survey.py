"""Finds what is in the way on a cluster, before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from busbar.finding import Finding
from busbar.kube.client import Api, JsonObject
from busbar.kube.gpus import active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find, quantity
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.models import StrictModel
from busbar.preflight.unchangeable import refusal
from busbar.text import listed
from stacks.slurm_k8s.package.config import State

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodesets.slinky.slurm.net"
CRDS_RELEASE = "slurm-operator-crds"
_SLURMCTLD = "slurm-controller"
# Their volumes are folders or disks of one machine (K3s' own class; static local volumes).
_OF_ONE_NODE = ("rancher.io/local-path", "kubernetes.io/no-provisioner")
# The topology and its root in topology.yaml; Slurm makes the switches below of each node's own place.
TOPOLOGY, ROOT_SWITCH = "fabric", "root"
_PLACE = "topology.slinky.slurm.net/spec"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


class SurveySpec(StrictModel):
    """Stdin of `busbar slurm_k8s survey`. `workers`: those that Slurm will hold."""

    namespace: str
    workers: tuple[str, ...]
    storage_class: str | None = None
    accept_state_on_one_node: bool = False
    levels: dict[str, tuple[str, ...]] = Field(default={})
    """Worker -> the labels of its Node that name switches, the farthest first; empty for no topology."""


def findings(api: Api, spec: SurveySpec) -> list[str]:
    """Every obstacle, with its fix; empty where there is none. Raises ApiError."""
    return [*_foreign_crds(api), *_busy(api, spec), *_storage(api.list(CLASSES), spec)]


def changed_state(api: Api, namespace: str, state: State) -> list[Finding]:
    """The changes of slurmctld's volume: a StatefulSet keeps the first one. Raises ApiError."""
    found = find(api, f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{_SLURMCTLD}")
    fix = f"write back {{first}}; for another volume: busbar destroy, kubectl delete namespace {namespace}, "
    fix += "which ends all jobs, and busbar up"
    refused = []
    for each in found["spec"].get("volumeClaimTemplates") or () if found else ():
        size, storage_class = (
            each["spec"]["resources"]["requests"]["storage"],
            each["spec"].get("storageClassName"),
        )
        if quantity(size) != quantity(state.size):
            refused.append(refusal(_SLURMCTLD, "state.size", size, state.size, fix))
        if storage_class != state.storage_class:
            first, now = (name or "the default class" for name in (storage_class, state.storage_class))
            refused.append(refusal(_SLURMCTLD, "state.storage_class", first, now, fix))
    return refused


def place(api: Api, levels: Mapping[str, Sequence[str]]) -> bool:
    """Annotate Nodes with their place in the tree of switches, which slurm-operator tells Slurm. Always true.

    A pod that starts before has no place in Slurm for a while. Raises ApiError.
    """
    for node in api.list(NODES) if levels else ():
        metadata = node["metadata"]
        if (labels := levels.get(metadata["name"])) is None:
            continue
        switches = [(metadata.get("labels") or {}).get(label, "") for label in labels] or ["unknown"]
        text = ":".join([TOPOLOGY, ROOT_SWITCH, *switches])
        if (metadata.get("annotations") or {}).get(_PLACE) != text and all(switches):
            api.merge(f"{NODES}/{metadata['name']}", {"metadata": {"annotations": {_PLACE: text}}})
    return True


def _foreign_crds(api: Api) -> Iterator[str]:
    metadata = (find(api, CRD) or {"metadata": {}})["metadata"]
    release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
    if metadata and release != CRDS_RELEASE:
        yield (
            f"the CRD {metadata['name']} is there and was not installed by busbar (Helm release: "
            f"{release or 'none'}). Fix: first remove the other slurm-operator, its Slurm clusters and CRDs"
        )


def _busy(api: Api, spec: SurveySpec) -> Iterator[str]:
    """Pods of others that hold GPUs: the pods of Slurm, which need all of a node, would stay pending."""
    pods = [pod for pod in active_pods(api) if pod["metadata"]["namespace"] != spec.namespace]
    held = held_by(pods)
    for worker in spec.workers:
        if names := sorted(held.get(worker, {}).get(GPU_RESOURCE, {})):
            yield (
                f"{worker}: {GPU_RESOURCE} is held by {listed(names)}, and Slurm needs all GPUs of a node. "
                "Fix: wait for its end or delete it; or leave the pool out of `pools`"
            )


def _storage(classes: list[JsonObject], spec: SurveySpec) -> Iterator[str]:
    names = [each["metadata"]["name"] for each in classes]
    known = f"the cluster has {', '.join(names) or 'none'}"
    wanted = spec.storage_class
    chosen: list[JsonObject] = [
        each for each in classes if (each["metadata"]["name"] == wanted if wanted else _is_default(each))
    ]
    if not chosen:
        what = f"there is no StorageClass {wanted}" if wanted else "no StorageClass is the default one"
        yield f"{what}; {known}. Fix: name one of them in state.storage_class"
        return
    provisioner: Any = chosen[0].get("provisioner")
    if provisioner in _OF_ONE_NODE and not spec.accept_state_on_one_node:
        yield (
            f"StorageClass {chosen[0]['metadata']['name']} ({provisioner}) keeps slurmctld's state on one "
            "server: all jobs are lost with it. Fix: state.storage_class with shared volumes, or "
            "state.accept_state_on_one_node: true"
        )


def _is_default(each: JsonObject) -> bool:
    return (each["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"
