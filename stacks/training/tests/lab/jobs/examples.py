"""The examples as a user of the lab would change them: its image, its devices, its shared folder."""

from typing import Any

import yaml

from tests.support.lab import PROJECT

EXAMPLES = PROJECT / "stacks" / "training" / "examples"
IMAGE = "busbar-lab/torch:1"
# Of every host. User 1000 of mpirun's jobs writes there too.
FOLDER = "/mnt/shared/examples-drill"
_CHANGES = {
    "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime": IMAGE,
    "ghcr.io/kubeflow/trainer/deepspeed-runtime:v2.3.0": IMAGE,
    "nvidia.com/gpu: 8, nvidia.com/hostdev: 8, memory: 512Gi": (
        "nvidia.com/gpu: 2, nvidia.com/hostdev: 2, memory: 2Gi"
    ),
    "limits: {cpu: 2, memory: 4Gi}": "limits: {memory: 512Mi}",
    "sizeLimit: 64Gi": "sizeLimit: 256Mi",
    "persistentVolumeClaim: {claimName: CLAIM}": f"hostPath: {{path: {FOLDER}, type: Directory}}",
    "busbar-deepspeed-h100": "busbar-deepspeed-lab",
    'nprocPerNode: "8"': 'nprocPerNode: "2"',
    "slotsPerWorker: 8": "slotsPerWorker: 2",
    "-np 16": "-np 4",
}
_TERM = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["worker-1", "worker-2"]}
_TERMS = {"nodeSelectorTerms": [{"matchExpressions": [_TERM]}]}
_ON_WORKERS = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _TERMS}}


def adapted(name: str) -> dict[str, Any]:
    """The example `name` for the lab. Nothing else in it is changed."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for ours, lab in _CHANGES.items():
        text = text.replace(ours, lab)
    job = yaml.safe_load(text)
    assert isinstance(job, dict)
    for replica in (job["spec"].get("mpiReplicaSpecs") or {}).values():
        # A site's nodes pull the image; the lab has it on the workers, where the launcher needs no device.
        replica["template"]["spec"].setdefault("affinity", {}).update(_ON_WORKERS)
    return job


def program(name: str, file: str) -> dict[str, Any]:
    """The ConfigMap `name` with a program of the examples."""
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {file: text}}
