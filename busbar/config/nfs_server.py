"""An NFS server that busbar makes on a host, for checkpoints and results of small sites."""

from __future__ import annotations

import posixpath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from busbar.config.kubernetes_values import DnsLabel
from busbar.config.values import Int, Matching, invalid
from busbar.models import ConfigModel

# Folders of the system or of other software: neither they nor a folder below them may be exported.
SYSTEM_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys"),
    *("/tmp", "/usr", "/var/cache", "/var/lib", "/var/log", "/var/mail", "/var/spool", "/var/tmp"),
)
# Folders shared with others: only a folder below them may be exported.
SHARED_FOLDERS = ("/", "/export", "/home", "/media", "/mnt", "/opt", "/srv", "/var")


def _folder(value: str) -> str:
    if posixpath.normpath(value) != value:
        raise invalid("is not a normalised path", posixpath.normpath(value))
    tree = next((each for each in SYSTEM_TREES if f"{value}/".startswith(f"{each}/")), None)
    if tree:
        raise invalid(f"is a system folder (below {tree})", "use a folder of its own, such as /srv/busbar")
    if value in SHARED_FOLDERS:
        below = posixpath.join(value, "busbar")
        raise invalid("is a shared folder", f"use a folder below it, such as {below}")
    return value


ExportedFolder = Annotated[
    str,
    AfterValidator(_folder),
    Matching(r"/|(/[A-Za-z0-9._-]+)+", "an absolute path without spaces, such as /srv/busbar"),
]


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
