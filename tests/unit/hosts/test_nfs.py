"""The NFS server: what it exports, what its script refuses, and what a removal leaves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from busbar.config import load
from busbar.hosts import nfs
from busbar.hosts.inventory import Inventory
from tests.support.clusters import host, site
from tests.unit.hosts.bash import output, run

FOLDER = "/srv/busbar"


def inventory(**changes: Any) -> Inventory:
    cluster = site(workers={"h100": 2}, nfs_server={"folder": FOLDER, **changes})
    if "host" not in changes:
        cluster["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.50")
    return Inventory.of(load(cluster))


def exports(**changes: Any) -> str:
    with_server = inventory(**changes)
    export = nfs.export_of(with_server)
    assert export is not None
    return nfs.exports(export, with_server.workers)


def test_the_folder_is_exported_to_each_worker_and_to_nobody_else() -> None:
    options = "(rw,sync,no_subtree_check,all_squash)"
    assert exports().splitlines() == [
        "# Written by busbar",
        f"{FOLDER} 198.18.0.2{options}",
        f"{FOLDER} 198.18.0.3{options}",
    ]
    assert ",root_squash)" in exports(squash="root")
    assert ",no_root_squash)" in exports(squash="none")


def test_the_server_is_a_host_of_its_own_or_one_that_is_named() -> None:
    own, shared = nfs.export_of(inventory()), nfs.export_of(inventory(host="lb-1"))
    assert own is not None
    assert (own.host.name, own.host.role, own.host.address) == ("nfs-1", "nfs", "192.0.2.50")
    assert shared is not None
    assert (shared.host.name, shared.host.role) == ("lb-1", "lb")
    assert nfs.export_of(Inventory.of(load(site()))) is None


def places(root: Path) -> str:
    """The system's files and the folder, on copies; the host's other disk is /proc's."""
    (root / "exports.d").mkdir(exist_ok=True)
    names = {
        "NFS_EXPORTS": "exports.d/busbar.exports",
        "NFS_CONFIG": "nfs.conf.d/busbar.conf",
        "NFS_STATE_DIR": "state",
        "EXPORTS": "exports",
        "EXPORTS_DIR": "exports.d",
        "CLIENTS": "clients",
        "FOLDER": "data",
        "STATE_DIR": "state",
    }
    return "".join(f"{name}={root}/{path}; " for name, path in names.items()) + "SYSTEM_ROOT=/proc; "


# A host with the package, whose exportfs reads the files as the real one does.
SYSTEM = """
LOG=$(dirname "$NFS_STATE_DIR")/log
package_installed() { [[ -e $(dirname "$NFS_STATE_DIR")/package ]]; }
package_install() { touch "$(dirname "$NFS_STATE_DIR")/package"; }
package_purge() { echo "purge $1" >>"$LOG"; }
systemctl() {
  if [[ $1 == is-active && ! -e $NFS_STATE_DIR/running ]]; then
    [[ $2 == --quiet ]] || echo inactive
    return 3
  fi
  echo "$*" >>"$LOG"
  [[ $1 != start ]] || touch "$NFS_STATE_DIR/running"
  [[ $1 != disable ]] || rm -f "$NFS_STATE_DIR/running"
}
exportfs() {
  if [[ $1 == -s ]]; then grep ^/ "$NFS_EXPORTS"; else echo "exportfs $*" >>"$LOG"; fi
}
chown() { echo "chown $*" >>"$LOG"; }
timeout() { shift; "$@"; }
ALLOW_SYSTEM_DISK=false SQUASH=all
"""


def installed(root: Path, clients: tuple[str, ...] = ("10.0.0.21", "10.0.0.22"), call: str = "") -> Any:
    """`install_server`, as an update runs it; the facts, or the error."""
    lines = ["# Written by busbar", *(f"{root}/data {client}(rw,sync)" for client in clients)]
    (root / "payload").write_text("\n".join(lines) + "\n")
    payload = f"payload() {{ if [[ $1 == exports ]]; then cat {root}/payload; else echo conf; fi; }}; "
    program = places(root) + SYSTEM + payload + call + "install_server"
    done = run("nfs-server", program, OWNER="o", INSTALL_ID="1")
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def test_an_installation_makes_the_folder_and_exports_it(tmp_path: Path) -> None:
    facts = installed(tmp_path)
    assert facts == {"node": "worker-1", "folder": f"{tmp_path}/data", "clients": 2}
    assert "chown 65534:65534" in (tmp_path / "log").read_text()
    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o770
    assert (tmp_path / "nfs.conf.d/busbar.conf").read_text() == "conf\n"
    log = (tmp_path / "log").read_text().splitlines()
    assert log.index("start nfs-server") < log.index("exportfs -ra")
    assert "enable -q nfs-server" in log


