"""The NFS server: what it exports, what its script refuses, and what a removal leaves."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from busbar.config import load
from busbar.hosts import nfs
from busbar.hosts.inventory import Inventory
from tests.support.bash import Box, output
from tests.support.clusters import host, site

FOLDER = "/srv/busbar"


def export(**changes: Any) -> tuple[nfs.Export, str]:
    """The export of a site, and the text of its exports."""
    cluster = site(workers={"h100": 2}, nfs_server={"folder": FOLDER, **changes})
    if "host" not in changes:
        cluster["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.50")
    inventory = Inventory.of(load(cluster))
    found = nfs.export_of(inventory)
    assert found is not None
    return found, nfs.exports(found, inventory.workers)


@pytest.mark.parametrize(
    ("changes", "squash"),
    [({}, "all_squash"), ({"squash": "root"}, "root_squash"), ({"squash": "none"}, "no_root_squash")],
)
def test_the_folder_is_exported_to_each_worker_only(changes: dict[str, str], squash: str) -> None:
    workers = [f"{FOLDER} 198.18.0.{n}(rw,sync,no_subtree_check,{squash})" for n in (2, 3)]
    assert export(**changes)[1].splitlines() == ["# Written by busbar", *workers]


def test_the_server_is_a_host_of_its_own_or_one_that_is_named() -> None:
    own, shared = export()[0].host, export(host="lb-1")[0].host
    assert (own.name, own.role, own.address) == ("nfs-1", "nfs", "192.0.2.50")
    assert (shared.name, shared.role) == ("lb-1", "lb")
    assert nfs.export_of(Inventory.of(load(site()))) is None


# A host with the package, whose exportfs reads the files as the real one does. Its other disk is /proc's.
SERVER = """
NFS_EXPORTS=$ROOT/exports.d/busbar.exports NFS_CONFIG=$ROOT/nfs.conf.d/busbar.conf NFS_STATE_DIR=$STATE_DIR
EXPORTS=$ROOT/exports EXPORTS_DIR=$ROOT/exports.d CLIENTS=$ROOT/clients FOLDER=$ROOT/data SYSTEM_ROOT=/proc
mkdir -p $EXPORTS_DIR
package_installed() { [[ -e $ROOT/package ]]; }
package_install() { touch $ROOT/package; }
package_purge() { echo "purge $1" >>$ROOT/log; }
systemctl() {
  if [[ $1 == is-active && ! -e $ROOT/running ]]; then
    [[ $2 == --quiet ]] || echo inactive
    return 3
  fi
  echo "$*" >>$ROOT/log
  [[ $1 != start ]] || touch $ROOT/running
  [[ $1 != disable ]] || rm -f $ROOT/running
}
exportfs() { if [[ $1 == -s ]]; then grep ^/ "$NFS_EXPORTS"; else echo "exportfs $*" >>$ROOT/log; fi; }
chown() { echo "chown $*" >>$ROOT/log; }
timeout() { shift; "$@"; }
ALLOW_SYSTEM_DISK=false SQUASH=all LEASE_DEADLINE=0
"""
EXPORTS, CONFIG = "exports.d/busbar.exports", "nfs.conf.d/busbar.conf"
OWNER = {"OWNER": "o", "INSTALL_ID": "1"}
ON_SYSTEM_DISK = "SYSTEM_ROOT=$ROOT; "


CLIENTS = ("10.0.0.21", "10.0.0.22")


def install(box: Box, prelude: str = "", clients: Sequence[str] = CLIENTS, *, folder: str = "data") -> Any:
    """The facts of an update, or its error."""
    lines = ["# Written by busbar", *(f"{box.root}/{folder} {client}(rw,sync)" for client in clients), ""]
    payload = {"exports": "\n".join(lines), "nfs_conf": "conf\n"}
    done = box.run("nfs-server", f"{SERVER}{prelude}install_server", payload, **OWNER)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.fixture
def server(box: Box) -> Box:
    """A host on which busbar has installed the server; its log begins afterwards."""
    install(box)
    box.write("log")
    return box


def test_an_installation_makes_the_folder_and_exports_it(box: Box) -> None:
    assert install(box) == {"node": "worker-1", "folder": f"{box.root}/data", "clients": 2}
    log = box.read("log").splitlines()
    assert f"chown 65534:65534 {box.root}/data" in log and "enable -q nfs-server" in log
    assert log.index("start nfs-server") < log.index("exportfs -ra")
    assert box.read(CONFIG) == "conf\n"


@pytest.mark.parametrize(
    ("values", "mode"), [("", 0o770), ("SQUASH=root; ", 0o1777), ("SQUASH=root; FOLDER_MODE=2750; ", 0o2750)]
)
def test_a_folder_for_many_users_is_like_tmp_or_as_configured(box: Box, values: str, mode: int) -> None:
    install(box, values)
    assert box.mode("data") == mode


def test_other_workers_change_the_exports_without_a_restart(server: Box) -> None:
    assert install(server, clients=("10.0.0.22",))["clients"] == 1
    log = server.read("log")
    assert "exportfs -ra" in log
    assert "start" not in log, "neither start nor restart"
    assert "10.0.0.21" not in server.read(EXPORTS)


def test_a_worker_that_leaves_has_its_files_until_it_is_drained(server: Box) -> None:
    clients, stay = ("10.0.0.22", "10.0.0.23"), "FORMER=stay; "
    assert [install(server, each, clients)["clients"] for each in (stay, stay, "")] == [3, 3, 2]
    assert install(server, f"{stay}FOLDER=$ROOT/other; ", CLIENTS, folder="other")["clients"] == 2


def test_an_existing_folder_and_a_server_of_the_site_stay_as_they_are(box: Box) -> None:
    box.write("data/checkpoint", "x").parent.chmod(0o750)
    box.write("package")
    install(box)
    assert (box.mode("data"), box.read("data/checkpoint")) == (0o750, "x")
    assert not box.has("nfs.conf.d")
    assert not box.has("state/nfs-kernel-server.installed")


@pytest.mark.parametrize(
    ("line", "foreign"),
    [
        ("{}/data *(ro)", True),
        ('"{}" 10.0.0.0/8(rw)', True),
        ("/ 10.0.0.9(rw)", True),
        # These are of other folders, also below it.
        ("{0}/data2 *(rw)\n{0}/data/below *(ro)", False),
    ],
)
def test_a_folder_that_the_site_exports_is_refused(box: Box, line: str, foreign: bool) -> None:
    text = f"# of the site\n/srv/homes *(ro)\n{line.format(box.root)}\n"
    box.write("exports", text)
    assert ("data is exported already" in install(box)) is foreign
    assert box.read("exports") == text


@pytest.mark.parametrize(
    ("prelude", "error"),
    [
        ("ln -s /proc $ROOT/data; ", "is reached through a symbolic link: it is /proc"),
        ("touch $ROOT/data; ", "data is not a folder"),
        (ON_SYSTEM_DISK, "is on the disk of the operating system"),
    ],
)
def test_another_kind_of_folder_is_refused_at_once(box: Box, prelude: str, error: str) -> None:
    assert error in install(box, prelude)
    assert not box.has("state") and not box.has("package")


@pytest.mark.parametrize(
    ("prelude", "options"),
    [
        ("DISK=/srv; ", "(mp=/srv,rw,sync)"),
        ("DISK='/with space'; ", "(rw,sync)"),  # exports(5) has no such path
        (f"DISK=/; {ON_SYSTEM_DISK} ALLOW_SYSTEM_DISK=true; ", "(rw,sync)"),
    ],
)
def test_a_disk_of_its_own_is_exported_only_while_it_is_mounted(box: Box, prelude: str, options: str) -> None:
    install(box, f"df() {{ printf 'Mounted on\\n%s\\n' \"$DISK\"; }}; {prelude}")
    assert f"{box.root}/data 10.0.0.21{options}\n" in box.read(EXPORTS)


def test_a_worker_that_exportfs_left_out_fails_the_installation(box: Box) -> None:
    lost = "exported_clients() { echo 10.0.0.21; }; "
    assert "data is exported to 10.0.0.21, expected 10.0.0.21, 10.0.0.22" in install(box, lost)


def remove(box: Box) -> subprocess.CompletedProcess[str]:
    return box.run("nfs-server", SERVER + "remove_server", **OWNER)


def test_a_removal_ends_the_export_and_leaves_the_data(server: Box) -> None:
    server.write("data/checkpoint", "x")
    done = remove(server)
    assert json.loads(done.stdout) == {"node": "worker-1", "removed": True}
    assert f"{server.root}/data is no longer exported; its data stay on this host" in done.stderr
    assert server.read("data/checkpoint") == "x"
    assert not server.has(EXPORTS) and not server.has(CONFIG)
    assert "purge nfs-kernel-server" in server.read("log")
    assert json.loads(remove(server).stdout)["removed"] is False, "the second time nothing is done"


@pytest.mark.parametrize("package_of_the_site", [True, False])
def test_a_removal_leaves_what_the_site_exports(box: Box, package_of_the_site: bool) -> None:
    if package_of_the_site:
        box.write("package")
    install(box)
    box.write("exports", "/srv/homes *(ro)\n")
    assert json.loads(remove(box).stdout)["removed"] is True
    assert "purge" not in box.read("log") and "disable" not in box.read("log")
    assert box.read("exports") == "/srv/homes *(ro)\n"


@pytest.mark.parametrize(
    ("address", "status", "holds"),
    [
        ("10.0.0.21:893", "confirmed", "10.0.0.21"),
        ("[fd00::21]:893", "confirmed", "fd00::21"),
        ("10.0.0.21:893", "courtesy", ""),
        ("10.9.9.9:893", "confirmed", ""),  # of another export
    ],
)
def test_a_removal_names_workers_that_still_mount_it(box: Box, address: str, status: str, holds: str) -> None:
    install(box, clients=("10.0.0.21", "fd00::21"))
    # /proc/fs/nfsd/clients/N/info shows a client like this.
    text = f'clientid: 0x6d077c99675df2b1\naddress: "{address}"\nstatus: {status}\n'
    box.write("clients/1/info", f'{text}seconds from last renew: 3\nname: "Linux NFSv4.2 gpu-1"\n')
    done = remove(box)
    assert (done.returncode, box.has(EXPORTS)) == ((1, True) if holds else (0, False)), "no changes made"
    assert (f"data is still mounted by {holds}. Fix: unmount it there" in done.stderr) is bool(holds)


def test_another_folder_is_refused_while_workers_have_the_former_one_mounted(server: Box) -> None:
    """Files of their jobs would be stale."""
    client, exported = 'address: "10.0.0.21:893"\nstatus: confirmed\n', server.read(EXPORTS)
    server.write("clients/1/info", client)
    assert install(server)["clients"] == 2
    said = install(server, "FOLDER=$ROOT/other; ", folder="other")
    assert f"{server.root}/data is still mounted by 10.0.0.21. Fix: unmount it there" in said
    assert (server.read(EXPORTS), server.has("other")) == (exported, False)
    server.write("clients/1/info")
    assert install(server, "FOLDER=$ROOT/other; ", folder="other")["folder"] == f"{server.root}/other"


def test_preflight_reports_the_folder_and_changes_nothing(box: Box) -> None:
    def reported() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(box.output("preflight", SERVER + "nfs_folder $FOLDER"))
        assert found.pop("free_bytes") > 0
        return found

    box.write("exports", f"{box.root} *(rw)\n")
    foreign = {"foreign_exports": [f"{box.root}/exports: {box.root}"], "system_disk": False}
    assert reported() == {"kind": "missing", "writable": True, "managed": False, **foreign}
    assert not box.has("data")
    (box.root / "data").mkdir(mode=0o755)
    box.write("state/owner", "role=NFS server\n")
    assert reported() == {"kind": "folder", "writable": False, "managed": True, **foreign}


@pytest.mark.parametrize(
    ("ip", "command", "server", "found"),
    [
        ("echo '10.0.0.9 dev eth1 src 10.0.0.21 uid 0 \\    cache'", "true", "10.0.0.9", (True, "10.0.0.21")),
        ("return 2", "false", "10.0.0.9", (False, "")),
        ("return 2", "false", "", (False, "")),
    ],
)
def test_preflight_reports_whether_a_worker_can_mount(
    ip: str, command: str, server: str, found: tuple[bool, str]
) -> None:
    call = f"ip() {{ {ip}; }}; command() {{ {command}; }}; nfs_client '{server}'"
    assert json.loads(output("preflight", call)) == {"installed": found[0], "source": found[1]}


def test_a_server_of_the_cluster_that_installs_k3s_does_not_hold_up_its_nfs_server(box: Box) -> None:
    held = "begin() { LOCK_DEADLINE=0; }; LOCK_FILE=$ROOT/busbar.lock; exec 7>$LOCK_FILE; flock 7; "
    done = box.output("nfs-server", held + "install_server() { echo installed; }; main", VERB="install")
    assert done == "installed\n"


def test_two_steps_of_the_nfs_server_do_not_run_at_once(box: Box) -> None:
    begin = "begin() { LOCK_FILE=$ROOT/busbar.lock LOCK_DEADLINE=0; }; "
    other = "install_server() { echo installed; begin; (exec 9>&-; main) || true; }; "
    done = box.run("nfs-server", f"{begin}{other}main", VERB="install")
    assert done.stdout == "installed\n"
    assert "another busbar step is still running" in done.stderr
