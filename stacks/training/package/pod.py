"""Fields of a pod that trains on whole workers of a pool, shared by the proof's Job and by the runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from busbar.manifests.scheduling import GPU_RESOURCE, pod_on
from busbar.outputs import PoolLaunch
from stacks.training.package import networks
from stacks.training.package.networks import Attachment

Fields = dict[str, Any]

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-uid"

TORCHRUN_ENV: Mapping[str, str] = {
    # Otherwise, since torch 2.4, all starts of the ranks share one store and may find the addresses of ranks
    # that have ended (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py): seen with gloo, whose
    # connectFullMesh then failed.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}

_INTERFACE_CHECK = """\
for name; do
  [ -e "/sys/class/net/$name" ] || missing="${missing:-} $name"
done
[ -n "${missing:-}" ] || exit 0
echo "no interface$missing in this pod. Fix: check Multus on its worker, delete the pod"
exit 1
"""


def template(
    launch: PoolLaunch,
    attached: Sequence[Attachment],
    container: Fields,
    volumes: Sequence[Fields] = (),
    *,
    on_gpus: bool = True,
) -> Fields:
    """The template of a pod on a whole worker of the pool, attached to these networks.

    `container`: its fields besides the devices of the worker, which it has if `on_gpus`, and /dev/shm, which
    is larger than the 64 MiB of the runtime: NCCL's segments do not fit in these. `volumes`: its other ones.
    """
    made: list[Fields] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": launch.shm_size}}]
    mounts: list[Fields] = [{"name": "shm", "mountPath": "/dev/shm"}]
    limits: Fields = dict(networks.resources(attached, launch))
    own: Fields = {}
    if on_gpus:
        limits = {GPU_RESOURCE: launch.gpus, **launch.resources, **limits}
        # Devices that the profile needs, such as /dev/gdrdrv.
        for index, (path, kind) in enumerate(sorted(launch.host_paths.items())):
            made.append({"name": f"host-{index}", "hostPath": {"path": path, "type": kind}})
            mounts.append({"name": f"host-{index}", "mountPath": path})
        if launch.transport != "socket":
            # Registering memory with an HCA locks it; without the capability the runtime's limit applies.
            own["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    resources = dict(container.get("resources") or {})
    if limits := {**limits, **resources.get("limits", {})}:
        resources["limits"] = limits
    mounts += container.get("volumeMounts") or ()
    whole = {**container, "resources": resources, "volumeMounts": mounts, **own}
    placed = pod_on(launch.workers, launch.taints, {})
    spec: Fields = {name: placed[name] for name in ("tolerations", "affinity")}
    if on_gpus and launch.runtime_class:
        spec["runtimeClassName"] = launch.runtime_class
    spec |= {"containers": [whole], "volumes": [*made, *volumes]}
    if not attached:
        return {"spec": spec}
    # The annotation by which Multus attaches the pod.
    names = ",".join(f"{each.definition}@{each.interface}" for each in attached)
    return {"metadata": {"annotations": {networks.ANNOTATION: names}}, "spec": spec}


def interface_check(attached: Sequence[Attachment], image: str) -> list[dict[str, Any]]:
    """Init containers: one that fails in a pod that Multus did not attach; its job would run over eth0."""
    name, names = "interface-check", [each.interface for each in attached]
    check = {"name": name, "image": image, "command": ["sh", "-c", _INTERFACE_CHECK, name, *names]}
    return [{**check, "terminationMessagePolicy": "FallbackToLogsOnError"}] if attached else []


def close_together(launch: PoolLaunch) -> dict[str, Any]:
    """The part of an affinity that prefers near workers for a JobSet: the nearest level weighs most."""
    of_jobset = {"matchExpressions": [{"key": JOBSET_LABEL, "operator": "Exists"}]}
    near = {"labelSelector": of_jobset, "matchLabelKeys": [JOBSET_LABEL]}
    terms = [
        {"weight": weight, "podAffinityTerm": {**near, "topologyKey": level}}
        for weight, level in enumerate(launch.topology or (), 1)
    ]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}} if terms else {}
