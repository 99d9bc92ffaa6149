"""The files of the NFS server, and its export."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from busbar.config.cluster import NfsServer
from busbar.hosts.inventory import Host, Inventory

PORT = 2049

# NFSv4 only, which needs one port. The default of 8 to 16 threads is for few clients (nfs.conf(5), nfsd(8)).
CONFIG = "# Written by busbar\n[nfsd]\nvers3=n\nvers4=y\nthreads=64\n"


@dataclass(frozen=True)
class Export:
    """A folder of an NFS server, as a client mounts it: ADDRESS:FOLDER."""

    host: Host
    config: NfsServer

    @property
    def folder(self) -> str:
        """The exported folder, which has the same path below the root of NFSv4."""
        return self.config.folder


def export_of(inventory: Inventory) -> Export | None:
    """The export of the configuration, if there is one."""
    host, config = inventory.nfs_server, inventory.cluster.nfs_server
    return Export(host, config) if host and config else None


def exports(export: Export, workers: Iterable[Host]) -> str:
    """The text of exports(5): a line per worker, so that no one else can mount."""
    config = export.config
    squash = {"all": "all_squash", "root": "root_squash", "none": "no_root_squash"}[config.squash]
    lines = [f"{config.folder} {worker.address}(rw,sync,no_subtree_check,{squash})\n" for worker in workers]
    return "".join(["# Written by busbar\n", *lines])
