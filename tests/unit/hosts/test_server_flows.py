"""The whole script of a server, in the order of its steps: installed, joined, updated, rotated, removed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from tests.unit.hosts.recorded import VERSION, Host
from tests.unit.hosts.test_quorum import members

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
    **values: str,
) -> list[str]:
    """The steps of an installation or an update."""
    payload = {"config": config, "registries": "", **({"jwt": jwt} if jwt else {})}
    values = {"VERB": "install", "FIRST": first, **VALUES, **host.release(version), **values}
    facts = host.facts("k3s-server", payload, **values)
    assert facts == {"node": "server-1", "version": version, "ca_sha256": "c" * 64, "ca_pem": "the CA"}
    return host.steps


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.state("ip addr show", "2: eth0    inet 10.0.0.11/16 scope global eth0\n")
    return host


@pytest.fixture
def server(machine: Host) -> Host:
    """One of three servers."""
    install(machine)
    machine.state("peers", "10.0.0.12\n10.0.0.13\n")
    machine.state("members", members("server-1", "server-2", "server-3"))
    return machine


MARKED = ["chmod 0700 /var/lib/busbar", "write /var/lib/busbar/owner"]
DOWNLOADED = [
    f"download https://mirror/k3s-{VERSION}",
    "write /var/lib/busbar/k3s",
]
BINARY = ["write /usr/local/bin/k3s", "rm /var/lib/busbar/k3s"]
CONFIGURED = "write /etc/rancher/k3s/config.yaml"
SYSCTL = "sysctl -q -p /etc/sysctl.d/90-busbar-kubelet.conf"
STARTS = ["systemctl daemon-reload", "systemctl enable -q k3s"]
FORGOTTEN = "rm /var/lib/busbar/k3s.sha256"
RESTARTS = ["systemctl reset-failed k3s", "systemctl --no-block restart k3s"]
# Of three voters: twice, so that a server that crashes again and again does not count.
QUORUM = ["who votes?", "is https://10.0.0.2 ready?", "is https://10.0.0.3 ready?"] * 2
BACK = ["is the Node Ready?", "does this server vote?"]
NO_MAC = (
    "kubectl annotate node server-1 flannel.alpha.coreos.com/backend-data- "
    "flannel.alpha.coreos.com/backend-v6-data-"
)
NOTED = "kubectl annotate node server-1 busbar/machine=feb491e2 --overwrite"
RECORDED = ["write /var/lib/busbar/k3s.sha256", "write /var/lib/busbar/applied.sha256"]
PRIVATE = [
    f"chmod 0600 {path}"
    for path in (
        "/etc/rancher/k3s/config.yaml",
        "/etc/rancher/k3s/k3s.yaml",
        "/var/lib/rancher/k3s/server/token",
        "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    )
]
NEW = [
    *MARKED,
    "chmod 0700 /var/lib/busbar",
    *(f"write /var/lib/busbar/{name}" for name in ("absent", "mounts", "preexisting")),
    *DOWNLOADED,
    *BINARY,
    "write /etc/rancher/k3s/auth-config.yaml",
    CONFIGURED,
    "write /etc/systemd/system/k3s.service",
    "write /etc/systemd/system/k3s.service.d/10-busbar-memlock.conf",
    "write /etc/sysctl.d/90-busbar-kubelet.conf",
    SYSCTL,
    *STARTS,
    *RESTARTS,
    *BACK,
    "write /var/lib/busbar/token-in-etcd",
    NOTED,
    *RECORDED,
    *PRIVATE,
]


def written(host: Host) -> list[str]:
    """config.yaml, without its comment."""
    return (host.root / "etc/rancher/k3s/config.yaml").read_text().splitlines()[1:]


def test_the_first_server_begins_a_cluster(machine: Host) -> None:
    assert install(machine) == NEW
    ends = ["cluster-init: true", 'node-ip: "10.0.0.11"', 'flannel-iface: "eth0"']
    assert written(machine) == [*CONFIG.splitlines(), *ends]


def test_a_new_cluster_has_done_the_rotations_that_it_is_made_with(machine: Host) -> None:
    steps = install(machine, ROTATE_SERVER_TOKEN="1", ROTATE_CERTIFICATES="2")
    assert [step for step in steps if step != "write /var/lib/busbar/rotated"] == NEW
    assert (machine.root / "var/lib/busbar/rotated").read_text() == "certificates 2\nserver_token 1\n"


def test_another_server_joins_the_first_one(machine: Host) -> None:
    machine.state("peers", "10.0.0.12\n")
    assert install(machine, first="false") == NEW
    ends = ['server: "https://10.0.0.12:6443"', 'node-ip: "10.0.0.11"', 'flannel-iface: "eth0"']
    assert written(machine) == [*CONFIG.splitlines(), *ends]


def test_the_files_of_a_server_have_their_modes(server: Host) -> None:
    private = ("etc/rancher/k3s/auth-config.yaml", "etc/rancher/k3s/config.yaml", "etc/rancher/k3s/k3s.yaml")
    names = ("absent", "applied.sha256", "k3s.sha256", "mounts", "owner", "preexisting", "token-in-etcd")
    modes = server.files()
    assert [modes[f"/{path}"] for path in private] == ["600"] * 3
    assert [modes[f"/var/lib/busbar/{name}"] for name in names] == ["600"] * 7
    assert modes["/usr/local/bin/k3s"] == "755"
    assert modes["/etc/systemd/system/k3s.service"] == "644"


def test_strangers_may_ask_whether_a_server_is_ready_and_nothing_else(server: Host) -> None:
    allowed = yaml.safe_load((server.root / "etc/rancher/k3s/auth-config.yaml").read_text())
    assert allowed == {
        "apiVersion": "apiserver.config.k8s.io/v1beta1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": True, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]},
    }


def test_a_server_is_started_as_by_the_script_of_k3s(server: Host) -> None:
    """k3s-io/k3s install.sh"""
    lines = (server.root / "etc/systemd/system/k3s.service").read_text().splitlines()
    assert [line for line in lines if line and line[0] not in "#["] == [
        "Description=Lightweight Kubernetes (server)",
        "Documentation=https://k3s.io",
        "Wants=network-online.target",
        "After=network-online.target",
        "WantedBy=multi-user.target",
        "Type=notify",
        "EnvironmentFile=-/etc/default/%N",
        "EnvironmentFile=-/etc/sysconfig/%N",
        "KillMode=process",
        "Delegate=yes",
        "LimitNOFILE=1048576",
        "LimitNPROC=infinity",
        "LimitCORE=infinity",
        "TasksMax=infinity",
        "TimeoutStartSec=0",
        "Restart=always",
        "RestartSec=5s",
        "ExecStartPre=-/sbin/modprobe br_netfilter",
        "ExecStartPre=-/sbin/modprobe overlay",
        f"ExecStart={server.root}/usr/local/bin/k3s server",
    ]
    settings = (server.root / "etc/sysctl.d/90-busbar-kubelet.conf").read_text().splitlines()
    assert settings == [
        "vm.panic_on_oom = 0", "vm.overcommit_memory = 1", "kernel.panic = 10", "kernel.panic_on_oops = 1",
    ]  # fmt: skip


def test_an_update_that_changes_nothing_restarts_no_server_and_asks_no_other(server: Host) -> None:
    assert install(server) == [
        MARKED[0], SYSCTL, *STARTS, *BACK, NOTED, *PRIVATE,
    ]  # fmt: skip


def test_what_an_interrupted_removal_left_goes_with_the_next_installation(server: Host) -> None:
    leaving = "run/systemd/system/k3s.service.d/90-busbar-leaving.conf"
    server.write("run/busbar-teardown", "")
    server.write(leaving, "")
    assert install(server)[:3] == [MARKED[0], "rm /run/busbar-teardown", f"rm /{leaving}"]


def test_an_upgrade_saves_etcd_first_and_restarts_while_the_others_answer(server: Host) -> None:
    assert install(server, version=NEXT) == [
        MARKED[0],
        f"download https://mirror/k3s-{NEXT}",
        "write /var/lib/busbar/k3s",
        "k3s etcd-snapshot save --name busbar-before-v1.35.7-k3s1",
        *BINARY,
        SYSCTL,
        *STARTS,
        FORGOTTEN,
        *QUORUM,
        *RESTARTS,
        *BACK,
        NOTED,
        *RECORDED,
        *PRIVATE,
    ]


def test_another_name_of_the_api_renews_its_certificate_with_a_restart_of_its_own(server: Host) -> None:
    flag, drop_in = (
        "/var/lib/busbar/rotate-certificates",
        "/run/systemd/system/k3s.service.d/90-busbar-rotate.conf",
    )
    assert install(server, WITH_ANOTHER_NAME) == [
        MARKED[0],
        CONFIGURED,
        SYSCTL,
        *STARTS,
        FORGOTTEN,
        *QUORUM,
        *RESTARTS,
        *BACK,
        f"touch {flag}",
        f"write {drop_in}",
        *STARTS,
        *QUORUM,
        *RESTARTS,
        "k3s certificate rotate",
        f"rm {flag}",
        *BACK,
        f"rm {drop_in}",
        "systemctl daemon-reload",
        "write /var/lib/busbar/rotated",
        NOTED,
        *RECORDED,
        *PRIVATE,
    ]


ROTATED = [
    "rm /var/lib/rancher/k3s/server/cred/passwd",
    FORGOTTEN,
    CONFIGURED,
    SYSCTL,
    *STARTS,
    *QUORUM,
    *RESTARTS,
    *BACK,
]


def test_server_1_rotates_the_token_in_etcd_before_it_restarts_and_saves_etcd_after(server: Host) -> None:
    steps = install(server, CONFIG.replace("token: secret", "token: next"), ROTATE_SERVER_TOKEN="1")
    assert steps == [
        MARKED[0],
        "PUT token: server:secret next",
        "write /var/lib/busbar/token-in-etcd",
        *ROTATED,
        "PUT token: server:next next",
        "k3s etcd-snapshot save --name busbar-after-token-1",
        "write /var/lib/busbar/rotated",
        NOTED,
        *RECORDED,
        *PRIVATE,
    ]


def test_another_server_takes_the_rotated_token_with_its_restart(server: Host) -> None:
    config = CONFIG.replace("token: secret", "token: next")
    assert install(server, config, first="false", ROTATE_SERVER_TOKEN="1") == [
        MARKED[0],
        *ROTATED,
        "write /var/lib/busbar/rotated",
        "write /var/lib/busbar/token-in-etcd",
        NOTED,
        *RECORDED,
        *PRIVATE,
    ]


def test_pods_of_a_server_with_another_pod_network_start_anew_while_the_others_answer(server: Host) -> None:
    server.state("bridge", "5: cni0    inet 10.42.9.1/24 brd 10.42.9.255 scope global cni0\n")
    steps = install(server)
    begun = steps.index("systemctl stop k3s")
    assert steps[:begun] == [MARKED[0], SYSCTL, *STARTS, *BACK, *QUORUM, NO_MAC]
    assert steps[-10:-3] == ["ip6tables-restore: ", *RESTARTS, *BACK, NOTED, PRIVATE[0]]


def remove(host: Host, **values: str) -> list[str]:
    """The steps of a removal before K3s is uninstalled."""
    facts = host.facts("k3s-server", {}, VERB="remove", **{**VALUES, **values})
    assert facts == {"node": "server-1", "removed": True}
    assert host.files() == {}
    return host.steps[: host.steps.index("ip link delete cni0")]


STOPPED = "systemctl disable --now k3s"


OTHER = "kubectl --server https://10.0.0.12:6443"
DELETED = [
    f"{OTHER} delete node server-1 --ignore-not-found --timeout=45s",
    f"{OTHER} -n kube-system delete secret server-1.node-password.k3s --ignore-not-found --timeout=45s",
]
LEAVES = f"{OTHER} annotate node server-1 etcd.k3s.cattle.io/remove=true --overwrite"
REMOVABLE = "/run/systemd/system/k3s.service.d/90-busbar-leaving.conf"


def test_one_of_three_servers_stops_before_it_leaves_etcd_through_another_one(server: Host) -> None:
    server.state("api", "https://10.0.0.12:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\nserver-3 True\n")
    assert remove(server) == [STOPPED, LEAVES, STOPPED, "systemctl daemon-reload", *DELETED, STOPPED]


def test_one_of_two_servers_leaves_etcd_while_it_runs_and_never_starts_again(server: Host) -> None:
    server.state("api", "https://10.0.0.12:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\n")
    assert remove(server) == [
        f"write {REMOVABLE}",
        "systemctl daemon-reload",
        LEAVES,
        STOPPED,
        f"rm {REMOVABLE}",
        "systemctl daemon-reload",
        *DELETED,
        STOPPED,
    ]


def test_a_server_whose_whole_cluster_goes_leaves_no_etcd(server: Host) -> None:
    server.write("run/busbar-teardown", "")
    assert remove(server) == [STOPPED]
    assert server.steps[-1] == "rm /run/busbar-teardown"


def test_a_server_that_another_stack_owns_is_left_alone(server: Host) -> None:
    facts = server.facts("k3s-server", {}, VERB="remove", **{**VALUES, "INSTALL_ID": "22"})
    assert (facts["removed"], server.steps) == (False, [])


def refused(host: Host, fails: str = "", config: str = CONFIG, **values: str) -> str:
    """What an installation or an update says that fails."""
    values = {"VERB": "install", "FIRST": "true", **VALUES, **host.release(VERSION), **values}
    return host.error("k3s-server", {"config": config, "registries": ""}, fails=fails, **values)


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
    assert install(server) == [
        MARKED[0],
        FORGOTTEN,
        "write /etc/rancher/k3s/auth-config.yaml",
        SYSCTL,
        *STARTS,
        *QUORUM,
        *RESTARTS,
        *BACK,
        NOTED,
        RECORDED[0],
        *PRIVATE,
    ]


# ---- An address that servers share -------------------------------------------------------------------------

SHARED = "10.0.0.8"
KEEPALIVED = "etc/keepalived/keepalived.conf"


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
    before, after = NEW[: NEW.index(NOTED)], NEW[NEW.index(NOTED) :]
    shares = [*KEEPALIVED_INSTALLED, *KEEPALIVED_CHECKED, *KEEPALIVED_LOADED, ANSWERS]
    assert sharing(machine) == [*before, *shares, *after]
    assert f"{machine.root}/{KEEPALIVED}" in (machine.root / "var/lib/busbar/applied.sha256").read_text()


def test_another_peer_reloads_keepalived_and_k3s_does_not_restart(machine: Host) -> None:
    sharing(machine)
    steps = sharing(machine, "10.0.0.12 10.0.0.13")
    assert [step for step in steps if step in KEEPALIVED_LOADED] == KEEPALIVED_LOADED
    machine.write(KEEPALIVED, "# Written by busbar\nby hand\n")
    repaired = sharing(machine, "10.0.0.12 10.0.0.13")
    assert [step for step in repaired if step in KEEPALIVED_LOADED] == KEEPALIVED_LOADED
    assert not {*RESTARTS, FORGOTTEN} & {*steps, *repaired}
    again = sharing(machine, "10.0.0.12 10.0.0.13")
    assert not {*KEEPALIVED_LOADED, *RESTARTS} & {*again}


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
    payload = {"config": CONFIG, "registries": "", "keepalived_conf": "# Written by busbar\ngood\n"}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **machine.release(VERSION), "VIRTUAL_IP": SHARED}
    said = machine.error("k3s-server", payload, fails=f"curl *{SHARED}:6443/readyz", **values)
    assert f"the virtual IP {SHARED} does not answer after 30 s. Fix: check hosts.virtual_ip" in said


def test_a_server_on_which_keepalived_runs_for_the_site_is_left_as_it_is(machine: Host) -> None:
    machine.write(KEEPALIVED, "good, of the site\n")
    machine.state("active.keepalived", "")
    payload = {"config": CONFIG, "registries": "", "keepalived_conf": "# Written by busbar\ngood\n"}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **machine.release(VERSION), "VIRTUAL_IP": SHARED}
    assert "keepalived is already running" in machine.error("k3s-server", payload, **values)
    assert machine.steps == []


AUTH = "etc/rancher/k3s/auth-config.yaml"
ISSUER = "jwt:\n- issuer:\n    url: https://login.example.com\n"


def has_loaded(server: Host, text: str) -> None:
    """What the API server tells of the AuthenticationConfiguration that it has loaded."""
    name = "apiserver_authentication_config_controller_last_config_info"
    digest = hashlib.sha256(text.encode()).hexdigest()
    server.state("metrics", f'{name}{{apiserver_id_hash="sha256:ab",hash="sha256:{digest}"}} 1\n')


def test_a_new_server_starts_with_the_issuers_of_the_site(machine: Host) -> None:
    assert install(machine, jwt=ISSUER) == NEW
    assert (machine.root / AUTH).read_text().endswith(f"    - path: /readyz\n{ISSUER}")


def test_a_running_server_loads_issuers_without_a_restart_and_so_it_forgets_them(server: Host) -> None:
    without = (server.root / AUTH).read_text()
    change = [
        MARKED[0],
        "write /var/lib/busbar/auth-config.loaded",
        f"write /{AUTH}",
        "rm /var/lib/busbar/auth-config.loaded",
        SYSCTL,
        *STARTS,
        *BACK,
        NOTED,
        RECORDED[1],
        *PRIVATE,
    ]
    has_loaded(server, without + ISSUER)
    assert install(server, jwt=ISSUER) == change
    assert (server.root / AUTH).read_text() == without + ISSUER
    assert set(install(server, jwt=ISSUER)) < set(change) - {f"write /{AUTH}"}
    has_loaded(server, without)
    assert install(server) == change


def test_an_api_server_that_refuses_issuers_keeps_what_it_had_and_so_does_the_file(server: Host) -> None:
    before = (server.root / AUTH).read_text()
    has_loaded(server, before)
    server.state(
        "log", 'E1 authentication.go:1] "failed to validate authentication config" err="jwt[0]: Bad"\n'
    )
    payload = {"config": CONFIG, "registries": "", "jwt": ISSUER}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **server.release(VERSION)}
    said = server.error("k3s-server", payload, fails="nothing", **values)
    assert 'and keeps what it had: failed to validate authentication config" err="jwt[0]: Bad"' in said
    assert "/.well-known/openid-configuration" in said
    assert (server.root / AUTH).read_text() == before
    assert not {*RESTARTS, FORGOTTEN} & {*server.steps}
    assert not (server.root / "var/lib/busbar/auth-config.loaded").exists()
    assert not (server.root / "state/sleeps").exists(), "what it has refused it never loads"


def test_issuers_that_do_not_answer_are_waited_for(server: Host) -> None:
    has_loaded(server, (server.root / AUTH).read_text())
    server.state("log", 'E1 authentication.go:1] "failed to update authentication config" err="no route"\n')
    payload = {"config": CONFIG, "registries": "", "jwt": ISSUER}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **server.release(VERSION)}
    said = server.error("k3s-server", payload, fails="nothing", **values)
    assert 'keeps what it had: failed to update authentication config" err="no route"' in said
    assert (server.root / "state/sleeps").exists()


def test_an_update_that_was_killed_while_issuers_were_loaded_waits_for_them_again(server: Host) -> None:
    before = (server.root / AUTH).read_text()
    server.write("var/lib/busbar/auth-config.loaded", before)
    server.write(AUTH, before + ISSUER)
    has_loaded(server, before)
    payload = {"config": CONFIG, "registries": "", "jwt": ISSUER}
    values = {"VERB": "install", "FIRST": "true", **VALUES, **server.release(VERSION)}
    assert "has not loaded" in server.error("k3s-server", payload, fails="nothing", **values)
    assert (server.root / AUTH).read_text() == before


def test_an_api_server_that_does_not_tell_what_it_has_loaded_restarts_for_issuers(server: Host) -> None:
    steps = install(server, jwt=ISSUER)
    assert server.said[0].startswith("the API server does not tell which AuthenticationConfiguration it has")
    assert [step for step in steps if step in (FORGOTTEN, *RESTARTS)] == [FORGOTTEN, *RESTARTS]


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
        ("curl *member/list", "etcd on this server does not answer, though k3s runs"),
    ],
)
def test_a_server_that_must_not_stop_is_not_restarted(server: Host, fails: str, says: str) -> None:
    if "readyz" in fails:
        fails = "curl *:6443/readyz"
    assert says in refused(server, fails, **server.release(NEXT))
    assert not set(RESTARTS) & set(server.steps)


def test_certificates_that_k3s_did_not_rotate_are_an_error(server: Host) -> None:
    says = refused(server, "k3s * certificate rotate", WITH_ANOTHER_NAME)
    assert "k3s is running, but its certificates were not rotated" in says


def test_a_certificate_that_still_lacks_a_name_is_an_error(server: Host) -> None:
    says = refused(server, "curl *--connect-to *api.example.com*", WITH_ANOTHER_NAME)
    assert "the certificate of the API still lacks api.example.com" in says


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
        ("k3s * get nodes -l *", "https://10.0.0.12:6443 no longer answers. Fix: retry"),
        ("k3s * annotate *", "server-1 is still a member of etcd after 90 s. Fix: see on another server"),
        ("k3s * delete node *", "deleting Node server-1 failed. Fix: run on another server"),
        ("systemctl disable *", "k3s did not stop. Fix: see: systemctl status k3s"),
    ],
)
def test_a_server_whose_leaving_fails_keeps_its_data(server: Host, fails: str, says: str) -> None:
    server.state("api", "https://10.0.0.12:6443\n")
    server.state("servers", "server-1 True\nserver-2 True\nserver-3 True\n")
    assert says in server.error("k3s-server", {}, fails=fails, VERB="remove", **VALUES)
    assert (server.root / "var/lib/rancher/k3s/server/db/etcd/member").is_dir()
    assert not (server.root / REMOVABLE[1:]).exists(), "a server that stays restarts after a crash"