@pytest.mark.parametrize(("values", "mode"), [("", 0o1777), ("FOLDER_MODE=2750; ", 0o2750)])
def test_a_folder_for_pods_of_many_users_is_like_tmp_or_as_configured(
    tmp_path: Path, values: str, mode: int
) -> None:
    installed(tmp_path, call=f"SQUASH=root; {values}")
    assert (tmp_path / "data").stat().st_mode & 0o7777 == mode


def test_other_workers_change_the_exports_without_a_restart(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "log").unlink()
    assert installed(tmp_path, ("10.0.0.22",))["clients"] == 1
    log = (tmp_path / "log").read_text()
    assert "exportfs -ra" in log
    assert "start" not in log, "neither start nor restart"
    assert "10.0.0.21" not in (tmp_path / "exports.d/busbar.exports").read_text()


def test_an_existing_folder_keeps_its_mode_and_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o750)
    (tmp_path / "data/checkpoint").write_text("x")
    installed(tmp_path)
    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "data/checkpoint").read_text() == "x"


def test_a_server_of_the_site_keeps_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "package").touch()
    installed(tmp_path)
    assert not (tmp_path / "nfs.conf.d").exists()
    assert not (tmp_path / "state/nfs-kernel-server.installed").exists()


def test_a_folder_that_the_site_exports_is_refused_and_its_export_stays(tmp_path: Path) -> None:
    exports = tmp_path / "exports"
    for line in (f"{tmp_path}/data *(ro)\n", f'"{tmp_path}" 10.0.0.0/8(rw)', "/ 10.0.0.9(rw)\n"):
        exports.write_text(f"# of the site\n/srv/homes *(ro)\n{line}")
        assert "data is exported already" in installed(tmp_path)
        assert line in exports.read_text()
    exports.write_text(f"{tmp_path}/data2 *(rw)\n{tmp_path}/data/below *(ro)\n")
    assert installed(tmp_path)["clients"] == 2, "of other folders, also below it"


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        ("ln -s /proc {0}/data", "is reached through a symbolic link: it is /proc"),
        ("touch {0}/data", "data is not a folder"),
    ],
)
def test_another_kind_of_folder_is_refused_before_anything_is_changed(
    tmp_path: Path, prepare: str, error: str
) -> None:
    assert error in installed(tmp_path, call=prepare.format(tmp_path) + "; ")
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "package").exists()


def test_a_folder_on_the_disk_of_the_operating_system_has_to_be_allowed(tmp_path: Path) -> None:
    same = f"SYSTEM_ROOT={tmp_path}; "
    assert "is on the disk of the operating system" in installed(tmp_path, call=same)
    assert installed(tmp_path, call=f"{same}ALLOW_SYSTEM_DISK=true; ")["clients"] == 2


def test_a_disk_of_its_own_is_exported_only_while_it_is_mounted(tmp_path: Path) -> None:
    exports = tmp_path / "exports.d/busbar.exports"
    disk = "df() { printf 'Mounted on\\n%s\\n' \"$DISK\"; }; DISK=/srv; "
    installed(tmp_path, call=disk)
    assert f"{tmp_path}/data 10.0.0.21(mp=/srv,rw,sync)\n" in exports.read_text()
    installed(tmp_path, call=f"{disk}DISK='/with space'; ")
    assert "(rw,sync)" in exports.read_text(), "exports(5) has no such path"
    installed(tmp_path, call=f"{disk}SYSTEM_ROOT={tmp_path}; ALLOW_SYSTEM_DISK=true; ")
    assert "(rw,sync)" in exports.read_text()


def test_a_worker_that_exportfs_left_out_fails_the_installation(tmp_path: Path) -> None:
    lost = "exported_clients() { echo 10.0.0.21; }; "
    assert "data is exported to 10.0.0.21, expected 10.0.0.21, 10.0.0.22" in installed(tmp_path, call=lost)


def removed(root: Path, call: str = "") -> subprocess.CompletedProcess[str]:
    return run("nfs-server", places(root) + SYSTEM + call + "remove_server", OWNER="o", INSTALL_ID="1")


def test_a_removal_ends_the_export_and_leaves_the_data(tmp_path: Path) -> None:
    installed(tmp_path)
    (tmp_path / "data/checkpoint").write_text("x")
    done = removed(tmp_path)
    assert json.loads(done.stdout) == {"node": "worker-1", "removed": True}
    assert f"{tmp_path}/data is no longer exported; its data stay on this host" in done.stderr
    assert (tmp_path / "data/checkpoint").read_text() == "x"
    assert not (tmp_path / "exports.d/busbar.exports").exists()
    assert not (tmp_path / "nfs.conf.d/busbar.conf").exists()
    assert "purge nfs-kernel-server" in (tmp_path / "log").read_text()
    assert json.loads(removed(tmp_path).stdout)["removed"] is False, "the second time nothing is done"


