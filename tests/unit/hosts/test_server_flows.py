"""The whole script of a server: installed, joined, updated, rotated, removed."""

import hashlib
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.hosts.recorded import VERSION, Host, changes, in_order
from tests.unit.hosts.test_quorum import servers

pytestmark = pytest.mark.slow

NEXT = "v1.35.7+k3s1"
CONFIG = "agent-token: agents\nnode-name: server-1\ntls-san:\n- 10.0.0.9\ntoken: secret\n"
WITH_ANOTHER_NAME = CONFIG.replace("- 10.0.0.9\n", "- 10.0.0.9\n- api.example.com\n")
VALUES = {
    **{"OWNER": "busbar/dev/server-1", "INSTALL_ID": "11", "NODE_NAME": "server-1"},
    **{"NODE_ADDRESS": "10.0.0.11", "PEERS": "10.0.0.12 10.0.0.13", "API_ADDRESS": "10.0.0.9"},
}
MADE, CHANGED = '{"k3s.cluster_cidr": "10.42.0.0/16"}', '{"k3s.cluster_cidr": "10.44.0.0/16"}'


def given(
    host: Host, version: str, config: str, values: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Payload and values of an installation or an update; names in lower case are of the payload."""
    payload = {"config": config, "registries": "", "first_values": MADE}
    payload |= {name: text for name, text in values.items() if name.islower()}
    other = {name: text for name, text in values.items() if name.isupper()}
    return payload, {"VERB": "install", "FIRST": "true", **VALUES, **host.release(version), **other}


def install(host: Host, config: str = CONFIG, *, version: str = VERSION, **values: str) -> list[str]:
    """The steps of an installation or an update."""
    payload, values = given(host, version, config, values)
    facts = host.facts("k3s-server", payload, **values)
    assert facts == {"node": "server-1", "version": version, "ca_sha256": "c" * 64, "ca_pem": "the CA"}
    return host.steps


def refused(host: Host, fails: str = "", config: str = CONFIG, version: str = VERSION, **values: str) -> str:
    """The error of an update that fails."""
    payload, values = given(host, version, config, values)
    return host.error("k3s-server", payload, fails=fails, **values)


def bare(root: Path) -> Host:
    host = Host(root)
    host.state("ip addr show", "2: eth0    inet 10.0.0.11/16 scope global eth0\n")
    return host


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[str]]:
    """The first of three servers, and the steps of its installation."""
    host = bare(tmp_path_factory.mktemp("server") / "root")
    steps = install(host)
    host.state("peers", "10.0.0.12\n10.0.0.13\n")
    host.state("members", servers(3))
    host.save()
    return host, steps


@pytest.fixture
def server(installed: tuple[Host, list[str]]) -> Host:
    return installed[0].restore()


CONFIG_WRITTEN = "write /etc/rancher/k3s/config.yaml"
RELOADED = "systemctl daemon-reload"
FORGOTTEN = "rm /var/lib/busbar/k3s.sha256"
RESTARTED = "systemctl --no-block restart k3s"
STOPPED = "systemctl disable --now k3s"
QUORUM = ["who votes?", "is https://10.0.0.2 ready?", "is https://10.0.0.3 ready?"]
BACK = ["is the Node Ready?", "does this server vote?"]
RECORDED = ["write /var/lib/busbar/k3s.sha256", "write /var/lib/busbar/applied.sha256"]


def test_a_server_is_marked_first_and_recorded_when_it_is_back(installed: tuple[Host, list[str]]) -> None:
    steps = installed[1]
    files = [CONFIG_WRITTEN, "write /usr/local/bin/k3s", "write /etc/rancher/k3s/auth-config.yaml"]
    files += ["write /var/lib/busbar/first-values", "sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf"]
    in_order(steps, "write /var/lib/busbar/owner", "write /var/lib/busbar/preexisting", files)
    in_order(steps, f"download https://mirror/k3s-{VERSION}", "write /usr/local/bin/k3s")
    in_order(steps, files, RELOADED, RESTARTED, BACK, RECORDED)
    in_order(steps, ["systemctl enable -q k3s", "systemctl reset-failed k3s"], RESTARTED)
    in_order(steps, BACK, "kubectl annotate node server-1 busbar/machine=feb491e2 --overwrite", RECORDED)
    assert steps.count(RESTARTED) == 1


def test_the_files_of_a_server_have_the_lines_of_this_host_and_are_private(server: Host) -> None:
    ends = ["cluster-init: true", 'node-ip: "10.0.0.11"', 'flannel-iface: "eth0"']
    written = server.text("etc/rancher/k3s/config.yaml").splitlines()
    assert written[1:] == [*CONFIG.splitlines(), *ends]
    anybody = "anonymous:\n  enabled: true\n  conditions:\n    - path: /livez\n    - path: /readyz\n"
    assert server.text("etc/rancher/k3s/auth-config.yaml").endswith(anybody), "and nothing else"
    by_k3s = "/var/lib/rancher/k3s/server/"
    modes = server.files()
    assert {path: mode for path, mode in modes.items() if mode != "600" and not path.startswith(by_k3s)} == {
        "/usr/local/bin/k3s": "755",
        "/etc/systemd/system/k3s.service": "644",
        "/etc/systemd/system/k3s.service.d/10-busbar-memlock.conf": "644",
        "/etc/sysctl.d/90-busbar-kubelet.conf": "644",
    }
    assert modes[f"{by_k3s}token"] == "600"
    assert "/var/lib/busbar/k3s" not in modes, "the downloaded binary does not stay"


def test_a_server_of_an_ipv6_cluster_counts_as_back_when_etcd_votes(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.state("ip addr show", "2: eth0    inet6 fd00::11/64 scope global \n")
    cidrs = "cluster-cidr: fd00:42::/56\nservice-cidr: fd00:43::/112\n"
    steps = install(host, CONFIG + cidrs, NODE_ADDRESS="fd00::11", PEERS="fd00::12 fd00::13")
    in_order(steps, RESTARTED, BACK, RECORDED)
    assert 'node-ip: "fd00::11"' in host.text("etc/rancher/k3s/config.yaml").splitlines()


def test_a_server_that_never_started_notes_the_values_of_the_next_try(tmp_path: Path) -> None:
    host = bare(tmp_path)
    host.write("var/lib/busbar/first-values", CHANGED)
    install(host)
    assert host.text("var/lib/busbar/first-values") == MADE + "\n"


def test_a_server_without_a_note_of_its_first_values_makes_one_when_the_cluster_works(server: Host) -> None:
    (server.root / "var/lib/busbar/first-values").unlink()
    server.state("lease", datetime.now(UTC).isoformat())
    install(server)
    assert server.text("var/lib/busbar/first-values") == MADE + "\n"


def test_an_update_that_changes_nothing_restarts_no_server_and_asks_no_other(server: Host) -> None:
    steps = install(server, first_values=CHANGED)
    assert changes(steps) == []
    assert {*BACK} <= {*steps} and "who votes?" not in steps
    assert server.text("var/lib/busbar/first-values") == MADE + "\n", "what the cluster was made with"


def test_an_upgrade_saves_etcd_first_and_restarts_while_the_others_answer(server: Host) -> None:
    saved = "k3s etcd-snapshot save --name busbar-before-v1.35.7-k3s1"
    binary = "write /usr/local/bin/k3s"
    steps = install(server, version=NEXT)
    in_order(steps, f"download https://mirror/k3s-{NEXT}", saved, binary, FORGOTTEN, QUORUM, RESTARTED)
    in_order(steps, RESTARTED, BACK, RECORDED)


def test_a_server_whose_etcd_cannot_be_saved_is_not_upgraded(server: Host) -> None:
    said = refused(server, "k3s * etcd-snapshot *", version=NEXT)
    assert "the snapshot of etcd before the upgrade to v1.35.7+k3s1 failed; no changes made" in said
    assert RESTARTED not in server.steps


def test_a_server_that_does_not_come_back_has_nothing_applied(server: Host) -> None:
    said = refused(server, "curl */health", CONFIG + "disable:\n- traefik\n")
    assert "Node server-1 Ready and a voter in etcd: timed out after 420 s" in said
    assert RESTARTED in server.steps
    assert RECORDED[0] not in server.steps


def test_another_name_of_the_api_renews_its_certificate_with_a_restart_of_its_own(server: Host) -> None:
    flag = "/var/lib/busbar/rotate-certificates"
    drop_in = "/run/systemd/system/k3s.service.d/90-busbar-rotate.conf"
    steps = install(server, WITH_ANOTHER_NAME)
    due = [f"touch {flag}", f"write {drop_in}"]
    in_order(steps, [CONFIG_WRITTEN, FORGOTTEN], QUORUM, RESTARTED, BACK, due)
    in_order(steps, due, RELOADED, QUORUM, RESTARTED, "k3s certificate rotate")
    in_order(steps, "k3s certificate rotate", f"rm {flag}", BACK, [f"rm {drop_in}"], RELOADED, RECORDED)
    assert steps.count(RESTARTED) == 2 and "write /var/lib/busbar/rotated" in steps


def test_server_1_rotates_the_token_in_etcd_before_it_restarts_and_saves_etcd_after(server: Host) -> None:
    steps = install(server, CONFIG.replace("token: secret", "token: next"), ROTATE_SERVER_TOKEN="1")
    in_order(steps, "PUT token: server:secret next", "write /var/lib/busbar/token-in-etcd", FORGOTTEN)
    passwords = "rm /var/lib/rancher/k3s/server/cred/passwd"
    in_order(steps, [passwords, FORGOTTEN, CONFIG_WRITTEN], QUORUM, RESTARTED, BACK)
    saved = ["PUT token: server:next next", "k3s etcd-snapshot save --name busbar-after-token-1"]
    in_order(steps, BACK, *saved, "write /var/lib/busbar/rotated", RECORDED)


def test_pods_of_a_server_with_another_pod_network_start_anew_while_the_others_answer(server: Host) -> None:
    server.state("bridge", "5: cni0    inet 10.42.9.1/24 brd 10.42.9.255 scope global cni0\n")
    no_mac = "flannel.alpha.coreos.com/backend-data- flannel.alpha.coreos.com/backend-v6-data-"
    stopped = [f"kubectl annotate node server-1 {no_mac}", "systemctl stop k3s"]
    in_order(install(server), BACK, QUORUM, stopped, "ip6tables-restore: ", RESTARTED, BACK)


def test_a_server_that_etcd_has_removed_stops_and_joins_another_one(server: Host) -> None:
    server.write("var/lib/rancher/k3s/server/db/etcd/tombstone", "")
    in_order(install(server), STOPPED, CONFIG_WRITTEN, RESTARTED)
    assert 'server: "https://10.0.0.12:6443"' in server.text("etc/rancher/k3s/config.yaml").splitlines()


def test_a_running_server_loads_issuers_without_a_restart_and_what_a_removal_left_goes(server: Host) -> None:
    auth, kept = "etc/rancher/k3s/auth-config.yaml", "/var/lib/busbar/auth-config.loaded"
    issuer = "jwt:\n- issuer:\n    url: https://login.example.com\n"
    digest = hashlib.sha256(f"{server.text(auth)}{issuer}".encode()).hexdigest()
    name = "apiserver_authentication_config_controller_last_config_info"
    server.state("metrics", f'{name}{{apiserver_id_hash="sha256:ab",hash="sha256:{digest}"}} 1\n')
    left = ("run/busbar-teardown", "run/systemd/system/k3s.service.d/90-busbar-leaving.conf")
    for path in left:
        server.write(path, "")
    steps = install(server, jwt=issuer)
    in_order(steps, [f"rm /{path}" for path in left], RELOADED)
    in_order(steps, f"write {kept}", f"write /{auth}", f"rm {kept}", BACK, RECORDED[1])
    assert RESTARTED not in steps
    assert server.text(auth).endswith(f"    - path: /readyz\n{issuer}")


@pytest.mark.parametrize(
    ("prepare", "values", "says"),
    [
        ("var/lib/busbar/restoring", {}, "an earlier restore of etcd is not finished on this host; no"),
        ("state/active.k3s-agent", {}, "k3s-agent already runs on this host"),
        ("state/active.rke2-agent", {}, "another Kubernetes cluster: rke2-agent is active. Fix: use another"),
        ("", {"NODE_NAME": "server-9"}, "this server is server-1 in etcd and cannot become server-9; no"),
        ("", {"VERB": "start"}, "VERB=start is unknown. Fix: use one of: install remove"),
        ("etc/keepalived/keepalived.conf", {"VIRTUAL_IP": "10.0.0.8"}, "keepalived is already running"),
    ],
)
def test_a_refusal_changes_nothing(server: Host, prepare: str, values: dict[str, str], says: str) -> None:
    server.state("active.keepalived", "")
    if prepare:
        server.write(prepare, "of the site")
    assert says in refused(server, **values)
    assert server.steps == []


KEEPALIVED = "/etc/keepalived/keepalived.conf"
INSTALLED = "apt-get install -y --no-install-recommends keepalived"
CHECKED = [f"write {KEEPALIVED}.busbar-new", f"keepalived checks {KEEPALIVED}.busbar-new"]
LOADED = [f"write {KEEPALIVED}", "systemctl reload-or-restart keepalived"]
GONE = ["systemctl disable --now keepalived", "apt-get purge -y keepalived", f"rm {KEEPALIVED}"]
ANSWERS = "is https://10.0.0.8 ready?"
CONF = "# Written by busbar\ngood "


def share(host: Host, peers: str = "10.0.0.12") -> list[str]:
    return install(host, keepalived_conf=f"{CONF}{peers}\n", VIRTUAL_IP="10.0.0.8")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[str]]:
    """A server that shares an address, and the steps of its installation."""
    host = bare(tmp_path_factory.mktemp("shared") / "root")
    steps = share(host)
    host.save()
    return host, steps


@pytest.fixture
def sharing(shared: tuple[Host, list[str]]) -> Host:
    return shared[0].restore()


def applied(host: Host) -> str:
    return host.text("var/lib/busbar/applied.sha256")


def test_a_server_shares_the_address_once_it_is_up(shared: tuple[Host, list[str]]) -> None:
    in_order(shared[1], RESTARTED, BACK, INSTALLED, *CHECKED, *LOADED, ANSWERS, RECORDED)
    assert KEEPALIVED in applied(shared[0])


def test_another_peer_reloads_keepalived_and_k3s_does_not_restart(sharing: Host) -> None:
    sharing.write(KEEPALIVED[1:], "# Written by busbar\nby hand\n")
    steps = share(sharing, "10.0.0.12 10.0.0.13")
    in_order(steps, *CHECKED, *LOADED, ANSWERS)
    assert not {RESTARTED, FORGOTTEN} & {*steps}


def test_a_server_that_shares_no_address_any_more_has_no_keepalived(sharing: Host) -> None:
    in_order(install(sharing), *GONE)
    assert KEEPALIVED not in applied(sharing)


def test_an_address_that_does_not_answer_is_named(sharing: Host) -> None:
    said = refused(sharing, "curl *10.0.0.8:6443/readyz", keepalived_conf=CONF, VIRTUAL_IP="10.0.0.8")
    assert "the virtual IP 10.0.0.8 is not responding after 30 s. Fix: check hosts.virtual_ip" in said


def remove(host: Host, **values: str) -> list[str]:
    """The steps of a removal, after which nothing of busbar is on the host."""
    facts = host.facts("k3s-server", {}, VERB="remove", **{**VALUES, **values})
    assert facts == {"node": "server-1", "removed": True}
    assert host.files() == {}
    return host.steps


def test_a_file_of_the_site_where_ours_was_is_there_again_after_a_removal(tmp_path: Path) -> None:
    host, auth = bare(tmp_path), "etc/rancher/k3s/auth-config.yaml"
    host.write(auth, "of the site")
    install(host)
    host.write("run/busbar-teardown", "")
    host.facts("k3s-server", {}, VERB="remove", **VALUES)
    assert host.text(auth) == "of the site"


# The first of the peers does not answer.
OTHER = "kubectl --server https://10.0.0.13:6443"
DELETED = [
    f"{OTHER} delete node server-1 --ignore-not-found --timeout=45s",
    f"{OTHER} -n kube-system delete secret server-1.node-password.k3s --ignore-not-found --timeout=45s",
]
LEAVES = f"{OTHER} annotate node server-1 etcd.k3s.cattle.io/remove=true --overwrite"
UNINSTALLED = "ip link delete cni0"


@pytest.mark.parametrize("name", ["server-1", "Node-17.example.com"], ids=["its name", "by hand"])
def test_one_of_three_servers_stops_before_it_leaves_etcd_through_another_one(
    server: Host, name: str
) -> None:
    server.state("api", "https://10.0.0.13:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\nserver-3 True\n")
    in_order(remove(server, NODE_NAME=name), STOPPED, LEAVES, DELETED, UNINSTALLED)


def test_one_of_two_servers_leaves_etcd_while_it_runs_and_never_starts_again(server: Host) -> None:
    removable = "/run/systemd/system/k3s.service.d/90-busbar-leaving.conf"
    server.state("api", "https://10.0.0.13:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\n")
    steps = remove(server)
    in_order(steps, f"write {removable}", RELOADED, LEAVES, STOPPED, f"rm {removable}", RELOADED)
    in_order(steps, STOPPED, DELETED, UNINSTALLED)
    assert STOPPED not in steps[: steps.index(LEAVES)]


def test_a_server_whose_whole_cluster_goes_gives_its_address_back_and_leaves_no_etcd(sharing: Host) -> None:
    sharing.write("run/busbar-teardown", "")
    steps = remove(sharing)
    in_order(steps, *GONE, UNINSTALLED, "rm /run/busbar-teardown")
    assert not [step for step in steps if step.startswith("kubectl")]


@pytest.mark.parametrize(("by_hand", "with_unit"), [("v1.36.0-rc1+k3s1", True), ("v1.40.2+k3s1", False)])
def test_a_k3s_that_others_upgraded_to_another_minor_version_is_not_downgraded(
    server: Host, by_hand: str, with_unit: bool
) -> None:
    """Preflight does not look again for another secret, or for a step that is repeated."""
    if not with_unit:  # as a fix of preflight says where it is not ours
        (server.root / "etc/systemd/system/k3s.service").unlink()
    server.release(by_hand)
    shutil.copyfile(server.root / f"state/mirror/k3s-{by_hand}", server.root / "usr/local/bin/k3s")
    before = server.files()
    said = refused(server, config=f"{CONFIG}disable: [traefik]\n")
    assert f"runs K3s {by_hand}, which is newer than k3s.version {VERSION}; no changes made. Fix: set" in said
    assert (server.files(), server.steps) == (before, [])
