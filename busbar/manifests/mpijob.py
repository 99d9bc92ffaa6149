"""The MPIJob of one measurement, as a plain dict (kubeflow.org/v2beta1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from busbar.manifests import groups
from busbar.manifests.launcher import LAUNCHER, NODE_FILE, script
from busbar.manifests.names import job_name
from busbar.manifests.nccljob import TOPOLOGY_FOLDER, NcclJob
from busbar.manifests.scheduling import GPU_RESOURCE, HCA_CHECK, HOSTNAME, NODE_ENV, REQUIRED, pod_on

API_VERSION = "kubeflow.org/v2beta1"
KIND = "MPIJob"
CONTAINER = "nccl"
JOB_LABEL = "training.kubeflow.org/job-name"
ROLE_LABEL = "training.kubeflow.org/job-role"
POOL_LABEL = "busbar/pool"
SSH_PORT = 22

# sshd needs its folder and host keys, which a small image may lack; StrictModes would refuse the key that
# the operator mounts from a Secret, because of the symlinks in such a volume.
_SSHD = "mkdir -p /run/sshd && ssh-keygen -A >/dev/null && exec /usr/sbin/sshd -De -o StrictModes=no"


def nodes_of(job: Mapping[str, Any]) -> tuple[str, ...]:
    """The Nodes of an MPIJob's workers. Raises KeyError and ValueError for one that was not rendered here."""
    affinity = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity[REQUIRED]["nodeSelectorTerms"]
    [expression] = term["matchExpressions"]
    return tuple(expression["values"])


def render(job: NcclJob) -> dict[str, Any]:
    """The manifest. Its name carries a digest of the job's request, and not of the texts in it."""
    name = job_name(job.pool, {**job.request, "launcher": LAUNCHER})
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {"app.kubernetes.io/managed-by": "busbar", POOL_LABEL: job.pool},
            "annotations": {
                # busbar.collect.spec.settings_of reads them.
                "busbar/versions": json.dumps(dict(job.versions), sort_keys=True),
                "busbar/run": str(job.run),
                **({"busbar/topology-sha256": job.topology.sha256} if job.topology else {}),
            },
        },
        "spec": {
            "slotsPerWorker": job.slots_per_worker,
            # A launcher that starts first would use its only attempt on names that do not resolve yet. That
            # of a stage waits itself, and starts without the workers that do not come.
            "launcherCreationPolicy": "AtStartup" if job.stage else "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "runPolicy": {
                # Workers are deleted when the job ends; the launcher stays, because its pod has the log.
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": job.deadline_seconds,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(job, 1, _launcher(job)),
                "Worker": _replicas(job, len(job.nodes), _worker(job, name)),
            },
        },
    }


def _replicas(job: NcclJob, count: int, pod: dict[str, Any]) -> dict[str, Any]:
    template = {"metadata": {"labels": {POOL_LABEL: job.pool}}, "spec": pod}
    return {"replicas": count, "restartPolicy": "Never", "template": template}


def _launcher(job: NcclJob) -> dict[str, Any]:
    container = {
        "name": CONTAINER,
        "image": job.image,
        "command": ["/bin/bash", "-c", groups.script(job, job.stage) if job.stage else script(job)],
        # One argument each: all of them may be too long for one.
        **({"args": ["busbar", *job.stage.groups]} if job.stage else {}),
        "env": [{"name": key, "value": job.env[key]} for key in sorted(job.env)],
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
    }
    # On the pool's own nodes: these pull the image, which is many GB, for the workers anyway.
    return pod_on(job.nodes, job.taints, container)


def _worker(job: NcclJob, name: str) -> dict[str, Any]:
    limits: dict[str, Any] = {
        GPU_RESOURCE: job.gpus_per_node,
        **job.hca_resources,
        **job.extra_resources,
        **({"memory": job.memory} if job.memory else {}),
    }
    volumes: list[dict[str, Any]] = [
        # The runtime's own /dev/shm has 64 MiB: NCCL's shared-memory segments do not fit.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm_size}}
    ]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if job.topology:
        volumes.append({"name": "topology", "configMap": {"name": job.topology.config_map}})
        mounts.append({"name": "topology", "mountPath": TOPOLOGY_FOLDER, "readOnly": True})
    for index, (path, kind) in enumerate(sorted(job.host_paths.items())):
        volumes.append({"name": f"host-{index}", "hostPath": {"path": path, "type": kind}})
        mounts.append({"name": f"host-{index}", "mountPath": path})
    # A stage goes on without the workers that do not come.
    check = HCA_CHECK if job.hca_resources and not job.stage else ""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": job.image,
        "command": ["/bin/bash", "-c", f'{check}echo "$BUSBAR_NODE" >{NODE_FILE} && {_SSHD}'],
        "env": [dict(NODE_ENV)],
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 2},
        "resources": {"limits": limits},
        "volumeMounts": mounts,
    }
    if job.locks_memory:
        # Registering memory with an HCA locks it; without the capability the limit of the runtime applies.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    pod = pod_on(job.nodes, job.taints, container)
    pod["volumes"] = volumes
    if job.runtime_class:
        pod["runtimeClassName"] = job.runtime_class
    # One worker per node, also where a worker does not ask for all of the node's GPUs.
    workers = {"matchLabels": {JOB_LABEL: name, ROLE_LABEL: "worker"}}
    pod["affinity"]["podAntiAffinity"] = {REQUIRED: [{"labelSelector": workers, "topologyKey": HOSTNAME}]}
    return pod