@pytest.mark.parametrize("before", [True, False], ids=["package of the site", "export since"])
def test_a_removal_leaves_what_the_site_exports(tmp_path: Path, before: bool) -> None:
    if before:
        (tmp_path / "package").touch()
    installed(tmp_path)
    (tmp_path / "exports").write_text("/srv/homes *(ro)\n")
    assert json.loads(removed(tmp_path).stdout)["removed"] is True
    log = (tmp_path / "log").read_text()
    assert "purge" not in log
    assert "disable" not in log
    assert (tmp_path / "exports").read_text() == "/srv/homes *(ro)\n"


def client(root: Path, number: int, address: str, status: str = "confirmed") -> None:
    """As /proc/fs/nfsd/clients/N/info shows a client."""
    folder = root / f"clients/{number}"
    folder.mkdir(parents=True)
    text = f'clientid: 0x6d077c99675df2b{number}\naddress: "{address}"\nstatus: {status}\n'
    (folder / "info").write_text(f'{text}seconds from last renew: 3\nname: "Linux NFSv4.2 gpu-1"\n')


def test_a_removal_waits_for_workers_that_still_mount_the_folder_and_then_names_them(tmp_path: Path) -> None:
    installed(tmp_path)
    client(tmp_path, 1, "10.0.0.21:893")
    done = removed(tmp_path, "LEASE_DEADLINE=0; ")
    assert done.returncode == 1
    assert "data is still mounted by 10.0.0.21. Fix: unmount it there" in done.stderr
    assert (tmp_path / "exports.d/busbar.exports").exists(), "no changes made"


def test_clients_that_are_gone_or_of_other_exports_do_not_hold_up_a_removal(tmp_path: Path) -> None:
    installed(tmp_path)
    client(tmp_path, 1, "10.0.0.21:893", "courtesy")
    client(tmp_path, 2, "10.9.9.9:893")
    assert json.loads(removed(tmp_path, "LEASE_DEADLINE=0; ").stdout)["removed"] is True


def test_ipv6_clients_are_recognised(tmp_path: Path) -> None:
    installed(tmp_path, ("fd00::21",))
    client(tmp_path, 1, "[fd00::21]:893")
    assert "still mounted by fd00::21" in removed(tmp_path, "LEASE_DEADLINE=0; ").stderr


def test_preflight_reports_the_folder_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "exports").write_text(f"{tmp_path} *(rw)\n")
    found = json.loads(output("preflight", places(tmp_path) + f"nfs_folder {tmp_path}/data"))
    assert found.pop("free_bytes") > 0
    assert found == {
        "kind": "missing",
        "foreign_exports": [f"{tmp_path}/exports: {tmp_path}"],
        "system_disk": False,
        "writable": True,
        "managed": False,
    }
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "state").mkdir()
    (tmp_path / "state/owner").write_text("role=NFS server\n")
    found = json.loads(output("preflight", places(tmp_path) + f"nfs_folder {tmp_path}/data"))
    assert (found["kind"], found["writable"], found["managed"]) == ("folder", False, True)


def test_preflight_reports_whether_a_worker_can_mount_and_from_which_address() -> None:
    route = "ip() { echo '10.0.0.9 dev eth1 src 10.0.0.21 uid 0 \\    cache'; }; command() { true; }; "
    assert json.loads(output("preflight", route + "nfs_client 10.0.0.9")) == {
        "installed": True,
        "source": "10.0.0.21",
    }
    nothing = "ip() { return 2; }; command() { false; }; "
    for server in ("10.0.0.9", ""):
        assert json.loads(output("preflight", f"{nothing}nfs_client '{server}'")) == {
            "installed": False,
            "source": "",
        }


def test_a_server_of_the_cluster_that_installs_k3s_does_not_hold_up_its_nfs_server(tmp_path: Path) -> None:
    begin = f"begin() {{ LOCK_FILE={tmp_path}/busbar.lock LOCK_DEADLINE=0; }}; "
    held = f"exec 7>{tmp_path}/busbar.lock; flock 7; "
    done = run("nfs-server", f"{begin}{held}install_server() {{ echo installed; }}; main", VERB="install")
    assert (done.returncode, done.stdout) == (0, "installed\n"), done.stderr


def test_two_steps_of_the_nfs_server_do_not_run_at_once(tmp_path: Path) -> None:
    begin = f"begin() {{ LOCK_FILE={tmp_path}/busbar.lock LOCK_DEADLINE=0; }}; "
    other = f"install_server() {{ echo installed; {begin} (exec 9>&-; main) || true; }}; "
    done = run("nfs-server", f"{begin}{other}main", VERB="install")
    assert done.stdout == "installed\n"
    assert "another busbar step is still running" in done.stderr
