"""What removal leaves on a host: everything that was there before, also when it is killed and done again."""

from __future__ import annotations

import pytest

from tests.unit.hosts.bash import Box

DROP_IN = "data/agent/etc/kubelet.conf.d/99-site.conf"
REMOVE = "umount() { :; }; rmdir() { :; }; KUBELET_DIR=/none; k3s_remove_data"


def files(box: Box, folder: str = "data") -> set[str]:
    paths = (box.root / folder).rglob("*")
    return {str(path.relative_to(box.root)) for path in paths if path.is_file()}


@pytest.fixture
def host(box: Box) -> Box:
    """A host with a drop-in of the site, on which K3s was then installed and wrote its data."""
    box.write(DROP_IN, "site")
    box.write("mounts")
    box.output("k3s-agent", "record_preexisting_files")
    for made in ("server/db/etcd/x", "agent/images/pause.tar", "agent/with space/and [brackets]"):
        box.write(f"data/{made}")
    return box


def test_only_what_k3s_made_is_deleted(host: Box) -> None:
    host.output("k3s-agent", REMOVE)
    assert files(host) == {DROP_IN}
    assert not host.has("data/server")


def test_links_and_files_of_the_kubelet_that_were_there_before_stay(box: Box) -> None:
    before = {"data/agent/containerd", "kubelet/seccomp/site.json"}
    box.write("mounts")
    box.write("kubelet/seccomp/site.json")
    (box.root / "data/agent").mkdir(parents=True)
    (box.root / "data/agent/containerd").symlink_to("/none/large-disk")
    box.output("k3s-agent", "record_preexisting_files")
    for made in ("data/agent/kubelet.kubeconfig", "kubelet/cpu_manager_state"):
        box.write(made)
    (box.root / "data/current").symlink_to("/none/binaries")
    box.output("k3s-agent", "k3s_remove_data")
    left = {
        str(path.relative_to(box.root))
        for name in ("data", "kubelet")
        for path in (box.root / name).rglob("*")
    }
    assert left == {*before, "data/agent", "kubelet/seccomp"}


def test_a_removal_that_is_killed_anywhere_never_loses_a_file_of_the_site(host: Box) -> None:
    assert host.run("k3s-agent", f"xargs() {{ kill -KILL $$; }}; {REMOVE}").returncode != 0
    assert DROP_IN in files(host)
    host.output("k3s-agent", REMOVE)
    host.output("k3s-agent", REMOVE)
    assert files(host) == {DROP_IN}


def test_the_record_is_forgotten_at_once_and_last(host: Box) -> None:
    assert host.run("k3s-agent", "rm() { kill -KILL $$; }; remove_state").returncode != 0
    assert not host.has("state"), "half a record would delete what was there before"
    done = host.output("k3s-agent", "remove_agent", OWNER="a/b/c", INSTALL_ID="1")
    assert done == '{"node":"worker-1","removed":false}\n'
    assert files(host) > {DROP_IN}, "without the record nothing may be deleted"
    assert not host.has("state.removed")


def test_a_removal_takes_away_what_was_delivered(box: Box) -> None:
    for path in ("state/file", "delivered/file"):
        box.write(path)
    box.output("k3s-agent", "remove_state")
    assert [*box.root.iterdir()] == []


def test_a_host_without_files_from_before_is_emptied(box: Box) -> None:
    box.write("mounts")
    box.output("k3s-agent", "record_preexisting_files")
    box.write("data/agent/kubelet.kubeconfig")
    box.output("k3s-agent", REMOVE)
    assert [*(box.root / "data").iterdir()] == []


IMAGES = "data/agent/containerd"


@pytest.fixture
def disks(box: Box) -> Box:
    """A host on which the site had mounted a disk for container images, on which K3s then wrote."""
    (box.root / IMAGES / "lost+found").mkdir(parents=True)
    box.write("mounts", f"/dev/nvme1n1 {box.root}/{IMAGES} ext4 rw 0 0\n")
    box.output("k3s-agent", "record_preexisting_files")
    for made in ("snapshots/1/file", "metadata.db"):
        box.write(f"{IMAGES}/{made}")
    return box


