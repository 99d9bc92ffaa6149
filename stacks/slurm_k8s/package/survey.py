"""Finds what is in the way on a cluster, before anything is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from busbar.finding import STACK, Finding
from busbar.frame import crds_of, not_of_release, refuse, storage_class, without_class
from busbar.kube.client import Api
from busbar.kube.gpus import active_pods, held_by
from busbar.kube.nodes import NODES
from busbar.kube.objects import find, quantity
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.models import StrictModel
from busbar.operations.verify import CLUSTER
from busbar.preflight.unchangeable import refusal
from busbar.text import listed
from stacks.slurm_k8s.package.config import Slurm

GROUP = "slinky.slurm.net"
CRDS_RELEASE = "slurm-operator-crds"
_SLURMCTLD = "slurm-controller"
# Their volumes are folders or disks of one machine (K3s' own class; static local volumes).
_OF_ONE_NODE = ("rancher.io/local-path", "kubernetes.io/no-provisioner")
# The topology and its root in topology.yaml; Slurm makes the switches below of each node's own place.
TOPOLOGY, ROOT_SWITCH = "fabric", "root"
_PLACE = "topology.slinky.slurm.net/spec"


class SurveySpec(StrictModel):
    """The request of the step `survey`. `workers`: those that Slurm will hold."""

    namespace: str
    workers: tuple[str, ...]
    storage_class: str | None = None
    accept_state_on_one_node: bool = False
    levels: dict[str, tuple[str, ...]] = Field(default={})
    """Worker -> the labels of its Node that name switches, the farthest first; empty for no topology."""


def survey(api: Api, spec: SurveySpec, *_: object) -> None:
    """The step `survey`: refuse obstacles, else note the places of Nodes. Raises Failed and ApiError."""
    refuse(obstacles(api, spec))
    place(api, spec.levels)


def obstacles(api: Api, spec: SurveySpec) -> Iterator[Finding]:
    """Find what is in the way on the cluster. Raises ApiError."""
    if foreign := not_of_release(crds_of(api, GROUP), CRDS_RELEASE):
        what = f"it has CRDs of {GROUP} that busbar did not install: {listed(foreign)}"
        fix = "leave this stack out; or first remove that Slurm with its jobs, its operator and its CRDs"
        yield Finding((CLUSTER,), what, fix)
    # The pods of Slurm, which need all GPUs of a node, would stay pending.
    held = held_by([pod for pod in active_pods(api) if pod["metadata"]["namespace"] != spec.namespace])
    for worker in spec.workers:
        if names := sorted(held.get(worker, {}).get(GPU_RESOURCE, {})):
            what = f"{GPU_RESOURCE} is held by {listed(names)}, and Slurm needs all GPUs of a node"
            fix = "wait for its end or delete it; or leave the pool out of `pools`"
            if any("/slurm-worker-" in name for name in names):
                fix = "write back `namespace`: these are pods of Slurm itself"
            yield Finding((worker,), what, fix)
    where = ("state", "storage_class")
    yield from without_class(api, spec.storage_class, where)
    chosen = storage_class(api, spec.storage_class)
    if chosen and chosen.get("provisioner") in _OF_ONE_NODE and not spec.accept_state_on_one_node:
        what = "keeps slurmctld's state on one server: all jobs are lost with it"
        fix = "name a class with shared volumes, or set state.accept_state_on_one_node: true"
        yield Finding(where, what, fix, f"{chosen['metadata']['name']} ({chosen['provisioner']})")


def changed_state(slurm: Slurm, api: Api) -> list[Finding]:
    """The changes of slurmctld's volume: a StatefulSet keeps the first one. Raises ApiError."""
    namespace, state, wanted = slurm.namespace, slurm.state, slurm.state.storage_class
    made = find(api, f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{_SLURMCTLD}")
    claims = made["spec"].get("volumeClaimTemplates") or () if made else ()
    kept = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/statesave-{_SLURMCTLD}-0"
    # A destroy leaves the claim, and the next StatefulSet takes it as it is.
    if made is None and (claim := find(api, kept)):
        default = storage_class(api, wanted) or {"metadata": {"name": wanted}}
        claims, wanted = [claim], default["metadata"]["name"]
    fix = f"write back {{first}}; for another volume: busbar destroy {STACK}, kubectl delete namespace "
    fix += f"{namespace}, which ends all jobs, and busbar up {STACK}"
    refused = []
    for each in claims:
        size = each["spec"]["resources"]["requests"]["storage"]
        of_class = each["spec"].get("storageClassName")
        if quantity(size) != quantity(state.size):
            refused.append(refusal(_SLURMCTLD, "state.size", size, state.size, fix))
        if of_class != wanted:
            first, now = (name or "the default class" for name in (of_class, wanted))
            refused.append(refusal(_SLURMCTLD, "state.storage_class", first, now, fix))
    return refused


def place(api: Api, levels: Mapping[str, Sequence[str]]) -> None:
    """Annotate Nodes with their place in the tree of switches, which slurm-operator tells Slurm.

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
