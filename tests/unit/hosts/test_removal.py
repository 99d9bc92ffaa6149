"""What removal leaves on a host: everything that was there before, also when it is killed and done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.hosts import scripts
from tests.unit.hosts.bash import output, run

DROP_IN = "agent/etc/kubelet.conf.d/99-site.conf"


def places(root: Path) -> str:
    folders = {"STATE": "busbar", "K3S_DATA": "rancher/k3s", "K3S_CONFIG": "etc", "KUBELET": "kubelet"}
    return "".join(f"{name}_DIR={root}/{folder}; " for name, folder in folders.items())


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with a drop-in of the site, on which K3s was then installed and wrote its data."""
    data = tmp_path / "rancher/k3s"
    (data / DROP_IN).parent.mkdir(parents=True)
    (data / DROP_IN).write_text("site")
    (tmp_path / "etc").mkdir()
    output("k3s-agent", places(tmp_path) + "record_preexisting_files")
    for made in ("server/db/etcd/x", "agent/images/pause.tar", "agent/with space/and [brackets]"):
        (data / made).parent.mkdir(parents=True, exist_ok=True)
        (data / made).touch()
    return tmp_path


REMOVE = "umount() { :; }; rmdir() { :; }; KUBELET_DIR=/none; k3s_remove_data"


def test_only_what_k3s_made_is_deleted(host: Path) -> None:
    output("k3s-agent", places(host) + REMOVE)
    assert files(host / "rancher/k3s") == {DROP_IN}
    assert not (host / "rancher/k3s/server").exists()


def test_a_removal_that_is_killed_anywhere_never_loses_a_file_of_the_site(host: Path) -> None:
    killed = run("k3s-agent", places(host) + f"xargs() {{ kill -KILL $$; }}; {REMOVE}")
    assert killed.returncode != 0
    assert DROP_IN in files(host / "rancher/k3s")
    output("k3s-agent", places(host) + REMOVE)
    output("k3s-agent", places(host) + REMOVE)
    assert files(host / "rancher/k3s") == {DROP_IN}


def test_the_record_is_forgotten_at_once_and_last(host: Path) -> None:
    killed = run("k3s-agent", places(host) + "rm() { kill -KILL $$; }; remove_state")
    assert killed.returncode != 0
    assert not (host / "busbar").exists(), "half a record would delete what was there before"
    done = run("k3s-agent", places(host) + "remove_agent", OWNER="a/b/c", INSTALL_ID="1")
    assert (done.returncode, done.stdout) == (0, '{"node":"worker-1","removed":false}\n')
    assert files(host / "rancher/k3s") > {DROP_IN}, "without the record nothing may be deleted"
    assert not (host / "busbar.removed").exists()


def test_a_host_without_files_from_before_is_emptied(tmp_path: Path) -> None:
    output("k3s-agent", places(tmp_path) + "record_preexisting_files")
    (tmp_path / "rancher/k3s/agent").mkdir(parents=True)
    (tmp_path / "rancher/k3s/agent/kubelet.kubeconfig").touch()
    output("k3s-agent", places(tmp_path) + REMOVE)
    assert list((tmp_path / "rancher/k3s").iterdir()) == []


IMAGES = "rancher/k3s/agent/containerd"


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    """A host on which the site had mounted a disk for container images, on which K3s then wrote."""
    images = tmp_path / IMAGES
    (images / "lost+found").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/nvme0n1 {tmp_path}/rancher ext4 rw 0 0\n/dev/nvme1n1 {images} ext4 rw 0 0\n")
    output("k3s-agent", places(tmp_path) + f"MOUNTS={mounts}; record_preexisting_files")
    (images / "snapshots/1").mkdir(parents=True)
    (images / "metadata.db").touch()
    return tmp_path


def test_a_disk_of_the_site_below_the_data_is_emptied_and_stays_mounted(disks: Path) -> None:
    umount = f'MOUNTS={disks}/mounts; umount() {{ echo "umount $*"; }}; '
    printed = output("k3s-agent", places(disks) + umount + 'k3s_unmount "$K3S_DATA_DIR"; k3s_remove_data')
    assert printed == ""
    left = {str(path.relative_to(disks)) for path in (disks / "rancher/k3s").rglob("*")}
    assert left == {"rancher/k3s/agent", *(f"{IMAGES}{end}" for end in ("", "/lost+found"))}


def test_an_empty_disk_of_the_site_keeps_its_mount_point(disks: Path) -> None:
    (disks / IMAGES / "lost+found").rmdir()
    output("k3s-agent", places(disks) + f"MOUNTS={disks}/mounts; k3s_remove_data")
    assert [path.name for path in (disks / "rancher/k3s").rglob("*")] == ["agent", "containerd"]


