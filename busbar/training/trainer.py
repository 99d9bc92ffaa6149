"""Kubeflow Trainer v2 on a measured cluster: the operator, and a ClusterTrainingRuntime per pool.

Trainer's own runtimes ask for no HCA, lock no memory and tolerate no taint: a job with them falls back to
TCP, or does not start (kubeflow/trainer v2.3.0, manifests/base/runtimes).
"""

from __future__ import annotations

from typing import Any

from busbar.manifests.operators import Operator
from busbar.training import pod
from busbar.training.networks import attach
from busbar.training.target import Target

API_VERSION = "trainer.kubeflow.org/v1alpha1"
KIND = "ClusterTrainingRuntime"
# By these names Trainer finds the container that it gives the command of a TrainJob.
_JOB = _CONTAINER = "node"

TRAINER = Operator(config_key="trainer", release="kubeflow-trainer", namespace="kubeflow-system")


def torch_runtime(target: Target, image: str) -> dict[str, Any]:
    """`busbar-torch-<pool>`: every pod has a whole worker of the pool, as the pool was measured.

    A TrainJob sets `spec.trainer.numNodes`; more nodes than the pool has workers stay pending.
    """
    launch = target.launch
    volumes, mounts = pod.shm(launch)
    more_volumes, more_mounts = pod.host_paths(launch)
    env = {**pod.nccl_env(launch, target.attached), **pod.TORCHRUN_ENV}
    annotations = attach.pod_annotations(target.attached)
    container = {
        "name": _CONTAINER,
        "image": image,
        "env": [{"name": key, "value": env[key]} for key in sorted(env)],
        "resources": {"limits": {**pod.gpu_limits(launch), **attach.resources(target.attached, launch)}},
        "volumeMounts": [*mounts, *more_mounts],
        **pod.locks_memory(launch),
    }
    placement = pod.placement(launch)
    placement["affinity"] |= pod.close_together(launch)
    spec = {
        **placement,
        **({"runtimeClassName": launch.runtime_class} if launch.runtime_class else {}),
        "containers": [container],
        "volumes": [*volumes, *more_volumes],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": f"busbar-torch-{target.pool}",
            "labels": {
                "app.kubernetes.io/managed-by": "busbar",
                "busbar/pool": target.pool,
                # The Kubeflow SDK lists runtimes by it.
                "trainer.kubeflow.org/framework": "torch",
            },
        },
        "spec": {
            "mlPolicy": {"numNodes": len(launch.workers), "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": _JOB,
                            "template": {
                                "metadata": {
                                    "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                                },
                                "spec": {
                                    "template": {
                                        **({"metadata": {"annotations": annotations}} if annotations else {}),
                                        "spec": spec,
                                    }
                                },
                            },
                        }
                    ]
                }
            },
        },
    }
