"""The whole scripts of a worker: installed, updated, left alone, removed."""

from __future__ import annotations

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
OWNER = {"OWNER": "busbar/dev/worker-1", "INSTALL_ID": "11", "NODE_NAME": "worker-1"}
VALUES = {
    **OWNER,
    "NODE_ADDRESS": "10.0.0.21",
    **{"RUNNING_JOBS": "keep", "DRAIN": "upgrade", "PAUSE_SECONDS": "0"},
}


def install(
    host: Host, config: str = CONFIG, *, registries: str = "", version: str = VERSION, **values: str
) -> list[str]:
    """The steps of an installation or an update."""
    payload = {"config": config, "registries": registries}
    facts = host.facts("k3s-agent", payload, VERB="install", **{**VALUES, **host.release(version), **values})
    assert facts == {"node": "worker-1", "version": version}
    return host.steps


def refused(host: Host, fails: str = "", config: str = CONFIG, **values: str) -> str:
    """What an installation or an update says that fails."""
    values = {"VERB": "install", **VALUES, **host.release(VERSION), **values}
    return host.error("k3s-agent", {"config": config, "registries": ""}, fails=fails, **values)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("worker") / "root")
    install(host)
    host.save()
    return host


@pytest.fixture
def worker(installed: Host) -> Host:
    """A worker on which K3s runs."""
    return installed.restore()


FORGOTTEN = "rm /var/lib/busbar/k3s-agent.sha256"
CONFIG_WRITTEN = "write /etc/rancher/k3s/config.yaml"
RELOADED = "systemctl daemon-reload"
RESTARTED = "systemctl --no-block restart k3s-agent"
READY = "is the Node Ready?"
NOTED = "kubectl annotate node worker-1 busbar/machine=feb491e2 --overwrite"
RECORDED = ["write /var/lib/busbar/k3s-agent.sha256", "write /var/lib/busbar/applied.sha256"]


def test_what_was_downloaded_ahead_changes_nothing_until_the_installation_moves_it(worker: Host) -> None:
    before, release = worker.files(), worker.release(NEXT)
    assert worker.facts("prepare", {}, NODE_NAME="worker-1", **release) == {"node": "worker-1"}
    added = worker.files().keys() - before.keys()
    assert added == {f"/var/lib/busbar/downloads/{release['SHA256_AMD64']}"}
    assert "write /usr/local/bin/k3s" in (steps := install(worker, version=NEXT, DRAIN="never"))
    assert [step for step in steps if step.startswith("download ")] == []
    assert worker.files().keys() == before.keys()


def test_a_host_that_has_everything_downloads_nothing_ahead(worker: Host) -> None:
    worker.facts("prepare", {}, NODE_NAME="worker-1", **worker.release(VERSION))
    assert changes(worker.steps) == []


def test_the_removal_of_a_host_that_never_joined_deletes_what_it_downloaded_ahead(tmp_path: Path) -> None:
    host = Host(tmp_path)
    before = host.files()
    host.facts("prepare", {}, NODE_NAME="worker-1", **host.release(VERSION))
    host.facts("k3s-agent", {}, VERB="remove", **OWNER)
    assert host.files() == before and not (tmp_path / "var/lib/busbar").exists()


def test_a_new_worker_is_marked_first_and_its_state_recorded_last(tmp_path: Path) -> None:
    steps = install(Host(tmp_path))
    found = [f"write /var/lib/busbar/{name}" for name in ("absent", "mounts", "preexisting")]
    settings = [
        "write /usr/local/bin/k3s",
        CONFIG_WRITTEN,
        "write /etc/systemd/system/k3s-agent.service",
        "write /etc/systemd/system/k3s-agent.service.d/10-busbar-memlock.conf",
        "sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf",
    ]
    downloaded = f"download https://mirror/k3s-{VERSION}"
    in_order(steps, "write /var/lib/busbar/owner", found, downloaded, settings, RELOADED, RESTARTED, READY)
    in_order(steps, ["systemctl enable -q k3s-agent", "systemctl reset-failed k3s-agent"], RESTARTED)
    in_order(steps, READY, NOTED, RECORDED)
    assert steps.count(RESTARTED) == 1


