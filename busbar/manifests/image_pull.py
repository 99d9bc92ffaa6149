"""The Jobs that pull the image of a measurement on the workers of a pool, while the operators install.

One Job per node: a Job over all of them would end for all at its first failed pod, and its later pods could
go to nodes whose pod has ended already, because a pod that has ended keeps no other one away.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from busbar.config.cluster import Taint
from busbar.manifests.names import job_name
from busbar.manifests.nccljob import NcclJob
from busbar.manifests.scheduling import pod_on
from busbar.models import StrictModel

# K3s removes a Job and its pod this long after its end.
KEPT_SECONDS = 60


class ImagePull(StrictModel):
    """An image and where it is needed; the JSON that `busbar nccl pull-image` reads on stdin."""

    pool: str
    namespace: str
    image: str
    nodes: tuple[str, ...] = Field(min_length=1, description="Names of the Nodes.")
    taints: tuple[Taint, ...] = Field((), description="Taints of the pool.")
    deadline_seconds: int = Field(gt=0, description="How long a node may take.")

    @classmethod
    def of(cls, job: NcclJob) -> ImagePull:
        """What `job` needs. A node may take as long as the measurement, which would wait for it."""
        return cls(**{name: getattr(job, name) for name in cls.model_fields})

    @property
    def path(self) -> str:
        """The collection of its Jobs."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"


def render(pull: ImagePull) -> list[dict[str, Any]]:
    """The Jobs (batch/v1), one per node. The name depends on pool, image and node only."""
    return [_job(pull, node) for node in pull.nodes]


def _job(pull: ImagePull, node: str) -> dict[str, Any]:
    content = {"pool": pull.pool, "image": pull.image, "node": node}
    # No GPUs, no HCAs and no RuntimeClass: the operators that bring these are not there yet.
    container = {"name": "image", "image": pull.image, "command": ["true"]}
    labels = {"busbar/pool": pull.pool}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(f"{pull.pool}-image", content),
            "namespace": pull.namespace,
            "labels": {"app.kubernetes.io/managed-by": "busbar", **labels},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": pull.deadline_seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", **pod_on([node], pull.taints, container)},
            },
        },
    }