@pytest.mark.parametrize("has_lost_files", [True, False])
def test_a_disk_of_the_site_is_emptied_and_stays_mounted(disks: Box, has_lost_files: bool) -> None:
    if not has_lost_files:
        (disks.root / IMAGES / "lost+found").rmdir()
    call = 'umount() { echo "umount $*"; }; k3s_unmount "$K3S_DATA_DIR"; k3s_remove_data'
    assert disks.output("k3s-agent", call) == ""
    left = [path.name for path in sorted((disks.root / "data").rglob("*"))]
    assert left == ["agent", "containerd", *(["lost+found"] if has_lost_files else [])]


def test_what_was_mounted_below_the_data_later_stops_the_removal(disks: Box) -> None:
    data = disks.write("data/storage/volume/data")
    disks.write("mounts", f"{disks.read('mounts')}nfs:/volume {data.parent} nfs rw 0 0\n")
    said = disks.error("k3s-agent", "k3s_remove_data")
    assert f"mounted after the installation of K3s, below its folder: {data.parent}. Fix: umount it" in said
    assert data.exists()


REGISTRIES = "etc/registries.yaml"


def write_registries(box: Box, content: str) -> None:
    box.write("mounts")
    given = {"config": "a: 1", "registries": content}
    box.output("k3s-agent", "record_preexisting_files; k3s_config", given)


@pytest.mark.parametrize("ours", ["mirrors: ours", ""])
def test_a_registries_file_of_the_site_is_there_again_after_a_removal(box: Box, ours: str) -> None:
    box.write(REGISTRIES, "mirrors: site")
    write_registries(box, ours)
    assert box.read(REGISTRIES) == (ours or "mirrors: site")
    box.output("k3s-agent", "k3s_restore_registries")
    assert box.read(REGISTRIES) == "mirrors: site"


def test_a_registries_file_that_busbar_did_not_write_stays_as_the_site_has_changed_it(box: Box) -> None:
    box.write(REGISTRIES, "mirrors: site")
    write_registries(box, "")
    box.write(REGISTRIES, "mirrors: site, later")
    box.output("k3s-agent", "k3s_restore_registries")
    assert box.read(REGISTRIES) == "mirrors: site, later"


def test_our_registries_file_goes_when_the_stack_has_none_any_more(box: Box) -> None:
    write_registries(box, "mirrors: ours")
    write_registries(box, "")
    assert not box.has(REGISTRIES)
    box.write(REGISTRIES, "mirrors: of the site, later")
    write_registries(box, "")
    assert box.has(REGISTRIES)


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


def test_rules_of_flannel_and_kube_proxy_go_and_those_of_others_stay(box: Box) -> None:
    box.program("iptables-save", f"cat <<'EOF'\n{RULES}EOF")
    box.program("iptables-restore", f"cat >{box.root}/restored")
    box.output("k3s-agent", "ip() { :; }; rm() { :; }; PATH=$ROOT:/usr/bin:/bin; k3s_remove_network")
    ours = ("FLANNEL", "KUBE-", "CNI-")
    kept = [line for line in RULES.splitlines() if not any(name in line for name in ours)]
    assert box.read("restored").splitlines() == kept


MADE = (
    *("/usr/local/nvidia/toolkit", "/var/run/cdi", "/var/log/pods", "/var/log/containers", "/var/lib/cni"),
    *("/usr/libexec/kubernetes", "/etc/kubernetes/node-feature-discovery"),
)


def test_only_folders_of_kubernetes_that_were_not_there_before_go(box: Box) -> None:
    here = box.write("mounts")
    box.output("k3s-agent", f"K3S_MADE=({here} /none/absent); record_preexisting_files")
    assert box.read("state/absent") == "/none/absent\n"
    box.write("state/absent", "\n".join(["/etc", "", *MADE[1:]]))
    printed = box.output("k3s-agent", 'rm() { echo "$@"; }; rmdir() { :; }; k3s_remove_made')
    assert sorted(printed.splitlines()) == sorted(f"-rf {path}" for path in MADE[1:])