def test_the_files_of_a_worker_have_their_modes_and_its_config_the_lines_of_this_host(worker: Host) -> None:
    assert worker.files() == {
        "/etc/rancher/k3s/config.yaml": "600",
        "/etc/sysctl.d/90-busbar-kubelet.conf": "644",
        "/etc/systemd/system/k3s-agent.service": "644",
        "/etc/systemd/system/k3s-agent.service.d/10-busbar-memlock.conf": "644",
        "/usr/local/bin/k3s": "755",
        **{
            f"/var/lib/busbar/{name}": "600"
            for name in (
                "absent",
                "applied.sha256",
                "k3s-agent.sha256",
                "mounts",
                "owner",
                "preexisting",
            )
        },
        "/var/lib/rancher/k3s/agent/kubelet.kubeconfig": "600",
    }
    config = (worker.root / "etc/rancher/k3s/config.yaml").read_text()
    assert config.splitlines()[1:] == [*CONFIG.splitlines(), 'node-ip: "10.0.0.21"', 'flannel-iface: "eth0"']


def test_pods_of_a_worker_may_lock_all_memory_as_rdma_needs(worker: Host) -> None:
    folder = worker.root / "etc/systemd/system/k3s-agent.service.d"
    assert (folder / "10-busbar-memlock.conf").read_text() == "[Service]\nLimitMEMLOCK=infinity\n"


def test_an_update_that_changes_nothing_restarts_nothing_and_writes_no_file(worker: Host) -> None:
    assert changes(install(worker)) == []


def test_an_upgrade_restarts_a_worker_when_it_has_been_drained(worker: Host) -> None:
    says = refused(worker, **worker.release(NEXT))
    assert scripts.NOT_DRAINED in says
    assert RESTARTED not in worker.steps
    worker.state("cordoned", '{"why":"restart of K3s"}')
    steps = install(worker, version=NEXT)
    in_order(steps, FORGOTTEN, RESTARTED, READY, RECORDED)
    assert worker.said == []


def test_another_configuration_restarts_the_agent_and_rotates_what_is_due_with_the_same_restart(
    worker: Host,
) -> None:
    flag = "/var/lib/busbar/rotate-certificates"
    drop_in = "/run/systemd/system/k3s-agent.service.d/90-busbar-rotate.conf"
    steps = install(worker, CONFIG + "kubelet-arg:\n- v=1\n", ROTATE_CERTIFICATES="1")
    due = [f"touch {flag}", f"write {drop_in}", FORGOTTEN, CONFIG_WRITTEN]
    in_order(steps, due, RELOADED, RESTARTED, "k3s certificate rotate", f"rm {flag}", READY)
    in_order(steps, READY, f"rm {drop_in}", RELOADED, "write /var/lib/busbar/rotated", RECORDED)
    assert steps.count(RESTARTED) == 1
    assert changes(install(worker, CONFIG + "kubelet-arg:\n- v=1\n", ROTATE_CERTIFICATES="1")) == []


def test_files_that_somebody_changed_are_written_again_and_the_agent_restarts(worker: Host) -> None:
    worker.write("etc/sysctl.d/90-busbar-kubelet.conf", "mine")
    steps = install(worker)
    in_order(steps, [FORGOTTEN, "write /etc/sysctl.d/90-busbar-kubelet.conf"], RESTARTED, READY, RECORDED[0])
    says = "files were changed since the last update: restarting k3s-agent with the configured files"
    assert worker.said == [says]


def test_an_agent_whose_node_was_deleted_restarts_at_once_because_nothing_can_be_drained(
    worker: Host,
) -> None:
    worker.state("deleted", "")
    steps = install(worker, DRAIN="always")
    in_order(steps, FORGOTTEN, RESTARTED, READY, RECORDED[0])
    assert worker.said == ["Node worker-1 was deleted: restarting k3s-agent, which makes it again"]


