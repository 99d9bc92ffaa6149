"""The whole script of a server: installed, joined, updated, rotated, removed."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from tests.unit.hosts.recorded import VERSION, Host, changes, in_order
from tests.unit.hosts.test_quorum import members

pytestmark = pytest.mark.slow

NEXT = "v1.35.7+k3s1"
CONFIG = "agent-token: agents\nnode-name: server-1\ntls-san:\n- 10.0.0.9\ntoken: secret\n"
WITH_ANOTHER_NAME = CONFIG.replace("- 10.0.0.9\n", "- 10.0.0.9\n- api.example.com\n")
OWNER = {"OWNER": "busbar/dev/server-1", "INSTALL_ID": "11", "NODE_NAME": "server-1"}
VALUES = {**OWNER, "NODE_ADDRESS": "10.0.0.11", "PEERS": "10.0.0.12 10.0.0.13"}


def install(
    host: Host,
    config: str = CONFIG,
    *,
    version: str = VERSION,
    first: str = "true",
    jwt: str = "",
    first_values: str = "",
    **values: str,
) -> list[str]:
    """The steps of an installation or an update."""
    more = {"jwt": jwt, "first_values": first_values}
    payload = {"config": config, "registries": "", **{key: text for key, text in more.items() if text}}
    values = {"VERB": "install", "FIRST": first, **VALUES, **host.release(version), **values}
    facts = host.facts("k3s-server", payload, **values)
    assert facts == {"node": "server-1", "version": version, "ca_sha256": "c" * 64, "ca_pem": "the CA"}
    return host.steps


def bare(root: Path) -> Host:
    host = Host(root)
    host.state("ip addr show", "2: eth0    inet 10.0.0.11/16 scope global eth0\n")
    return host


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return bare(tmp_path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = bare(tmp_path_factory.mktemp("server") / "root")
    install(host)
    host.state("peers", "10.0.0.12\n10.0.0.13\n")
    host.state("members", members("server-1", "server-2", "server-3"))
    host.save()
    return host


@pytest.fixture
def server(installed: Host) -> Host:
    """One of three servers."""
    return installed.restore()


OWNED = "write /var/lib/busbar/owner"
FOUND = [f"write /var/lib/busbar/{name}" for name in ("absent", "mounts", "preexisting")]
DOWNLOADED = f"download https://mirror/k3s-{VERSION}"
BINARY = "write /usr/local/bin/k3s"
CONFIG_WRITTEN = "write /etc/rancher/k3s/config.yaml"
SETTINGS = [
    "write /etc/rancher/k3s/auth-config.yaml",
    CONFIG_WRITTEN,
    "write /etc/systemd/system/k3s.service",
    "write /etc/systemd/system/k3s.service.d/10-busbar-memlock.conf",
    "sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf",
]
RELOADED = "systemctl daemon-reload"
FORGOTTEN = "rm /var/lib/busbar/k3s.sha256"
RESTARTED = "systemctl --no-block restart k3s"
QUORUM = ["who votes?", "is https://10.0.0.2 ready?", "is https://10.0.0.3 ready?"]
BACK = ["is the Node Ready?", "does this server vote?"]
NO_MAC = (
    "kubectl annotate node server-1 flannel.alpha.coreos.com/backend-data- "
    "flannel.alpha.coreos.com/backend-v6-data-"
)
NOTED = "kubectl annotate node server-1 busbar/machine=feb491e2 --overwrite"
TOKEN = "write /var/lib/busbar/token-in-etcd"
RECORDED = ["write /var/lib/busbar/k3s.sha256", "write /var/lib/busbar/applied.sha256"]


def is_new(steps: list[str]) -> None:
    """Everything is there before the one start, and nothing counts as applied before the server is back."""
    in_order(steps, OWNED, FOUND, DOWNLOADED, [BINARY, *SETTINGS], [RELOADED, "systemctl enable -q k3s"])
    in_order(steps, [RELOADED, "systemctl reset-failed k3s"], RESTARTED, BACK, [NOTED, TOKEN], RECORDED)
    assert steps.count(RESTARTED) == 1


def written(host: Host) -> list[str]:
    """config.yaml, without its comment."""
    return (host.root / "etc/rancher/k3s/config.yaml").read_text().splitlines()[1:]


def test_the_first_server_begins_a_cluster(machine: Host) -> None:
    is_new(install(machine))
    ends = ["cluster-init: true", 'node-ip: "10.0.0.11"', 'flannel-iface: "eth0"']
    assert written(machine) == [*CONFIG.splitlines(), *ends]


FIRST_VALUES = "var/lib/busbar/first-values"
MADE, CHANGED = '{"k3s.cluster_cidr": "10.42.0.0/16"}', '{"k3s.cluster_cidr": "10.44.0.0/16"}'


def test_a_server_notes_what_the_cluster_is_made_with_before_its_first_start_and_keeps_it(
    machine: Host,
) -> None:
    steps = install(machine, first_values=MADE)
    assert steps.index("write /var/lib/busbar/first-values") < steps.index(RESTARTED)
    install(machine, first_values=CHANGED)
    assert (machine.root / FIRST_VALUES).read_text() == MADE + "\n"


def test_a_server_that_never_started_notes_the_values_of_the_next_try(machine: Host) -> None:
    refused(machine, "systemctl enable*", more={"first_values": MADE})
    assert (machine.root / FIRST_VALUES).read_text() == MADE + "\n"
    install(machine, first_values=CHANGED)
    assert (machine.root / FIRST_VALUES).read_text() == CHANGED + "\n"


@pytest.mark.parametrize(("age", "noted"), [(10, True), (90, False)])
def test_a_server_without_the_note_gets_it_from_an_update_after_which_the_cluster_works(
    server: Host, age: int, noted: bool
) -> None:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    server.state("lease", renewed)
    install(server, first_values=MADE)
    assert (server.root / FIRST_VALUES).exists() == noted


def test_a_new_cluster_has_done_the_rotations_that_it_is_made_with(machine: Host) -> None:
    is_new(install(machine, ROTATE_SERVER_TOKEN="1", ROTATE_CERTIFICATES="2"))
    assert (machine.root / "var/lib/busbar/rotated").read_text() == "certificates 2\nserver_token 1\n"


def test_another_server_joins_the_first_one(machine: Host) -> None:
    machine.state("peers", "10.0.0.12\n")
    is_new(install(machine, first="false"))
    ends = ['server: "https://10.0.0.12:6443"', 'node-ip: "10.0.0.11"', 'flannel-iface: "eth0"']
    assert written(machine) == [*CONFIG.splitlines(), *ends]


def test_the_files_of_a_server_have_their_modes(server: Host) -> None:
    modes = server.files()
    by_k3s = "/var/lib/rancher/k3s/server/"
    assert {path: mode for path, mode in modes.items() if mode != "600" and not path.startswith(by_k3s)} == {
        "/usr/local/bin/k3s": "755",
        "/etc/systemd/system/k3s.service": "644",
        "/etc/systemd/system/k3s.service.d/10-busbar-memlock.conf": "644",
        "/etc/sysctl.d/90-busbar-kubelet.conf": "644",
    }
    assert modes[f"{by_k3s}token"] == "600"
    assert "/var/lib/busbar/k3s" not in modes, "the downloaded binary does not stay"


def test_strangers_may_ask_whether_a_server_is_ready_and_nothing_else(server: Host) -> None:
    allowed = yaml.safe_load((server.root / "etc/rancher/k3s/auth-config.yaml").read_text())
    assert allowed == {
        "apiVersion": "apiserver.config.k8s.io/v1beta1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": True, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]},
    }


def test_the_kubelet_gets_the_kernel_settings_that_it_checks(server: Host) -> None:
    settings = (server.root / "etc/sysctl.d/90-busbar-kubelet.conf").read_text().splitlines()
    assert {*settings} == {
        "vm.panic_on_oom = 0", "vm.overcommit_memory = 1", "kernel.panic = 10", "kernel.panic_on_oops = 1",
    }  # fmt: skip


def test_an_update_that_changes_nothing_restarts_no_server_and_asks_no_other(server: Host) -> None:
    steps = install(server)
    assert changes(steps) == []
    assert {*BACK} <= {*steps} and "who votes?" not in steps


def test_what_an_interrupted_removal_left_goes_with_the_next_installation(server: Host) -> None:
    left = ("run/busbar-teardown", "run/systemd/system/k3s.service.d/90-busbar-leaving.conf")
    for path in left:
        server.write(path, "")
    in_order(install(server), [f"rm /{path}" for path in left], RELOADED)


def test_an_upgrade_saves_etcd_first_and_restarts_while_the_others_answer(server: Host) -> None:
    saved = "k3s etcd-snapshot save --name busbar-before-v1.35.7-k3s1"
    steps = install(server, version=NEXT)
    in_order(steps, f"download https://mirror/k3s-{NEXT}", saved, BINARY, FORGOTTEN, QUORUM, RESTARTED, BACK)
    in_order(steps, RESTARTED, BACK, RECORDED)


def test_another_name_of_the_api_renews_its_certificate_with_a_restart_of_its_own(server: Host) -> None:
    flag = "/var/lib/busbar/rotate-certificates"
    drop_in = "/run/systemd/system/k3s.service.d/90-busbar-rotate.conf"
    steps = install(server, WITH_ANOTHER_NAME)
    due = [f"touch {flag}", f"write {drop_in}"]
    in_order(steps, [CONFIG_WRITTEN, FORGOTTEN], QUORUM, RESTARTED, BACK, due)
    in_order(steps, due, RELOADED, QUORUM, RESTARTED, "k3s certificate rotate")
    in_order(steps, "k3s certificate rotate", f"rm {flag}", BACK, [f"rm {drop_in}"], RELOADED, RECORDED)
    assert steps.count(RESTARTED) == 2 and "write /var/lib/busbar/rotated" in steps


def is_rotated(steps: list[str]) -> None:
    """The token is taken with a restart while the others answer, and noted when the server is back."""
    written = ["rm /var/lib/rancher/k3s/server/cred/passwd", FORGOTTEN, CONFIG_WRITTEN]
    in_order(steps, written, QUORUM, RESTARTED, BACK, "write /var/lib/busbar/rotated", RECORDED)


def test_server_1_rotates_the_token_in_etcd_before_it_restarts_and_saves_etcd_after(server: Host) -> None:
    steps = install(server, CONFIG.replace("token: secret", "token: next"), ROTATE_SERVER_TOKEN="1")
    is_rotated(steps)
    in_order(steps, "PUT token: server:secret next", TOKEN, FORGOTTEN, RESTARTED, BACK)
    saved = "k3s etcd-snapshot save --name busbar-after-token-1"
    in_order(steps, RESTARTED, BACK, "PUT token: server:next next", saved, "write /var/lib/busbar/rotated")


def test_another_server_takes_the_rotated_token_with_its_restart(server: Host) -> None:
    config = CONFIG.replace("token: secret", "token: next")
    steps = install(server, config, first="false", ROTATE_SERVER_TOKEN="1")
    is_rotated(steps)
    in_order(steps, RESTARTED, BACK, TOKEN)
    assert not [step for step in steps if step.startswith(("PUT", "k3s etcd-snapshot"))]


def test_pods_of_a_server_with_another_pod_network_start_anew_while_the_others_answer(server: Host) -> None:
    server.state("bridge", "5: cni0    inet 10.42.9.1/24 brd 10.42.9.255 scope global cni0\n")
    steps = install(server)
    in_order(steps, BACK, QUORUM, [NO_MAC, "systemctl stop k3s"], "ip6tables-restore: ", RESTARTED, BACK)


TOMBSTONE = "var/lib/rancher/k3s/server/db/etcd/tombstone"


def test_a_server_that_etcd_has_removed_joins_another_one_and_never_begins_a_cluster(server: Host) -> None:
    server.write(TOMBSTONE, "")
    steps = install(server)
    in_order(steps, "systemctl disable --now k3s", CONFIG_WRITTEN, RESTARTED)
    assert 'server: "https://10.0.0.12:6443"' in written(server)


def test_a_server_that_etcd_has_removed_waits_for_a_server_that_is_ready(server: Host) -> None:
    server.write(TOMBSTONE, "")
    said = refused(server, "curl *:6443/readyz")
    assert "etcd has removed this server, and no other server is ready (10.0.0.12 10.0.0.13)" in said
    assert "systemctl disable --now k3s" not in server.steps


def remove(host: Host, **values: str) -> list[str]:
    """The steps of a removal before K3s is uninstalled."""
    facts = host.facts("k3s-server", {}, VERB="remove", **{**VALUES, **values})
    assert facts == {"node": "server-1", "removed": True}
    assert host.files() == {}
    return host.steps[: host.steps.index("ip link delete cni0")]


STOPPED = "systemctl disable --now k3s"
# The first of the peers does not answer.
OTHER = "kubectl --server https://10.0.0.13:6443"
DELETED = [
    f"{OTHER} delete node server-1 --ignore-not-found --timeout=45s",
    f"{OTHER} -n kube-system delete secret server-1.node-password.k3s --ignore-not-found --timeout=45s",
]
LEAVES = f"{OTHER} annotate node server-1 etcd.k3s.cattle.io/remove=true --overwrite"
REMOVABLE = "/run/systemd/system/k3s.service.d/90-busbar-leaving.conf"


def test_one_of_three_servers_stops_before_it_leaves_etcd_through_another_one(server: Host) -> None:
    server.state("api", "https://10.0.0.13:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\nserver-3 True\n")
    in_order(remove(server), STOPPED, LEAVES, DELETED)


def test_one_of_two_servers_leaves_etcd_while_it_runs_and_never_starts_again(server: Host) -> None:
    server.state("api", "https://10.0.0.13:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\n")
    steps = remove(server)
    in_order(steps, f"write {REMOVABLE}", RELOADED, LEAVES, STOPPED, f"rm {REMOVABLE}", RELOADED)
    in_order(steps, STOPPED, DELETED)
    assert STOPPED not in steps[: steps.index(LEAVES)]


def test_a_server_whose_whole_cluster_goes_leaves_no_etcd(server: Host) -> None:
    server.write("run/busbar-teardown", "")
    assert remove(server) == [STOPPED]
    assert server.steps[-1] == "rm /run/busbar-teardown"


def test_a_server_that_another_stack_owns_is_left_alone(server: Host) -> None:
    facts = server.facts("k3s-server", {}, VERB="remove", **{**VALUES, "INSTALL_ID": "22"})
    assert (facts["removed"], server.steps) == (False, [])


def refused(
    host: Host, fails: str = "", config: str = CONFIG, more: dict[str, str] | None = None, **values: str
) -> str:
    """What an installation or an update says that fails; `more` is in its payload."""
    values = {"VERB": "install", "FIRST": "true", **VALUES, **host.release(VERSION), **values}
    return host.error(
        "k3s-server", {"config": config, "registries": "", **(more or {})}, fails=fails, **values
    )


def test_a_server_with_a_restore_that_was_not_finished_is_not_changed(server: Host) -> None:
    server.write("var/lib/busbar/restoring", "")
    assert "an earlier restore of etcd is not finished on this host; no changes made" in refused(server)
    assert server.steps == []


def test_a_worker_becomes_no_server(server: Host) -> None:
    server.state("active.k3s-agent", "")
    assert "k3s-agent already runs on this host" in refused(server)
    assert server.steps == []


def test_a_server_keeps_its_name_and_its_token(server: Host) -> None:
    assert "this server is server-1 in etcd and cannot become server-9; no" in refused(
        server, NODE_NAME="server-9"
    )
    other = CONFIG.replace("token: secret", "token: other")
    assert "the token is not the one that this cluster was created with; no changes" in refused(
        server, config=other
    )
    assert server.steps == []


def test_files_that_somebody_changed_on_a_server_are_written_again_and_it_restarts(server: Host) -> None:
    server.write("etc/rancher/k3s/auth-config.yaml", "mine")
    steps = install(server)
    in_order(steps, [FORGOTTEN, SETTINGS[0]], QUORUM, RESTARTED, BACK, RECORDED[0])


# ---- An address that servers share -------------------------------------------------------------------------

SHARED = "10.0.0.8"
KEEPALIVED = "etc/keepalived/keepalived.conf"
KEEPALIVED_CONF = {"keepalived_conf": "# Written by busbar\ngood\n"}


def sharing(host: Host, peers: str = "10.0.0.12", *, address: str = SHARED) -> list[str]:
    """The steps of an installation or an update of one of the servers that share an address."""
    payload = {"config": CONFIG, "registries": "", "keepalived_conf": f"# Written by busbar\ngood {peers}\n"}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **host.release(VERSION), "VIRTUAL_IP": address}
    host.facts("k3s-server", payload, **values)
    return host.steps


KEEPALIVED_INSTALLED = [
    "touch /var/lib/busbar/keepalived.installed",
    "apt-get update",
    "apt-get install -y --no-install-recommends keepalived",
]
KEEPALIVED_CHECKED = [
    f"write /{KEEPALIVED}.busbar-new",
    f"keepalived checks /{KEEPALIVED}.busbar-new",
    "systemctl enable -q keepalived",
]
KEEPALIVED_LOADED = [
    f"write /{KEEPALIVED}",
    "systemctl reload-or-restart keepalived",
    "write /var/lib/busbar/keepalived.loaded",
]
KEEPALIVED_GONE = ["systemctl disable --now keepalived", "apt-get purge -y keepalived", f"rm /{KEEPALIVED}"]
ANSWERS = f"is https://{SHARED} ready?"


def test_a_server_shares_the_address_once_it_is_up(machine: Host) -> None:
    steps = sharing(machine)
    is_new(steps)
    in_order(steps, BACK, *KEEPALIVED_INSTALLED, KEEPALIVED_CHECKED, *KEEPALIVED_LOADED)
    in_order(steps, *KEEPALIVED_CHECKED[:2])
    in_order(steps, "systemctl reload-or-restart keepalived", ANSWERS, RECORDED)
    assert f"{machine.root}/{KEEPALIVED}" in (machine.root / "var/lib/busbar/applied.sha256").read_text()


def test_another_peer_reloads_keepalived_and_k3s_does_not_restart(machine: Host) -> None:
    sharing(machine)
    steps = sharing(machine, "10.0.0.12 10.0.0.13")
    assert [step for step in steps if step in KEEPALIVED_LOADED] == KEEPALIVED_LOADED
    machine.write(KEEPALIVED, "# Written by busbar\nby hand\n")
    repaired = sharing(machine, "10.0.0.12 10.0.0.13")
    assert [step for step in repaired if step in KEEPALIVED_LOADED] == KEEPALIVED_LOADED
    assert not {RESTARTED, FORGOTTEN} & {*steps, *repaired}
    again = sharing(machine, "10.0.0.12 10.0.0.13")
    assert not {*KEEPALIVED_LOADED, RESTARTED} & {*again}


def test_a_server_that_shares_no_address_any_more_has_no_keepalived(machine: Host) -> None:
    sharing(machine)
    assert [step for step in install(machine) if "keepalived" in step][
        : len(KEEPALIVED_GONE)
    ] == KEEPALIVED_GONE
    assert KEEPALIVED not in (machine.root / "var/lib/busbar/applied.sha256").read_text()
    assert not [step for step in install(machine) if "keepalived" in step]


def test_a_server_that_is_removed_gives_the_address_back(machine: Host) -> None:
    sharing(machine)
    assert [step for step in remove(machine) if "keepalived" in step][
        : len(KEEPALIVED_GONE)
    ] == KEEPALIVED_GONE
    assert not (machine.root / KEEPALIVED).exists()


def test_an_address_that_does_not_answer_is_named(machine: Host) -> None:
    said = refused(machine, f"curl *{SHARED}:6443/readyz", more=KEEPALIVED_CONF, VIRTUAL_IP=SHARED)
    assert f"the virtual IP {SHARED} is not responding after 30 s. Fix: check hosts.virtual_ip" in said


def test_a_server_on_which_keepalived_runs_for_the_site_is_left_as_it_is(machine: Host) -> None:
    machine.write(KEEPALIVED, "good, of the site\n")
    machine.state("active.keepalived", "")
    said = refused(machine, more=KEEPALIVED_CONF, VIRTUAL_IP=SHARED)
    assert "keepalived is already running" in said
    assert machine.steps == []


AUTH = "etc/rancher/k3s/auth-config.yaml"
ISSUER = "jwt:\n- issuer:\n    url: https://login.example.com\n"


def has_loaded(server: Host, text: str) -> None:
    """What the API server tells of the AuthenticationConfiguration that it has loaded."""
    name = "apiserver_authentication_config_controller_last_config_info"
    digest = hashlib.sha256(text.encode()).hexdigest()
    server.state("metrics", f'{name}{{apiserver_id_hash="sha256:ab",hash="sha256:{digest}"}} 1\n')


def test_a_new_server_starts_with_the_issuers_of_the_site(machine: Host) -> None:
    is_new(install(machine, jwt=ISSUER))
    assert (machine.root / AUTH).read_text().endswith(f"    - path: /readyz\n{ISSUER}")


def test_a_running_server_loads_issuers_without_a_restart_and_so_it_forgets_them(server: Host) -> None:
    without = (server.root / AUTH).read_text()
    kept = "/var/lib/busbar/auth-config.loaded"

    def loads(steps: list[str]) -> bool:
        in_order(steps, f"write {kept}", f"write /{AUTH}", f"rm {kept}", BACK, RECORDED[1])
        return len(changes(steps)) == 4

    has_loaded(server, without + ISSUER)
    assert loads(install(server, jwt=ISSUER))
    assert (server.root / AUTH).read_text() == without + ISSUER
    assert changes(install(server, jwt=ISSUER)) == []
    has_loaded(server, without)
    assert loads(install(server))


def test_an_api_server_that_refuses_issuers_keeps_what_it_had_and_so_does_the_file(server: Host) -> None:
    before = (server.root / AUTH).read_text()
    has_loaded(server, before)
    server.state(
        "log", 'E1 authentication.go:1] "failed to validate authentication config" err="jwt[0]: Bad"\n'
    )
    said = refused(server, "nothing", more={"jwt": ISSUER})
    assert 'and keeps what it had: failed to validate authentication config" err="jwt[0]: Bad"' in said
    assert "/.well-known/openid-configuration" in said
    assert (server.root / AUTH).read_text() == before
    assert not {RESTARTED, FORGOTTEN} & {*server.steps}
    assert not (server.root / "var/lib/busbar/auth-config.loaded").exists()
    assert not (server.root / "state/sleeps").exists(), "what it has refused it never loads"


def test_issuers_that_do_not_answer_are_waited_for(server: Host) -> None:
    has_loaded(server, (server.root / AUTH).read_text())
    server.state("log", 'E1 authentication.go:1] "failed to update authentication config" err="no route"\n')
    server.wait_seconds = 10  # on a busy machine one look alone takes a second
    said = refused(server, "nothing", more={"jwt": ISSUER})
    assert 'keeps what it had: failed to update authentication config" err="no route"' in said
    assert (server.root / "state/sleeps").exists()


def test_an_update_that_was_killed_while_issuers_were_loaded_waits_for_them_again(server: Host) -> None:
    before = (server.root / AUTH).read_text()
    server.write("var/lib/busbar/auth-config.loaded", before)
    server.write(AUTH, before + ISSUER)
    has_loaded(server, before)
    assert "has not loaded" in refused(server, "nothing", more={"jwt": ISSUER})
    assert (server.root / AUTH).read_text() == before


def test_an_api_server_that_does_not_tell_what_it_has_loaded_restarts_for_issuers(server: Host) -> None:
    steps = install(server, jwt=ISSUER)
    assert server.said[0].startswith("the API server does not tell which AuthenticationConfiguration it has")
    in_order(steps, FORGOTTEN, RESTARTED)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("k3s * annotate *", "setting the annotation busbar/machine on Node server-1 failed"),
        ("curl *maintenance/status", "Node server-1 Ready and a voter in etcd: timed out after 420 s"),
        ("curl */health", "Node server-1 Ready and a voter in etcd: timed out after 420 s"),
    ],
)
def test_a_step_of_a_server_that_fails_says_why_and_nothing_counts_as_applied(
    machine: Host, fails: str, says: str
) -> None:
    assert says in refused(machine, fails)
    assert RECORDED[0] not in machine.steps


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (
            "k3s * etcd-snapshot *",
            "the snapshot of etcd before the upgrade to v1.35.7+k3s1 failed; no changes made",
        ),
        ("curl *10.0.0.3:6443/readyz", "k3s was not restarted: etcd would lose its quorum"),
        ("curl *member/list", "etcd on this server is not responding, though k3s runs"),
    ],
)
def test_a_server_that_must_not_stop_is_not_restarted(server: Host, fails: str, says: str) -> None:
    if "readyz" in fails:
        fails = "curl *:6443/readyz"
    assert says in refused(server, fails, more=None, **server.release(NEXT))
    assert RESTARTED not in server.steps


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("k3s * certificate rotate", "k3s is running, but its certificates were not rotated"),
        ("curl *--connect-to *api.example.com*", "the certificate of the API still lacks api.example.com"),
    ],
)
def test_certificates_that_are_not_as_configured_are_an_error(server: Host, fails: str, says: str) -> None:
    assert says in refused(server, fails, WITH_ANOTHER_NAME)


def test_without_the_token_of_k3s_a_server_gives_no_facts(server: Host) -> None:
    server.write("var/lib/rancher/k3s/server/token", "short")
    assert "/server/token is not a secure token. Fix: see: journalctl -u k3s" in refused(server)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (
            "k3s * get --raw /readyz",
            "etcd has 3 members, but none of the other servers answers (10.0.0.12 10.0.0.13)",
        ),
        ("k3s * get nodes -l *", "https://10.0.0.13:6443 no longer answers. Fix: retry"),
        ("k3s * annotate *", "server-1 is still a member of etcd after 90 s. Fix: see on another server"),
        ("k3s * delete node *", "deleting Node server-1 failed. Fix: run on another server"),
        ("systemctl disable *", "k3s did not stop. Fix: see: systemctl status k3s"),
    ],
)
def test_a_server_whose_leaving_fails_keeps_its_data(server: Host, fails: str, says: str) -> None:
    server.state("api", "https://10.0.0.13:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\nserver-3 True\n")
    assert says in server.error("k3s-server", {}, fails=fails, VERB="remove", **VALUES)
    assert (server.root / "var/lib/rancher/k3s/server/db/etcd/member").is_dir()
    assert not (server.root / REMOVABLE[1:]).exists(), "a server that stays restarts after a crash"
