"""Checks the NFS server that busbar makes, and whether workers can mount from it."""

from __future__ import annotations

from collections.abc import Iterator

from busbar.config.types import ip_of
from busbar.finding import Finding, error, of_host, warning
from busbar.hosts import nfs, supported_os
from busbar.hosts.inventory import Host
from busbar.preflight.report import NfsFolder, Report
from busbar.preflight.spec import NfsRequirements

# `ss` shows this for a socket of the kernel, such as nfsd's.
KERNEL = "?"


def check_nfs(required: NfsRequirements | None, host: Host, report: Report) -> list[Finding]:
    """The findings of the NFS server, or of a worker; empty without a configured NFS server."""
    checks: list[Finding] = []
    if required and host.name == required.host:
        checks += check_server(required, report)
    if required and host.role == "worker":
        checks += check_client(required, host, report)
    return of_host(host.name, checks)


def check_server(required: NfsRequirements, report: Report, section: str = "nfs_server") -> Iterator[Finding]:
    """Check the host that exports the folder of SECTION, a section of the configuration."""
    folder = report.nfs_folder
    if folder is None:
        yield error("report has no NFS folder", "run preflight again: the report is incomplete")
        return
    yield from _folder(required, folder, section)
    for listener in report.listening:
        if listener.port == nfs.PORT and listener.process != KERNEL and not folder.managed:
            yield error(
                f"TCP port {nfs.PORT} is in use by {listener.process}, which is not the kernel's NFS server",
                f"stop {listener.process}, or use another host as NFS server",
            )


def _folder(required: NfsRequirements, folder: NfsFolder, section: str) -> Iterator[Finding]:
    where = required.folder
    if folder.kind == "link":
        what = f"{where} is reached through a symbolic link, which may lead to files of the system"
        yield error(what, f"set {section}.folder to where it leads (readlink -f)")
    elif folder.kind == "other":
        yield error(f"{where} is not a folder", f"set {section}.folder to another one")
    if folder.foreign_exports:
        yield error(
            f"{where} is exported already ({', '.join(folder.foreign_exports)}), so other hosts reach it",
            f"set {section}.folder to another folder, or remove that export",
        )
    if folder.system_disk and not required.allow_system_disk:
        yield error(
            f"{where} is on the disk of the operating system: jobs can fill it, and a worker that forges "
            "file handles reaches other files there",
            f"mount a disk there, or set {section}.allow_system_disk: true",
        )
    if folder.free_bytes < required.min_free_gb * 1e9:
        # Checkpoints fill the folder later, and that must not block updates of the cluster.
        finding = warning if folder.managed else error
        what = f"{folder.free_bytes / 1e9:.1f} GB free for {where}, expected {required.min_free_gb} GB"
        yield finding(what, f"free some space, mount a larger disk there, or lower {section}.min_free_gb")
    if required.squash != "none" and folder.kind == "folder" and not folder.writable:
        who = "pods" if required.squash == "all" else "pods that run as root"
        yield warning(
            f"{where} is not writable for nobody, as whom {who} write ({section}.squash: {required.squash})",
            f"chown 65534:65534 {where}, or chmod 1777 {where}",
        )


def check_client(required: NfsRequirements, host: Host, report: Report) -> Iterator[Finding]:
    """Check a host that mounts the folder."""
    client = report.nfs_client
    if client is None:
        yield error("report has no NFS client", "run preflight again: the report is incomplete")
        return
    if not client.installed:
        what = "mount.nfs is not installed: the export of the NFS server cannot be mounted"
        yield error(what, supported_os.install(report.os, supported_os.NFS_CLIENT) or "install an NFS client")
    if "ip" in report.missing_tools:
        return  # The route is unknown.
    if not client.source:
        what = f"no route to the NFS server {required.address}"
        yield error(what, "correct the address of the NFS server, or route this host there")
    elif ip_of(host.address) and client.source != host.address:
        yield error(
            f"reaches the NFS server {required.address} from its address {client.source}; the folder is "
            f"exported to {host.address} only",
            "give the NFS server an address in the network of the workers' addresses",
        )
