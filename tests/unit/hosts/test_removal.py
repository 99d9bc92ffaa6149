"""What a removal touches and leaves on a host: all that was there before, also when it is killed."""

from pathlib import Path

import pytest

from tests.support.bash import Box

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


def test_only_what_k3s_made_is_deleted_also_by_a_removal_that_was_killed(host: Box) -> None:
    assert host.run("k3s-agent", f"xargs() {{ kill -KILL $$; }}; {REMOVE}").returncode != 0
    assert DROP_IN in files(host)
    host.output("k3s-agent", REMOVE)
    host.output("k3s-agent", REMOVE)
    assert files(host) == {DROP_IN} and not host.has("data/server")


def test_the_record_is_forgotten_at_once_and_last(host: Box) -> None:
    assert host.run("k3s-agent", "rm() { kill -KILL $$; }; remove_state").returncode != 0
    assert not host.has("state"), "half a record would delete what was there before"
    done = host.output("k3s-agent", "remove_agent", OWNER="a/b/c", INSTALL_ID="1")
    assert done == '{"node":"worker-1","removed":false}\n'
    assert files(host) > {DROP_IN}, "without the record nothing may be deleted"
    assert not host.has("state.removed")


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


@pytest.mark.parametrize("left", [["agent", "containerd", "lost+found"], ["agent", "containerd"]])
def test_a_disk_of_the_site_is_emptied_and_stays_mounted(disks: Box, left: list[str]) -> None:
    if "lost+found" not in left:
        (disks.root / IMAGES / "lost+found").rmdir()
    call = 'umount() { echo "umount $*"; }; k3s_unmount "$K3S_DATA_DIR"; k3s_remove_data'
    assert disks.output("k3s-agent", call) == ""
    assert [path.name for path in sorted((disks.root / "data").rglob("*"))] == left


def test_what_was_mounted_below_the_data_later_stops_the_removal(disks: Box) -> None:
    data = disks.write("data/storage/volume/data")
    disks.write("mounts", f"{disks.read('mounts')}nfs:/volume {data.parent} nfs rw 0 0\n")
    said = disks.error("k3s-agent", "k3s_remove_data")
    assert f"mounted after the installation of K3s, below its folder: {data.parent}. Fix: umount it" in said
    assert data.exists()


@pytest.mark.parametrize("folder", ["data", "kubelet"])
def test_volumes_below_a_folder_that_is_a_link_are_unmounted_or_kept(box: Box, folder: str) -> None:
    """A local PersistentVolume may be a folder of the same disk; /proc/mounts has its real path."""
    (box.root / "large").mkdir()
    (box.root / folder).symlink_to("large")
    box.write("mounts")
    box.output("k3s-agent", "record_preexisting_files")
    data = box.write("large/pods/1/volumes/scratch/data")
    mount = f"/dev/sda1 {data.parent} ext4 rw 0 0\n"
    box.write("mounts", mount)
    place = {"data": "$K3S_DATA_DIR", "kubelet": "$KUBELET_DIR"}[folder]
    asked = box.output("k3s-agent", f'umount() {{ echo "$*"; }}; k3s_unmount "{place}"')
    assert asked == f"-- {data.parent}\n"
    box.run("k3s-agent", "k3s_remove_data")
    assert data.exists()
    box.write("mounts")
    box.output("k3s-agent", "k3s_remove_data")
    assert not data.exists() and (box.root / folder).is_symlink()


def test_what_others_mounted_beside_the_folder_stays_mounted(box: Box) -> None:
    box.write("mounts", f"/dev/sda1 {box.root}/kubelet-disk ext4 rw 0 0\n")
    assert box.output("k3s-agent", 'umount() { echo "$*"; }; k3s_unmount "$KUBELET_DIR"') == ""


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
    changed = "mirrors: site, later"
    if not ours:
        box.write(REGISTRIES, changed)
    write_registries(box, "")
    assert box.read(REGISTRIES) == ("mirrors: site" if ours else changed)


def test_a_registries_file_that_the_site_wrote_after_the_installation_is_there_again(box: Box) -> None:
    write_registries(box, "")
    box.write(REGISTRIES, "mirrors: site, later")
    for ours in ("mirrors: ours", "mirrors: ours, changed", ""):
        write_registries(box, ours)
    assert box.read(REGISTRIES) == "mirrors: site, later"


