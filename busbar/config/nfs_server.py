"""An NFS server that busbar makes on a host, for checkpoints and results of small sites."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from busbar.config.kubernetes_values import DnsLabel
from busbar.config.values import ExportedFolder, Int
from busbar.models import ConfigModel


class NfsServer(ConfigModel):
    """One folder, exported to the workers and to nobody else. busbar never deletes its data."""

    host: DnsLabel | None = Field(
        default=None,
        description="Name of the load balancer or server that exports the folder; by default the host of "
        "hosts.nfs_server.",
    )
    folder: ExportedFolder = Field(
        description="Folder to export; created if missing. Its data stay when the stack is destroyed."
    )
    min_free_gb: Annotated[Int, Field(ge=1)] = Field(
        default=100, description="Free space in GB (10^9 bytes) that the folder's disk must have at first."
    )
    squash: Literal["all", "root", "none"] = Field(
        default="all",
        description="Which users of the workers are nobody in the folder (exports(5)). all: every one, so "
        "that pods of all users share files. root: root, whose pods then need folders that anyone may write. "
        "none: whoever is root in a pod is root in the folder.",
    )
    allow_system_disk: bool = Field(
        default=False,
        description="Allow a folder on the disk of the operating system: jobs can fill it, and a worker that "
        "forges file handles reaches other files there (exports(5), subtree_check).",
    )
