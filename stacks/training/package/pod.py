"""Fields of a pod that trains on whole workers of a pool, shared by the proof's Job and by the runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from busbar.manifests.ncclrun import TRANSPORT_ENV
from busbar.manifests.scheduling import GPU_RESOURCE, worker_tolerations
from busbar.outputs import PoolLaunch
from stacks.training.package import networks
from stacks.training.package.networks import Attachment

HOSTNAME = "kubernetes.io/hostname"
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


def gpu_limits(launch: PoolLaunch) -> dict[str, Any]:
    """All GPUs and HCAs of a worker."""
    return {GPU_RESOURCE: launch.gpus, **launch.resources}


def nccl_env(launch: PoolLaunch, attached: Sequence[Attachment]) -> dict[str, str]:
    """The settings under which the pool's bandwidth was measured, for a pod with these interfaces."""
    return {**networks.nccl_env(attached, launch), **TRANSPORT_ENV.get(launch.transport, {})}


def interface_check(attached: Sequence[Attachment], image: str) -> list[dict[str, Any]]:
    """Init containers: one that fails in a pod that Multus did not attach; its job would run over eth0."""
    if not attached:
        return []
    names = [each.interface for each in attached]
    command = ["sh", "-c", _INTERFACE_CHECK, "interface-check", *names]
    return [
        {
            "name": "interface-check",
            "image": image,
            "command": command,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    ]


def shm(launch: PoolLaunch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of /dev/shm: the runtime's own has 64 MiB, in which NCCL's segments do not fit."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": launch.shm_size}}
    return [volume], [{"name": "shm", "mountPath": "/dev/shm"}]


def host_paths(launch: PoolLaunch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of the devices that the pool's profile needs, such as /dev/gdrdrv."""
    paths = sorted(launch.host_paths.items())
    volumes = [{"name": f"host-{i}", "hostPath": {"path": p, "type": t}} for i, (p, t) in enumerate(paths)]
    return volumes, [{"name": f"host-{i}", "mountPath": p} for i, (p, _) in enumerate(paths)]


def locks_memory(launch: PoolLaunch) -> dict[str, Any]:
    """Fields of a container that registers memory with an HCA.

    Registering locks the memory; without the capability the limit of the runtime applies.
    """
    if launch.transport == "socket":
        return {}
    return {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}


def placement(launch: PoolLaunch) -> dict[str, Any]:
    """Fields of a pod that runs on the workers of the pool, and tolerates their taints."""
    pool = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": sorted(launch.workers)}]}
    return {
        "tolerations": worker_tolerations(launch.taints),
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pool]}}
        },
    }


def close_together(launch: PoolLaunch) -> dict[str, Any]:
    """The part of an affinity that prefers workers near each other: the nearest level weighs most.

    It is for the pods of one JobSet that needs fewer workers than the pool has: the fewer switches between
    two ranks, the better.
    """
    terms = [
        {
            "weight": weight,
            "podAffinityTerm": {
                "labelSelector": {"matchExpressions": [{"key": JOBSET_LABEL, "operator": "Exists"}]},
                "matchLabelKeys": [JOBSET_LABEL],
                "topologyKey": level,
            },
        }
        for weight, level in enumerate(launch.topology or (), 1)
    ]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}} if terms else {}