def test_our_registries_file_goes_when_the_stack_has_none_any_more(box: Box) -> None:
    write_registries(box, "mirrors: ours")
    write_registries(box, "")
    assert not box.has(REGISTRIES)
    box.write(REGISTRIES, "mirrors: of the site, later")
    write_registries(box, "")
    assert box.has(REGISTRIES)


def test_a_k3s_binary_that_was_there_before_is_there_again_after_a_removal(box: Box) -> None:
    """A site prepares hosts without the internet so."""
    box.write("mounts")
    prepared = box.write("opt/k3s", "of the site")
    (box.root / "bin").mkdir()
    (box.root / "bin/k3s").symlink_to("../opt/k3s")
    install = "record_preexisting_files; write_file $K3S 0755 <<<ours; echo >${K3S_UNITS}/k3s-agent.service"
    (box.root / "units").mkdir()
    for _ in range(2):
        box.output("k3s-agent", install)
    assert (box.read("bin/k3s"), prepared.read_text()) == ("ours\n", "of the site")
    box.output("k3s-agent", "restore_original $K3S; restore_original $K3S")
    assert (box.root / "bin/k3s").readlink() == Path("../opt/k3s")


def test_a_binary_of_busbar_whose_record_was_lost_is_none_of_the_site(box: Box) -> None:
    for path in ("mounts", "bin/k3s", "units/k3s-agent.service"):
        box.write(path)
    box.output("k3s-agent", "record_preexisting_files; restore_original $K3S")
    assert not box.has("bin/k3s")


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


BY_HAND: dict[str, str] = {}
MINE = {"OWNER": "busbar/dev/worker-a", "INSTALL_ID": "1111"}
RENAMED = {**MINE, "OWNER": "busbar/dev/worker-b"}
OF_ANOTHER_CLUSTER = {**MINE, "INSTALL_ID": "2222"}


def claim(box: Box, owner: dict[str, str], role: str = "worker") -> None:
    box.output("k3s-agent", f'claim_host "{role}"', **owner)


@pytest.mark.parametrize("owners", [[MINE], [RENAMED, MINE], [BY_HAND, MINE]])
def test_a_host_is_removed_by_who_installed_it_last(box: Box, owners: list[dict[str, str]]) -> None:
    for owner in owners:
        claim(box, owner)
    assert box.run("k3s-agent", "may_remove", **MINE).returncode == 0
    assert box.run("k3s-agent", "may_remove").returncode == 0, "by hand the mark of any owner is enough"


@pytest.mark.parametrize(
    ("owner", "says"),
    [
        (RENAMED, "now belongs to busbar/dev/worker-b of cluster 1111, not to busbar/dev/worker-a of"),
        (OF_ANOTHER_CLUSTER, "of cluster 2222, not to busbar/dev/worker-a of cluster 1111; no changes"),
        (None, "owner is missing); no changes made"),
    ],
)
@pytest.mark.parametrize(
    ("script", "remove"),
    [("k3s-agent", "remove_agent"), ("k3s-server", "remove_server"), ("haproxy", "remove_balancer")],
)
def test_a_removal_of_a_host_that_is_not_its_own_ends_well_and_runs_nothing(
    box: Box, owner: dict[str, str] | None, says: str, script: str, remove: str
) -> None:
    if owner:
        claim(box, owner)
    programs = "".join(f"{name}() {{ echo {name} called; }}; " for name in ("systemctl", "find", "ip", "ps"))
    # may_remove itself may clean up after an interrupted removal.
    done = box.run(script, f"{programs} rm() {{ :; }}; {remove}", **MINE)
    assert (done.returncode, done.stdout) == (0, '{"node":"worker-1","removed":false}\n'), done.stderr
    assert says in done.stderr
    assert box.has("state/owner") is (owner is not None)


@pytest.mark.parametrize(
    ("role", "owner", "says"),
    [
        ("worker", OF_ANOTHER_CLUSTER, "belongs to another cluster (busbar/dev/worker-a). Fix: remove"),
        ("load balancer", MINE, "is already a load balancer (busbar/dev/worker-a)"),
    ],
)
def test_another_cluster_or_role_is_refused(box: Box, role: str, owner: dict[str, str], says: str) -> None:
    claim(box, MINE, role)
    assert says in box.error("k3s-agent", "claim_host worker", **owner)


def test_the_mark_is_readable_for_root_only(box: Box) -> None:
    claim(box, MINE)
    assert (box.mode("state"), box.mode("state/owner")) == (0o700, 0o600)
    assert box.read("state/owner") == "role=worker\nowner=busbar/dev/worker-a\ninstall_id=1111\n"