PROXY = "[Service]\nEnvironment=HTTPS_PROXY=http://proxy:3128\nEnvironment=NO_PROXY=localhost,.svc\n"
PROXY_FILE = "etc/systemd/system/k3s-agent.service.d/20-busbar-proxy.conf"


def test_a_proxy_is_a_drop_in_of_the_unit_whose_coming_changing_and_going_restarts_the_agent(
    worker: Host,
) -> None:
    other = PROXY.replace("proxy:", "other:")
    for payload, change in (({"proxy": PROXY}, "write"), ({"proxy": other}, "write"), ({}, "rm")):
        steps = update(worker, payload)
        in_order(steps, f"{change} /{PROXY_FILE}", RESTARTED)
        file = worker.root / PROXY_FILE
        assert (file.read_text() if file.exists() else None) == payload.get("proxy")
        assert RESTARTED not in update(worker, payload), "the same again restarts nothing"


def test_the_drop_in_of_a_proxy_goes_with_the_worker_and_one_of_the_site_stays(worker: Host) -> None:
    update(worker, {"proxy": PROXY})
    worker.write("etc/systemd/system/k3s-agent.service.d/site.conf", "[Service]\n")
    worker.facts("k3s-agent", {}, VERB="remove", **OWNER)
    assert [*worker.files()] == ["/etc/systemd/system/k3s-agent.service.d/site.conf"]


def update(host: Host, payload: dict[str, str]) -> list[str]:
    """The steps of an update with more in its payload."""
    given = {"config": CONFIG, "registries": "", **payload}
    host.facts("k3s-agent", given, VERB="install", **{**VALUES, **host.release(VERSION)})
    return host.steps


DELETED_LINKS = [
    f"ip link delete {name}"
    for name in ("cni0", "flannel.1", "flannel-v6.1", "flannel-wg", "flannel-wg-v6", "kube-ipvs0")
]


def test_pods_of_a_node_with_another_pod_network_start_anew(worker: Host) -> None:
    worker.state("bridge", "5: cni0    inet 10.42.9.1/24 brd 10.42.9.255 scope global cni0\n")
    worker.state("rules", "*filter\n-A FORWARD -j KUBE-FORWARD\n-A INPUT -p tcp\n")
    worker.write("var/lib/cni/networks/cbr0/10.42.9.7", "lease")
    steps = install(worker)
    gone = [
        *DELETED_LINKS,
        "rm /var/lib/cni/networks/cbr0",
        *(f"{table}-restore: *filter|-A INPUT -p tcp" for table in ("iptables", "ip6tables")),
    ]
    in_order(steps, READY, "systemctl stop k3s-agent", gone, RESTARTED, READY)
    no_mac = "flannel.alpha.coreos.com/backend-data- flannel.alpha.coreos.com/backend-v6-data-"
    in_order(steps, f"kubectl annotate node worker-1 {no_mac}", RESTARTED)
    assert worker.said == ["the pod CIDR of this Node has changed: restarting its pods and their network"]


def test_archives_and_registries_are_there_before_the_agent_starts(tmp_path: Path) -> None:
    host, archives = Host(tmp_path), []
    for name in ("cuda%2B12.tar.zst", "pause.tar"):
        host.state(f"mirror/{name}", name)
        archives.append(f"{hashlib.sha256(name.encode()).hexdigest()} https://mirror/{name}\n")
    steps = install(host, registries="mirrors: {}\n", IMAGES="".join(archives))
    images = "/var/lib/rancher/k3s/agent/images"
    archived = [f"write {images}/cuda+12.tar.zst", f"touch {images}/.cache.json", f"write {images}/pause.tar"]
    in_order(steps, archived, CONFIG_WRITTEN, RESTARTED)
    in_order(
        steps, "write /var/lib/busbar/registries.written", "write /etc/rancher/k3s/registries.yaml", RESTARTED
    )
    modes = host.files()
    assert (modes["/etc/rancher/k3s/registries.yaml"], modes[f"{images}/pause.tar"]) == ("600", "644")


