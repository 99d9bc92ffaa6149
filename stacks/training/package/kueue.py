"""Kueue: the values of its release, and a queue per pool with the devices of its workers as quota.

A job with the label kueue.x-k8s.io/queue-name starts when all its GPUs are free, and is suspended until then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from busbar.manifests.operators import Operator, Values, load, merge
from busbar.manifests.scheduling import worker_tolerations
from stacks.training.package import pod
from stacks.training.package.config import Training
from stacks.training.package.target import Target

API_VERSION = "kueue.x-k8s.io/v1beta2"
_LABELS = {"app.kubernetes.io/managed-by": "busbar"}

KUEUE = Operator(config_key="kueue", release="kueue", namespace="kueue-system")


def values(folder: Path, training: Training) -> Values:
    """`folder`/kueue.yaml, then the controller's configuration, then the stack's own."""
    configuration = yaml.safe_dump(_configuration(training), sort_keys=True)
    derived = {"managerConfig": {"controllerManagerConfigYaml": configuration}}
    return merge(merge(load(folder, KUEUE.release), derived), training.kueue.values)


def _configuration(training: Training) -> dict[str, Any]:
    """The controller's configuration, which the chart takes as one text, with the chart's own defaults."""
    operator = training.training_operator
    kinds = operator.kinds if operator.enabled else []
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "integrations": {
            # Pods, Deployments and StatefulSets are left out: their webhooks would affect every pod.
            "frameworks": [
                "batch/job",
                "jobset.x-k8s.io/jobset",
                "kubeflow.org/mpijob",
                "trainer.kubeflow.org/trainjob",
                *(f"kubeflow.org/{kind.lower()}" for kind in kinds),
            ]
        },
        # A queue only has a quota of devices; a job that also requests others would never be admitted.
        "resources": {"excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage"]},
        # Quota is given to a whole job or not at all; a job that cannot start all pods returns it.
        "waitForPodsReady": {"timeout": f"{training.kueue.pods_ready_seconds}s", "blockAdmission": False},
    }


def flavor(target: Target) -> dict[str, Any]:
    """The ResourceFlavor of a pool: its pods tolerate the pool's taints."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": _name(target), "labels": _LABELS},
        "spec": {"tolerations": worker_tolerations(target.launch.taints)},
    }


def cluster_queue(target: Target, training: Training) -> dict[str, Any]:
    """The ClusterQueue of a pool: all GPUs and HCAs of its workers, for any namespace with a LocalQueue."""
    workers = len(target.launch.workers)
    devices = {name: _times(workers, str(each)) for name, each in pod.gpu_limits(target.launch).items()}
    return {
        "apiVersion": API_VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": _name(target), "labels": _LABELS},
        "spec": {
            "namespaceSelector": {},
            "queueingStrategy": training.kueue.strategy,
            "resourceGroups": [
                {
                    "coveredResources": sorted(devices),
                    "flavors": [
                        {
                            "name": _name(target),
                            "resources": [
                                {"name": name, "nominalQuota": devices[name]} for name in sorted(devices)
                            ],
                        }
                    ],
                }
            ],
        },
    }


def local_queue(target: Target, namespace: str) -> dict[str, Any]:
    """The LocalQueue `<pool>`, which a job in `namespace` refers to."""
    return {
        "apiVersion": API_VERSION,
        "kind": "LocalQueue",
        "metadata": {"name": target.pool, "namespace": namespace, "labels": _LABELS},
        "spec": {"clusterQueue": _name(target)},
    }


def _name(target: Target) -> str:
    return f"busbar-{target.pool}"


def _times(workers: int, quantity: str) -> str:
    """The quantity of all workers, from that of one: a number of devices, or huge pages such as 5120Mi."""
    number = quantity.rstrip("KMGTPEik")
    return f"{int(number) * workers}{quantity[len(number) :]}"
