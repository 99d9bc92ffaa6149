"""`storage` of `busbar-training:training`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from busbar.config.findings import Finding, show
from busbar.config.types import (
    Address,
    Bytes,
    DnsLabel,
    DnsSubdomain,
    Float,
    Matching,
    Quantity,
    Seconds,
    invalid,
)
from busbar.models import ConfigModel

FolderPath = Annotated[
    str,
    Matching(r"(/[A-Za-z0-9._-]+)+", "an absolute path without spaces, such as /mnt/shared"),
]
ExportPath = Annotated[
    str, Matching(r"/|(/[A-Za-z0-9._-]+)+", "the path of an export without spaces, such as /srv/checkpoints")
]

# Limit of the option nconnect (nfs(5)).
MAX_NCONNECT = 16


def _server(value: str) -> str:
    if re.search(r"\.svc(\.|$)|\.cluster\.local$", value):
        raise invalid(
            "is the name of a Service: the host mounts, and it does not resolve names of the cluster",
            "give the address of the server",
        )
    return value


def _option(value: str) -> str:
    """Refuse options that can lose a checkpoint or fail on every host; the source is nfs(5)."""
    name, _, number = value.partition("=")
    if name in ("soft", "softerr"):
        raise invalid("gives up a write when the server is slow: the checkpoint is corrupt", "use hard")
    if name == "ro":
        raise invalid("mounts for reading only: checkpoints are written")
    if name == "nconnect" and not (number.isdigit() and 1 <= int(number) <= MAX_NCONNECT):
        raise invalid(f"is out of bounds: expected 1 to {MAX_NCONNECT} connections")
    return value


MountOption = Annotated[
    str,
    AfterValidator(_option),
    Matching(r"[a-z][a-z0-9_]*(=[A-Za-z0-9._:/-]+)?", "one mount option, such as hard or nconnect=8"),
]


class Nfs(ConfigModel):
    """An export of an NFS server that every worker reaches: any one, or that of the cluster's stack."""

    from_cluster: bool = Field(
        default=False, description="Take server and export from the output nfs_server of the cluster."
    )
    server: Annotated[Address, AfterValidator(_server)] | None = Field(
        default=None, description="Address of the server, or a name that the hosts resolve."
    )
    export: ExportPath | None = Field(
        default=None, description="Exported folder; with NFSv4, below the server's root."
    )
    options: list[MountOption] = Field(
        default=["nfsvers=4.2", "hard", "noatime", "nconnect=8"],
        description="Mount options; a list replaces these. nconnect needs Linux 5.3 on the workers.",
    )


class Storage(ConfigModel):
    """Storage that all workers share: checkpoints are on it, and the run proves that it is shared."""

    mode: Literal["none", "path", "class", "nfs"] = Field(
        default="none",
        description="none: checkpoints are local to the first pod. path: a file system that every worker has "
        "mounted at the same place, such as Lustre, WEKA or NFS. class: a claim of a StorageClass. nfs: an "
        "export of an NFS server.",
    )
    path: FolderPath | None = Field(
        default=None, description="Folder on that file system; it must exist on every worker. For mode path."
    )
    class_name: DnsSubdomain | None = Field(
        default=None,
        description="StorageClass whose volumes many nodes may mount for writing. For mode class.",
    )
    size: Quantity | None = Field(default=None, description="Size of the claim. For mode class.")
    nfs: Nfs | None = Field(default=None, description="The export. For mode nfs.")
    claim: DnsLabel = Field(
        default="shared",
        max_length=40,
        description="First part of the name of the PersistentVolumeClaim. For modes class and nfs.",
    )
    bind_timeout_seconds: Seconds = Field(
        default=300, description="Time until the claim must be bound, in seconds. For modes class and nfs."
    )
    probe_bytes: Bytes = Field(
        default=256 << 20,
        description="Size of the file that each worker writes and another one reads; each within "
        "proof.collective_timeout_seconds.",
    )
    min_write_mib_s: Annotated[Float, Field(ge=0)] = Field(
        default=0, description="MiB/s that the slowest worker must write while all write; 0: not judged."
    )
    min_read_mib_s: Annotated[Float, Field(ge=0)] = Field(
        default=0, description="MiB/s that the slowest worker must read while all read; 0: not judged."
    )

    @property
    def is_shared(self) -> bool:
        """Whether all workers see the same files."""
        return self.mode != "none"

    @property
    def has_claim(self) -> bool:
        """Whether pods mount the storage by a PersistentVolumeClaim of this stack."""
        return self.mode in ("class", "nfs")

    @property
    def keeps_claim(self) -> bool:
        """Whether a destroy leaves the claim, because only the claim leads to the data."""
        return self.mode == "class"


_KEYS: dict[str, tuple[tuple[str, str], ...]] = {
    "none": (),
    "path": (("path", "name the folder that all workers share"),),
    "class": (
        ("class_name", "name a StorageClass of the cluster (kubectl get storageclass)"),
        ("size", "give a size such as 10Ti"),
    ),
    "nfs": (("nfs", "give nfs.server and nfs.export, or nfs.from_cluster: true"),),
}
"""mode -> the keys that it needs, each with the fix if it is missing."""
_OF_CLAIMS = ("claim", "bind_timeout_seconds")


def findings(storage: Storage) -> Iterator[Finding]:
    """The checks that no value can make on its own: keys that a mode lacks, or does not use."""
    for key, fix in _KEYS[storage.mode]:
        if getattr(storage, key) is None:
            yield Finding(("storage", key), f"missing: storage.mode is {storage.mode}", fix)
    modes = {key: [mode] for mode, keys in _KEYS.items() for key, _ in keys}
    modes |= {key: ["class", "nfs"] for key in _OF_CLAIMS}
    for key, users in modes.items():
        value = getattr(storage, key)
        if key in storage.model_fields_set and value is not None and storage.mode not in users:
            what, fix = f"is not used: storage.mode is {storage.mode}", f"set storage.mode: {users[0]}"
            yield Finding(("storage", key), what, fix, "" if key == "nfs" else show(value))
    if storage.nfs:
        yield from _source(storage.nfs)
        names = [option.partition("=")[0] for option in storage.nfs.options]
        # vers and nfsvers are names of one option (nfs(5)).
        names = ["nfsvers" if name == "vers" else name for name in names]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                yield Finding(("storage", "nfs", "options"), f"{name} is given {names.count(name)} times")


def _source(nfs: Nfs) -> Iterator[Finding]:
    """Check that either server and export are given, or the cluster's are used."""
    for key, value in (("server", nfs.server), ("export", nfs.export)):
        if nfs.from_cluster and value is not None:
            text = "is given together with from_cluster"
            yield Finding(("storage", "nfs", key), text, "remove one of the two", show(value))
        if not nfs.from_cluster and value is None:
            yield Finding(
                ("storage", "nfs", key), "missing", "give it, or set storage.nfs.from_cluster: true"
            )