@pytest.fixture
def pod() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a pod."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_removed_worker_stops_its_pods_before_their_mounts_and_is_forgotten_last(
    worker: Host, pod: subprocess.Popen[bytes]
) -> None:
    install(worker, registries="mirrors: {}\n")
    root = worker.root
    worker.state(
        "processes", f"{pod.pid} 1 containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml\n"
    )
    worker.state("ip netns list", "cni-1 (id: 0)\nsite\n")
    worker.state("ip link show", "7: veth1@if2: <UP> master cni0\n8: eth0: <UP>\n")
    worker.state("rules", "*filter\n-A FORWARD -j KUBE-FORWARD\n-A INPUT -p tcp\n")
    mounts = [f"{root}/run/k3s/a", f"{root}/var/lib/kubelet/pods/1", f"{root}/run/netns/cni-1", "/site"]
    worker.write("proc/self/mounts", "".join(f"x {mount} fs rw 0 0\n" for mount in mounts))
    for made in (
        "run/k3s/x",
        "run/busbar-kubectl/x",
        "run/busbar/script",
        "var/lib/kubelet/x",
        "var/log/pods/x",
    ):
        worker.write(made, "")
    networks = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.4.1/24\nFLANNEL_IPV6_NETWORK=fd00::/56\n"
    worker.write("run/flannel/subnet.env", networks)
    facts = worker.facts("k3s-agent", {}, VERB="remove", **OWNER)
    assert facts == {"node": "worker-1", "removed": True}
    stopped = "systemctl disable --now k3s-agent"
    unmounted = [
        f"umount -- {mount}" for mount in ("/run/k3s/a", "/var/lib/kubelet/pods/1", "/run/netns/cni-1")
    ]
    in_order(worker.steps, stopped, unmounted, "ip netns delete cni-1")
    network = [
        "ip link delete veth1",
        *DELETED_LINKS,
        "ip -4 route flush root 10.42.0.0/16",
        "ip -6 route flush root fd00::/56",
        *(f"{table}-restore: *filter|-A INPUT -p tcp" for table in ("iptables", "ip6tables")),
    ]
    in_order(worker.steps, stopped, network, "rm /run/flannel")
    in_order(
        worker.steps, "rm /etc/systemd/system/k3s-agent.service", RELOADED, "write /var/lib/busbar.removed"
    )
    forgotten = ["write /var/lib/busbar.removed", "rm /var/lib/busbar.removed", "rm /run/busbar"]
    assert worker.steps[-3:] == forgotten, "until then the removal can begin again"
    assert not [step for step in worker.steps if step.endswith(" /site") or "ip netns delete site" in step]
    assert worker.files() == {}
    folders = ("etc/rancher", "var/lib/rancher", "var/lib/kubelet", "var/log/pods", "run/k3s", "run/flannel")
    assert not [folder for folder in folders if (root / folder).exists()]
    assert pod.wait(5) == -9


def test_a_worker_that_busbar_did_not_install_is_left_alone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    facts = host.facts("k3s-agent", {}, VERB="remove", **OWNER)
    assert (facts, host.steps) == ({"node": "worker-1", "removed": False}, [])


@pytest.mark.parametrize(
    ("script", "verb", "says"),
    [
        ("k3s-agent", "start", "VERB=start is unknown. Fix: use one of: install remove"),
        ("k3s-server", "start", "VERB=start is unknown. Fix: use one of: install remove"),
    ],
)
def test_an_unknown_verb_changes_nothing(tmp_path: Path, script: str, verb: str, says: str) -> None:
    host = Host(tmp_path)
    done = host.run(script, {}, **{**VALUES, "VERB": verb})
    assert (done.returncode, host.steps, done.stdout) == (1, [], "")
    assert says in done.stderr


