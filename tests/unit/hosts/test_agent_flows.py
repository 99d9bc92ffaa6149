"""The whole scripts of a worker: installed, updated, left alone, removed."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.hosts import scripts
from tests.unit.hosts.recorded import VERSION, Host, changes, in_order

pytestmark = pytest.mark.slow

NEXT = "v1.35.7+k3s1"
CONFIG = "node-label:\n- rack=1\nnode-name: worker-1\nserver: https://10.0.0.9:6443\ntoken: secret\n"
CHANGED = CONFIG + "kubelet-arg:\n- v=1\n"
OWNER = {"OWNER": "busbar/dev/worker-1", "INSTALL_ID": "11", "NODE_NAME": "worker-1"}
POOL = {"RUNNING_JOBS": "keep", "DRAIN": "upgrade", "PAUSE_SECONDS": "0"}
VALUES = {"VERB": "install", "NODE_ADDRESS": "10.0.0.21", **OWNER, **POOL}


def install(host: Host, config: str = CONFIG, *, version: str = VERSION, **values: str) -> list[str]:
    """The steps of an installation or an update; names in lower case are of the payload."""
    payload = {"config": config, "registries": "", "proxy": ""}
    payload |= {name: values.pop(name) for name in ("registries", "proxy") if name in values}
    facts = host.facts("k3s-agent", payload, **{**VALUES, **host.release(version), **values})
    assert facts == {"node": "worker-1", "version": version}
    return host.steps


def refused(host: Host, fails: str = "", config: str = CONFIG, **values: str) -> str:
    """What an installation or an update says that fails."""
    values = {**VALUES, **host.release(VERSION), **values}
    return host.error("k3s-agent", {"config": config, "registries": ""}, fails=fails, **values)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[str]]:
    """A worker, and the steps of its installation."""
    host = Host(tmp_path_factory.mktemp("worker") / "root")
    steps = install(host)
    host.save()
    return host, steps


@pytest.fixture
def worker(installed: tuple[Host, list[str]]) -> Host:
    """A worker on which K3s runs."""
    return installed[0].restore()


@pytest.fixture
def bare(tmp_path: Path) -> Host:
    return Host(tmp_path)


FORGOTTEN = "rm /var/lib/busbar/k3s-agent.sha256"
CONFIG_WRITTEN = "write /etc/rancher/k3s/config.yaml"
RELOADED = "systemctl daemon-reload"
RESTARTED = "systemctl --no-block restart k3s-agent"
READY = "is the Node Ready?"
RECORDED = ["write /var/lib/busbar/k3s-agent.sha256", "write /var/lib/busbar/applied.sha256"]


def test_what_was_downloaded_ahead_changes_nothing_until_the_installation_moves_it(worker: Host) -> None:
    before, release = worker.files(), worker.release(NEXT)
    assert worker.facts("prepare", {}, NODE_NAME="worker-1", **release) == {"node": "worker-1"}
    added = worker.files().keys() - before.keys()
    assert added == {f"/var/lib/busbar/downloads/{release['SHA256_AMD64']}"}
    steps = install(worker, version=NEXT, DRAIN="never")
    assert "write /usr/local/bin/k3s" in steps
    assert not [step for step in steps if step.startswith("download ")]
    assert worker.files().keys() == before.keys()


def test_the_removal_of_a_host_that_never_joined_deletes_what_it_downloaded_ahead(bare: Host) -> None:
    before = bare.files()
    bare.facts("prepare", {}, NODE_NAME="worker-1", **bare.release(VERSION))
    assert bare.facts("k3s-agent", {}, **{**OWNER, "VERB": "remove"})["removed"] is False
    assert bare.files() == before and not (bare.root / "var/lib/busbar").exists()


def test_a_new_worker_is_marked_first_and_its_state_recorded_last(installed: tuple[Host, list[str]]) -> None:
    steps = installed[1]
    files = ["write /usr/local/bin/k3s", CONFIG_WRITTEN, "sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf"]
    in_order(steps, "write /var/lib/busbar/owner", "write /var/lib/busbar/preexisting", files)
    in_order(steps, f"download https://mirror/k3s-{VERSION}", files, RELOADED, RESTARTED, READY)
    in_order(steps, ["systemctl enable -q k3s-agent", "systemctl reset-failed k3s-agent"], RESTARTED)
    in_order(steps, READY, "kubectl annotate node worker-1 busbar/machine=feb491e2 --overwrite", RECORDED)
    assert steps.count(RESTARTED) == 1


def test_the_files_of_a_worker_have_the_lines_of_this_host_and_are_private(worker: Host) -> None:
    written = worker.text("etc/rancher/k3s/config.yaml").splitlines()
    assert written[1:] == [*CONFIG.splitlines(), 'node-ip: "10.0.0.21"', 'flannel-iface: "eth0"']
    assert {path: mode for path, mode in worker.files().items() if mode != "600"} == {
        "/etc/sysctl.d/90-busbar-kubelet.conf": "644",
        "/etc/systemd/system/k3s-agent.service": "644",
        "/etc/systemd/system/k3s-agent.service.d/10-busbar-memlock.conf": "644",
        "/usr/local/bin/k3s": "755",
    }


def test_archives_and_registries_are_there_before_the_agent_starts(bare: Host) -> None:
    archives = []
    for name in ("cuda%2B12.tar.zst", "pause.tar"):
        bare.state(f"mirror/{name}", name)
        archives.append(f"{hashlib.sha256(name.encode()).hexdigest()} https://mirror/{name}\n")
    steps = install(bare, registries="mirrors: {}\n", IMAGES="".join(archives))
    images = "/var/lib/rancher/k3s/agent/images"
    archived = [f"write {images}/cuda+12.tar.zst", f"touch {images}/.cache.json", f"write {images}/pause.tar"]
    registries = ["write /var/lib/busbar/registries.written", "write /etc/rancher/k3s/registries.yaml"]
    in_order(steps, [*archived, *registries], RESTARTED)
    modes = bare.files()
    assert (modes["/etc/rancher/k3s/registries.yaml"], modes[f"{images}/pause.tar"]) == ("600", "644")


def test_an_archive_of_the_site_with_the_name_of_ours_stays(bare: Host) -> None:
    ours = hashlib.sha256(b"ours").hexdigest()
    bare.write("var/lib/rancher/k3s/agent/images/pause.tar", "of the site")
    bare.state("mirror/pause.tar", "ours")
    install(bare, IMAGES=f"{ours} https://mirror/pause.tar\n")
    assert bare.text("var/lib/rancher/k3s/agent/images/pause.tar") == "of the site"
    assert bare.text(f"var/lib/rancher/k3s/agent/images/{ours[:16]}-pause.tar") == "ours"


def test_kernel_settings_that_a_container_refuses_are_only_noted(bare: Host) -> None:
    values = {**VALUES, **bare.release(VERSION)}
    done = bare.run("k3s-agent", {"config": CONFIG}, fails="sysctl *", **values)
    assert done.returncode == 0
    in_order(bare.steps, RESTARTED, READY, RECORDED)
    assert "some kernel settings of " in done.stderr and " were refused" in done.stderr


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("curl *-o *", f"download of https://mirror/k3s-{VERSION} failed: "),
        ("systemctl enable *", "systemctl enable k3s-agent failed. Fix: see: systemctl status k3s-agent"),
        ("k3s *kubeletVersion}", "Node worker-1 Ready: timed out after 420 s. Fix: look above"),
        ("mktemp *k3s-agent.service*", "failed (status 60): "),
    ],
)
def test_a_step_that_fails_says_why_and_nothing_counts_as_applied(bare: Host, fails: str, says: str) -> None:
    assert says in refused(bare, fails)
    assert RECORDED[0] not in bare.steps


@pytest.mark.parametrize(
    ("program", "values", "says"),
    [
        ("id: echo 1000", {}, "not root. Fix: run it as root or under sudo"),
        ("uname: echo riscv64", {}, "processor is riscv64, expected x86_64 or aarch64"),
        ("uname: echo aarch64", {"SHA256_ARM64": ""}, f"no checksum of K3s {VERSION} for arm64 is"),
        ("systemctl: true", {}, "k3s already runs on this host"),
        ("", {"VERB": "start"}, "VERB=start is unknown. Fix: use one of: install remove"),
    ],
)
def test_a_host_that_cannot_be_a_worker_is_refused(
    bare: Host, program: str, values: dict[str, str], says: str
) -> None:
    name, _, text = program.partition(": ")
    if name:
        bare.program(name, text)
    assert says in refused(bare, **values)
    assert RESTARTED not in bare.steps


def test_a_worker_gets_the_binary_of_its_processor(bare: Host) -> None:
    bare.program("uname", "echo aarch64")
    release = bare.release(VERSION)
    values = release | {"URL_AMD64": "https://mirror/other", "SHA256_AMD64": "0" * 64}
    bare.facts("prepare", {}, NODE_NAME="worker-1", **values)
    assert f"download {release['URL_ARM64']}" in bare.steps


def test_an_update_that_changes_nothing_restarts_nothing_and_writes_no_file(worker: Host) -> None:
    assert changes(install(worker)) == []


def test_an_upgrade_restarts_a_worker_when_it_has_been_drained(worker: Host) -> None:
    assert scripts.NOT_DRAINED in refused(worker, **worker.release(NEXT))
    assert RESTARTED not in worker.steps
    worker.state("cordoned", '{"why":"restart of K3s"}')
    in_order(install(worker, version=NEXT), FORGOTTEN, RESTARTED, READY, RECORDED)
    assert worker.said == []


def test_the_restart_for_another_configuration_rotates_what_is_due_too(worker: Host) -> None:
    flag = "/var/lib/busbar/rotate-certificates"
    drop_in = "/run/systemd/system/k3s-agent.service.d/90-busbar-rotate.conf"
    steps = install(worker, CHANGED, ROTATE_CERTIFICATES="1")
    due = [f"touch {flag}", f"write {drop_in}", FORGOTTEN, CONFIG_WRITTEN]
    in_order(steps, due, RELOADED, RESTARTED, "k3s certificate rotate", f"rm {flag}", READY)
    in_order(steps, READY, f"rm {drop_in}", RELOADED, "write /var/lib/busbar/rotated", RECORDED)
    assert steps.count(RESTARTED) == 1


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("etc/sysctl.d/90-busbar-kubelet.conf", "mine", "files were changed since the last update: rest"),
        ("state/deleted", "", "Node worker-1 was deleted: restarting k3s-agent, which makes it again"),
    ],
)
def test_changed_files_or_a_lost_node_restart_an_agent(worker: Host, path: str, text: str, says: str) -> None:
    worker.write(path, text)
    # A Node that was deleted cannot be drained.
    steps = install(worker, DRAIN="always" if path == "state/deleted" else "upgrade")
    in_order(steps, FORGOTTEN, RESTARTED, READY, RECORDED[0])
    assert worker.said[0].startswith(says)
    assert worker.text("etc/sysctl.d/90-busbar-kubelet.conf") != "mine"


PROXY = "[Service]\nEnvironment=HTTPS_PROXY=http://proxy:3128\nEnvironment=NO_PROXY=localhost,.svc\n"
DROP_INS = "etc/systemd/system/k3s-agent.service.d"


def test_a_proxy_is_a_drop_in_of_the_unit_whose_coming_and_going_restarts_the_agent(worker: Host) -> None:
    drop_in = f"{DROP_INS}/20-busbar-proxy.conf"
    in_order(install(worker, proxy=PROXY), f"write /{drop_in}", RESTARTED)
    assert worker.text(drop_in) == PROXY
    in_order(install(worker), f"rm /{drop_in}", RESTARTED)


def test_pods_of_a_node_with_another_pod_network_start_anew(worker: Host) -> None:
    worker.state("bridge", "5: cni0    inet 10.42.9.1/24 brd 10.42.9.255 scope global cni0\n")
    worker.write("var/lib/cni/networks/cbr0/10.42.9.7", "lease")
    gone = ["ip link delete cni0", "ip link delete flannel.1", "rm /var/lib/cni/networks/cbr0"]
    in_order(install(worker), READY, "systemctl stop k3s-agent", gone, RESTARTED, READY)
    assert worker.said == ["the pod CIDR of this Node has changed: restarting its pods and their network"]


def remove(host: Host, fails: str = "") -> subprocess.CompletedProcess[str]:
    return host.run("k3s-agent", {}, fails=fails, **{**OWNER, "VERB": "remove"})


@pytest.fixture
def pod() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a pod."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_removal_ends_pods_then_mounts_then_the_record(worker: Host, pod: subprocess.Popen[bytes]) -> None:
    root = worker.root
    here, runs = (
        Path("/proc/self/ns/pid").stat().st_ino,
        "containerd -c /var/lib/rancher/k3s/agent/etc/config.toml",
    )
    worker.state("processes", f"{pod.pid} 1 {here} {runs}\n")
    worker.state("ip netns list", "cni-1 (id: 0)\nsite\n")
    worker.state("ip link show", "7: veth1@if2: <UP> master cni0\n8: eth0: <UP>\n")
    ours = [":CNI-HOSTPORT-DNAT - [0:0]", "-A FORWARD -j KUBE-FORWARD", "-A FORWARD -j FLANNEL-FWD"]
    others = [":DOCKER - [0:0]", "-A FORWARD -j DOCKER", "-A INPUT -p tcp"]
    worker.state("rules", "\n".join(["*filter", *ours, *others, ""]))
    mounts = [f"{root}/run/k3s/a", f"{root}/var/lib/kubelet/pods/1", f"{root}/run/k3s-site", "/site"]
    worker.write("proc/self/mounts", "".join(f"x {mount} fs rw 0 0\n" for mount in mounts))
    made = ["run/k3s/x", "run/busbar-kubectl/x", "run/busbar/script", "var/lib/kubelet/x", "var/log/pods/x"]
    for path in (*made, f"{DROP_INS}/20-busbar-proxy.conf"):
        worker.write(path, "")
    networks = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.4.1/24\nFLANNEL_IPV6_NETWORK=fd00::/56\n"
    worker.write("run/flannel/subnet.env", networks)
    assert remove(worker).stdout == '{"node":"worker-1","removed":true}\n'
    stopped = "systemctl disable --now k3s-agent"
    unmounted = [f"umount -- {mount.removeprefix(str(root))}" for mount in mounts[:2]]
    in_order(worker.steps, stopped, unmounted, "ip netns delete cni-1")
    links = ("veth1", "cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0")
    network = [
        *(f"ip link delete {name}" for name in links),
        *("ip -4 route flush root 10.42.0.0/16", "ip -6 route flush root fd00::/56"),
        *(f"{table}-restore: {'|'.join(['*filter', *others])}" for table in ("iptables", "ip6tables")),
    ]
    in_order(worker.steps, stopped, network, "rm /run/flannel")
    in_order(worker.steps, "rm /etc/systemd/system/k3s-agent.service", RELOADED)
    forgotten = ["write /var/lib/busbar.removed", "rm /var/lib/busbar.removed", "rm /run/busbar"]
    assert worker.steps[-3:] == forgotten, "until then the removal can begin again"
    assert not [step for step in worker.steps if step.endswith("site")]
    assert worker.files() == {}
    folders = ("etc/rancher", "var/lib/rancher", "var/lib/kubelet", "var/log/pods", "run/k3s", "run/flannel")
    assert not [folder for folder in folders if (root / folder).exists()]
    assert pod.wait(5) == -9


def test_a_removal_leaves_the_network_of_containers_of_others(worker: Host) -> None:
    """podman 3 of Ubuntu 22.04 names network namespaces and chains as CNI does for K3s."""
    worker.state("ip netns list", "cni-1 (id: 0)\ncni-podman (id: 1)\n")
    worker.state("ip netns pids cni-podman", "4711\n")
    worker.write("var/lib/busbar/absent", "")
    theirs = ['-A CNI-HOSTPORT-DNAT --comment "dnat name: podman" -j CNI-DN-2', "-A CNI-DN-2 -j DNAT"]
    ours = ['-A CNI-HOSTPORT-DNAT --comment "dnat name: cbr0" -j CNI-DN-1', "-A FORWARD -j KUBE-FORWARD"]
    worker.state("rules", "\n".join(["*nat", *theirs, *ours, ""]))
    for network in ("podman", "cbr0"):
        worker.write(f"var/lib/cni/results/{network}-1-eth0", "")
    worker.write("var/lib/cni/networks/podman/10.88.0.2", "lease")
    remove(worker)
    assert "ip netns delete cni-1" in worker.steps
    assert "ip netns delete cni-podman" not in worker.steps
    assert f"iptables-restore: {'|'.join(['*nat', *theirs])}" in worker.steps
    assert [*worker.files()] == [
        "/var/lib/cni/networks/podman/10.88.0.2",
        "/var/lib/cni/results/podman-1-eth0",
    ]


@pytest.mark.parametrize(("node", "again"), [("worker-1|", True), ("worker-1|feb491e2", False), ("", False)])
def test_a_removed_worker_tells_whether_it_made_its_node_again(worker: Host, node: str, again: bool) -> None:
    """Only what an installation has noted is not on a Node that the kubelet makes when K3s restarts."""
    worker.state("own node", node)
    assert ('"node_again":true' in remove(worker).stdout) is again


@pytest.mark.parametrize(
    "path", [f"{DROP_INS}/site.conf", "etc/rancher/k3s/k3s.yaml", "etc/rancher/k3s/auth-config.yaml"]
)
def test_a_file_of_the_site_that_no_agent_writes_stays_as_it_is(worker: Host, path: str) -> None:
    worker.write(path, "")
    install(worker)
    remove(worker)
    assert worker.files() == {f"/{path}": "644"}


@pytest.mark.parametrize(
    "fails", ["iptables-restore*", "umount -- *", "ip link delete*", "systemctl reset-failed*"]
)
def test_what_fails_on_the_way_holds_up_no_removal(worker: Host, fails: str) -> None:
    worker.state("rules", "*filter\n")
    worker.write("proc/self/mounts", f"x {worker.root}/run/k3s/a fs rw 0 0\n")
    done = remove(worker, fails)
    rules = "busbar: worker-1: rules of Kubernetes may remain in iptables; a reboot clears them\n"
    said = rules if fails.startswith("iptables") else ""
    assert (done.returncode, worker.files(), done.stderr) == (0, {}, said)


def test_a_k3s_that_others_installed_over_ours_is_neither_updated_nor_removed_with_it(worker: Host) -> None:
    """The worker was lent, and its mark is still ours. Without their unit, it is ours again."""
    worker.write("etc/systemd/system/k3s-agent.service", "[Service]\n")
    assert "has a K3s that busbar did not install; no changes made" in refused(worker, config=CHANGED)
    before, done = worker.files(), remove(worker)
    assert "others have installed K3s over that of busbar (k3s-agent.service); no changes made" in done.stderr
    assert (done.returncode, worker.files(), worker.steps) == (1, before, [])
    (worker.root / "etc/systemd/system/k3s-agent.service").unlink()
    assert RESTARTED in install(worker)
    assert '"removed":true' in remove(worker).stdout


def test_a_k3s_that_others_installed_after_preflight_is_left_alone(bare: Host) -> None:
    bare.write("etc/systemd/system/k3s-agent.service", "[Service]\n")
    assert "has a K3s that busbar did not install; no changes made" in refused(bare)
    assert bare.steps == []