def test_what_was_mounted_below_the_data_later_stops_the_removal(disks: Path) -> None:
    volume = disks / "rancher/k3s/storage/volume"
    volume.mkdir(parents=True)
    (volume / "data").touch()
    with (disks / "mounts").open("a") as mounts:
        mounts.write(f"nfs:/volume {volume} nfs rw 0 0\n")
    done = run("k3s-agent", places(disks) + f"MOUNTS={disks}/mounts; k3s_remove_data")
    assert done.returncode == 1
    assert f"mounted after the installation of K3s, below its folder: {volume}. Fix: umount it" in done.stderr
    assert (volume / "data").exists()


def registries(root: Path, content: str) -> None:
    line = scripts.stdin("k3s-agent", {"config": "a: 1", "registries": content}).partition("\n")[0]
    output("k3s-agent", places(root) + "record_preexisting_files; k3s_config", PAYLOAD=line)


def test_a_registries_file_of_the_site_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "etc/registries.yaml"
    file.parent.mkdir()
    file.write_text("mirrors: site")
    registries(tmp_path, "mirrors: ours")
    assert file.read_text() == "mirrors: ours"
    output("k3s-agent", places(tmp_path) + "k3s_restore_registries")
    assert file.read_text() == "mirrors: site"


def test_a_registries_file_of_the_site_stays_where_the_stack_has_none(tmp_path: Path) -> None:
    file = tmp_path / "etc/registries.yaml"
    file.parent.mkdir()
    file.write_text("mirrors: site")
    registries(tmp_path, "")
    output("k3s-agent", places(tmp_path) + "k3s_restore_registries")
    assert file.read_text() == "mirrors: site"


def test_our_registries_file_goes_when_the_stack_has_none_any_more(tmp_path: Path) -> None:
    registries(tmp_path, "mirrors: ours")
    registries(tmp_path, "")
    assert not (tmp_path / "etc/registries.yaml").exists()


RULES = """\
*filter
:FORWARD ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
:KUBE-SERVICES - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:DOCKER - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FORWARD -j DOCKER
-A INPUT -p tcp --dport 22 -j ACCEPT
COMMIT
"""


def test_rules_of_flannel_and_kube_proxy_go_and_those_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "iptables-save").write_text(f"#!/bin/sh\ncat <<'EOF'\n{RULES}EOF\n")
    (tmp_path / "iptables-restore").write_text(f"#!/bin/sh\ncat > {tmp_path}/restored\n")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    output(
        "k3s-agent",
        f"ip() {{ :; }}; rm() {{ :; }}; PATH={tmp_path}:/usr/bin:/bin; k3s_remove_network",
    )
    assert (tmp_path / "restored").read_text() == (
        "*filter\n:FORWARD ACCEPT [0:0]\n:DOCKER - [0:0]\n-A FORWARD -j DOCKER\n"
        "-A INPUT -p tcp --dport 22 -j ACCEPT\nCOMMIT\n"
    )


MADE = (
    "/usr/local/nvidia/toolkit", "/var/run/cdi", "/var/log/pods", "/var/log/containers", "/var/lib/cni",
    "/usr/libexec/kubernetes", "/etc/kubernetes/node-feature-discovery",
)  # fmt: skip


@pytest.mark.parametrize(
    ("absent", "removed"), [*((path, True) for path in MADE), ("/etc", False), ("", False)]
)
def test_only_folders_of_kubernetes_that_were_not_there_before_go(
    tmp_path: Path, absent: str, removed: bool
) -> None:
    (tmp_path / "busbar").mkdir()
    (tmp_path / "busbar/absent").write_text(f"{absent}\n")
    printed = output("k3s-agent", places(tmp_path) + 'rm() { echo "$@"; }; rmdir() { :; }; k3s_remove_made')
    assert printed == (f"-rf {absent}\n" if removed else "")


def test_folders_that_are_there_before_k3s_are_not_noted_as_its_own(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    made = f"K3S_MADE=({here} {tmp_path}/absent); "
    output("k3s-agent", places(tmp_path) + made + "record_preexisting_files")
    assert (tmp_path / "busbar/absent").read_text() == f"{tmp_path}/absent\n"


def test_what_kubectl_keeps_of_its_answers_goes_with_k3s(tmp_path: Path) -> None:
    kubectl = tmp_path / "k3s"
    kubectl.write_text('#!/bin/sh\nmkdir -p "${KUBECACHEDIR:-$HOME/.kube/cache}"\n')
    kubectl.chmod(0o755)
    here = f"K3S={kubectl}; KUBECACHEDIR={tmp_path}/cache; "
    output("k3s-server", here + "api 30 get nodes", HOME=str(tmp_path))
    assert (tmp_path / "cache").is_dir() and not (tmp_path / ".kube").exists()
    stubs = "stop_unit() { :; }; k3s_kill_pods() { :; }; k3s_unmount() { :; }; k3s_remove_network() { :; }; "
    stubs += "systemctl() { :; }; rmdir() { :; }; remove_state() { :; }; rm() { printf '%s\\n' \"$@\"; }; "
    removed = output("k3s-server", places(tmp_path) + here + stubs + "k3s_uninstall")
    assert f"{tmp_path}/cache" in removed.splitlines()