def test_a_host_that_is_a_server_becomes_no_worker(worker: Host) -> None:
    worker.state("active.k3s", "")
    assert "k3s already runs on this host" in refused(worker)
    assert worker.steps == []


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("curl *-o *", f"download of https://mirror/k3s-{VERSION} failed: "),
        ("systemctl enable *", "systemctl enable k3s-agent failed. Fix: see: systemctl status k3s-agent"),
        (
            "k3s * annotate *",
            "setting the annotation busbar/machine on Node worker-1 failed. Fix: kubectl says why",
        ),
        (
            "k3s *{.spec.podCIDR}",
            "the pod CIDR of Node worker-1 is unknown: the API is not responding. Fix: retry",
        ),
        (
            "k3s *kubeletVersion}",
            "Node worker-1 Ready: timed out after 420 s. Fix: look above for what it repeats",
        ),
        ("mktemp *k3s-agent.service*", "failed (status 60): "),
    ],
)
def test_a_step_of_a_new_worker_that_fails_says_why_and_nothing_counts_as_applied(
    tmp_path: Path, fails: str, says: str
) -> None:
    host = Host(tmp_path)
    assert says in refused(host, fails)
    assert "write /var/lib/busbar/k3s-agent.sha256" not in host.steps


def test_a_running_worker_is_not_restarted_where_nothing_tells_that_it_is_drained(worker: Host) -> None:
    config = CONFIG + "kubelet-arg:\n- v=1\n"
    assert scripts.NOT_DRAINED in refused(worker, "k3s *busbar/cordoned*", config, DRAIN="always")
    assert RESTARTED not in worker.steps


def test_kernel_settings_that_a_container_refuses_are_only_noted(tmp_path: Path) -> None:
    host = Host(tmp_path)
    done = host.run(
        "k3s-agent", {"config": CONFIG}, fails="sysctl *", VERB="install", **VALUES, **host.release(VERSION)
    )
    assert done.returncode == 0
    in_order(host.steps, RESTARTED, READY, RECORDED)
    assert "some kernel settings of " in done.stderr and " were refused" in done.stderr


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "AMD64"), ("aarch64", "ARM64")])
def test_a_worker_gets_the_binary_of_its_processor(tmp_path: Path, machine: str, arch: str) -> None:
    host = Host(tmp_path)
    host.write("usr/local/bin/uname", f"#!/bin/sh\necho {machine}\n")
    (host.root / "usr/local/bin/uname").chmod(0o755)
    release = host.release(VERSION)
    other = "ARM64" if arch == "AMD64" else "AMD64"
    install(host, **{f"URL_{other}": "https://mirror/other", f"SHA256_{other}": "0" * 64})
    assert f"download {release['URL_AMD64']}" in host.steps
    assert f"no checksum of K3s {VERSION} for {arch.lower()} is configured" in refused(
        host, **{f"SHA256_{arch}": ""}
    )


def test_a_processor_without_a_k3s_is_refused(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write("usr/local/bin/uname", "#!/bin/sh\necho riscv64\n")
    (host.root / "usr/local/bin/uname").chmod(0o755)
    assert "processor is riscv64, expected x86_64 or aarch64" in refused(host)


def test_only_root_installs_anything(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write("usr/local/bin/user", "#!/bin/sh\necho 1000\n")
    (host.root / "usr/local/bin/user").chmod(0o755)
    (host.root / "usr/local/bin/user").rename(host.root / "usr/local/bin/id")
    assert refused(host) == "busbar: worker-1: not root. Fix: run it as root or under sudo"
    assert host.steps == []


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("iptables-restore*", "rules of Kubernetes may remain in iptables; a reboot clears them"),
        ("umount -- *", ""),
        ("ip link delete*", ""),
        ("systemctl reset-failed*", ""),
    ],
)
def test_what_fails_on_the_way_holds_up_no_removal(worker: Host, fails: str, said: str) -> None:
    worker.state("rules", "*filter\n")
    worker.write("proc/self/mounts", f"x {worker.root}/run/k3s/a fs rw 0 0\n")
    done = worker.run("k3s-agent", {}, fails=fails, VERB="remove", **OWNER)
    assert (done.returncode, worker.files()) == (0, {})
    assert done.stderr == (f"busbar: worker-1: {said}\n" if said else "")
