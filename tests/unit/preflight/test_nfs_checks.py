"""The NFS server before it is made, and the workers that are to mount from it."""

from typing import Any

import pytest

from busbar.finding import Finding
from busbar.preflight.host_checks import check_host
from busbar.preflight.nfs_checks import check_nfs
from busbar.preflight.spec import HostRequirements
from tests.support.reports import CLOCK, report
from tests.unit.preflight.samples import NFS, REQUIRED, a_host, spec

FOLDER = {
    **{"kind": "missing", "foreign_exports": [], "free_bytes": 2 * 10**12},
    **{"system_disk": False, "writable": True, "managed": False},
}


def server(required: Any = NFS, listening: Any = (), **folder: Any) -> list[Finding]:
    found = report(nfs_folder=FOLDER | folder, listening=listening)
    return check_nfs(required, a_host("nfs-1", "nfs"), found)


def test_a_disk_of_its_own_with_room_and_what_is_allowed_has_no_findings() -> None:
    assert server() == []
    assert server(kind="folder") == []
    allowed = NFS.model_copy(update={"allow_system_disk": True, "squash": "none"})
    assert server(allowed, system_disk=True, kind="folder", writable=False) == []
    # The kernel's own server and ours may have the port.
    assert server(listening=[{"port": 2049, "process": "?"}]) == []
    assert server(listening=[{"port": 2049, "process": "x"}], managed=True) == []


@pytest.mark.parametrize(
    ("folder", "level", "what"),
    [
        ({"kind": "link"}, "error", "/srv/busbar is reached through a symbolic link"),
        ({"kind": "other"}, "error", "/srv/busbar is not a folder"),
        ({"foreign_exports": ["/etc/exports: /srv"]}, "error", "is exported already (/etc/exports: /srv)"),
        ({"system_disk": True}, "error", "is on the disk of the operating system"),
        ({"free_bytes": 90 * 10**9}, "error", "90.0 GB free for /srv/busbar, expected 100 GB"),
        ({"free_bytes": 9 * 10**9, "managed": True}, "warning", "9.0 GB free for /srv/busbar"),
        ({"kind": "folder", "writable": False}, "warning", "is not writable for nobody, as whom pods write"),
        (
            {"listening": [{"port": 2049, "process": "ganesha.nfsd"}]},
            "error",
            "2049 is in use by ganesha.nfsd",
        ),
    ],
)
def test_a_folder_that_cannot_be_exported_is_found(folder: dict[str, Any], level: str, what: str) -> None:
    (finding,) = server(**folder)
    assert (finding.host, finding.kind) == ("nfs-1", level)
    assert what in finding.what


def test_where_root_is_nobody_pods_of_root_cannot_write_either() -> None:
    [finding] = server(NFS.model_copy(update={"squash": "root"}), kind="folder", writable=False)
    assert "as whom pods that run as root write (nfs_server.squash: root)" in finding.what


def worker(address: str = "10.0.0.21", **client: Any) -> list[Finding]:
    found = report(nfs_client={"installed": True, "source": "10.0.0.21", **client})
    return check_nfs(NFS, a_host("worker-1", address=address), found)


def test_a_worker_that_can_mount_has_no_findings() -> None:
    assert worker() == []
    assert worker("gpu-1.example", source="10.0.0.21") == [], "the server resolves the name"
    # The route is not judged without the tool that shows it.
    found = report(nfs_client={"installed": True, "source": ""}, missing_tools=["ip"])
    assert check_nfs(NFS, a_host("worker-1", address="10.0.0.21"), found) == []


@pytest.mark.parametrize(
    ("client", "what", "fix"),
    [
        ({"installed": False}, "mount.nfs is not installed", "apt-get install nfs-common"),
        ({"source": ""}, "no route to the NFS server 10.0.0.9", "route this host there"),
        ({"source": "10.1.0.21"}, "10.1.0.21; the folder is exported to 10.0.0.21 only", "in the network of"),
    ],
)
def test_a_worker_that_cannot_mount_is_named(client: dict[str, Any], what: str, fix: str) -> None:
    (finding,) = worker(**client)
    assert (finding.host, finding.kind) == ("worker-1", "error")
    assert what in finding.what
    assert fix in str(finding.fix)


def test_an_incomplete_report_is_an_error_and_without_an_nfs_server_nothing_is_checked() -> None:
    for host in (a_host("nfs-1", "nfs"), a_host("worker-1")):
        (finding,) = check_nfs(NFS, host, report())
        assert finding.kind == "error" and "report has no NFS" in finding.what
    assert check_nfs(None, a_host("worker-1"), report()) == []


def test_a_host_that_is_only_the_nfs_server_needs_nothing_of_a_node() -> None:
    changes = {"default_route": False, "has_node_address": False, "cgroup": "v1"}
    changes |= {"active_units": ["k3s"], "gpus": None, "hcas": []}
    required, host = HostRequirements(min_disk_gb=1), a_host("nfs-1", "nfs")
    assert check_host(host, required, report(**changes), clock=CLOCK) == []


def test_the_server_and_the_workers_are_told_what_to_report() -> None:
    asked = spec(a_host("nfs-1", "nfs"), a_host("worker-1"), a_host("server-1", "server"))
    asked = asked.model_copy(update={"nfs": NFS, "requirements": {**asked.requirements, "nfs": REQUIRED}})
    values = [asked.values(host) for host in asked.hosts]
    assert [each.get("NFS_FOLDER") for each in values] == ["/srv/busbar", None, None]
    assert [each.get("NFS_SERVER") for each in values] == [None, "10.0.0.9", None]
