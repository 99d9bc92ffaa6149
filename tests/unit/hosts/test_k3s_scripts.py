"""Decisions of the K3s scripts; the lab tests the rest."""

import hashlib
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.bash import Box, line, output, run

REACHABLE = "peer_reachable() { [[ $1 == *:12 || $1 == 10.0.0.12 ]]; }; nothing_listens() { false; }; "
NOBODY = "peer_reachable() { false; }; nothing_listens() { true; }; "
BALANCER = "peer_reachable() { [[ $1 == 10.0.0.9 ]]; }; nothing_listens() { true; }; "
SILENT = "peer_reachable() { false; }; nothing_listens() { false; }; "
READY = "server_answers() { [[ $1 == 10.0.0.12 ]]; }; "
JOINS, BEGINS = 'server: "https://10.0.0.12:6443"', "cluster-init: true"
MEMBER = {"data/server/db/etcd/member": "", "etc/config.yaml": f"token: x\n{JOINS}\n"}
REMOVED = {"data/server/db/etcd/tombstone": "", "etc/config.yaml": f"{BEGINS}\n"}


@pytest.mark.parametrize(
    ("first", "peers", "network", "files", "line"),
    [
        ("true", "10.0.0.12", NOBODY, {}, BEGINS),
        # The machine of server 1 was replaced: a second cluster-init would make a second cluster.
        ("true", "10.0.0.11 10.0.0.12", REACHABLE, {}, JOINS),
        ("false", "10.0.0.12 10.0.0.13", REACHABLE, {}, JOINS),
        ("false", "fd00::12", REACHABLE, {}, 'server: "https://[fd00::12]:6443"'),
        # A member keeps the line that it joined with: a changed one would restart it.
        ("true", "10.0.0.13", NOBODY, MEMBER, JOINS),
        # Etcd has removed it.
        ("true", "10.0.0.11 10.0.0.12", READY, REMOVED, JOINS),
    ],
)
def test_only_without_another_server_a_cluster_begins(
    box: Box, first: str, peers: str, network: str, files: dict[str, str], line: str
) -> None:
    for path, text in files.items():
        box.write(path, text)
    call = f"PEER_DEADLINE=1; {network} membership_line"
    assert box.output("k3s-server", call, FIRST=first, PEERS=peers, API_ADDRESS="10.0.0.9") == line


@pytest.mark.parametrize(
    ("first", "network", "files", "says"),
    [
        ("true", SILENT, {}, "10.0.0.13:6443 neither answers nor refuses"),
        ("false", NOBODY, {}, "server 1 (10.0.0.13:6443) is not reachable"),
        ("true", READY, REMOVED, "etcd has removed this server, and no other server is ready (10.0.0.13)"),
        # All servers are new machines, and a load balancer leads to the former ones.
        ("true", BALANCER, {}, "a cluster answers at 10.0.0.9:6443, and this server would begin another one"),
    ],
)
def test_a_server_of_an_unknown_cluster_changes_nothing(
    box: Box, first: str, network: str, files: dict[str, str], says: str
) -> None:
    for path, text in files.items():
        box.write(path, text)
    call = f"PEER_DEADLINE=1; {network} sleep() {{ ((SECONDS += 1)); }}; membership_line"
    said = box.error("k3s-server", call, FIRST=first, PEERS="10.0.0.13", API_ADDRESS="10.0.0.9")
    assert says in said
    assert ("open TCP 6443, 2379 and 2380" in said) == (not files and network != BALANCER)


def test_a_closed_port_is_told_from_one_that_does_not_answer() -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts, and says nothing
        for each, expected in ((closed, "true"), (silent, "false")):
            port = each.getsockname()[1]
            asks = f'curl() {{ command curl "${{@/:6443/:{port}}}" --max-time 0.5; }}; '
            assert output("k3s-server", f"{asks} truth nothing_listens 127.0.0.1") == expected


CA = "c" * 64


def pinned(box: Box, line: str, ca: str, first: str) -> subprocess.CompletedProcess[str]:
    """The configuration of a server with this line of membership."""
    given = {"config": "agent-token: aaaa\nnode-name: s-1\ntoken: secret\n", "peer_ca": ca}
    return box.run("k3s-server", f"pin_peer_ca '{line}'; payload config", given, FIRST=first)


@pytest.mark.parametrize(
    ("line", "ca", "first", "written", "token"),
    [
        (JOINS, CA, "true", "", f"K10{CA}::server:secret"),
        # One with data keeps the form of its token, and so do other servers and a new cluster.
        (JOINS, "", "true", "secret", "secret"),
        (JOINS, "", "true", f"K10{'d' * 64}::server:secret", f"K10{'d' * 64}::server:secret"),
        (BEGINS, "", "true", "", "secret"),
        (JOINS, "", "false", "", "secret"),
    ],
)
def test_a_replaced_first_server_pins_the_ca(
    box: Box, line: str, ca: str, first: str, written: str, token: str
) -> None:
    if written:
        box.write("data/server/db/etcd/member/snap")
        box.write("etc/config.yaml", f"token: {written}\n")
    config = pinned(box, line, ca, first).stdout
    assert config == f"agent-token: aaaa\nnode-name: s-1\ntoken: {token}\n"


def test_a_replaced_first_server_without_the_ca_tells_its_token_to_nobody(box: Box) -> None:
    done = pinned(box, JOINS, "", "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the CA of the running cluster is not known" in done.stderr
    assert "--converge worker-1" in done.stderr


def test_every_file_with_a_token_a_key_or_a_login_is_private(box: Box) -> None:
    private = [f"etc/{name}.yaml" for name in ("config", "registries", "k3s")]
    private += [f"data/server/{name}" for name in ("token", "agent-token", "cred/admin.kubeconfig")]
    private += ["data/agent/kubelet.kubeconfig"]
    for path in (*private, "etc/auth-config.yaml", "data/agent/client-ca.crt"):
        box.write(path)
    box.write("state/registries.written", "yes")
    found = box.output("k3s-server", "private_files").splitlines()
    assert sorted(found) == sorted(f"{box.root}/{path}" for path in private)


def test_a_registries_file_of_the_site_keeps_its_mode(box: Box) -> None:
    box.write("etc/registries.yaml")
    assert box.output("k3s-server", "private_files") == ""


def test_pods_outlive_a_restart_of_the_unit_and_k3s_starts_again_however_it_ended() -> None:
    place, *lines = output("k3s-server", 'write_file() { echo "$*"; cat; }; k3s_unit server').splitlines()
    assert place == "/etc/systemd/system/k3s.service 0644"
    assert {"KillMode=process", "Delegate=yes", "Restart=always"} <= {*lines}


def test_the_wait_for_a_node_grows_with_the_image_archives(box: Box) -> None:
    assert box.output("k3s-agent", "k3s_ready_seconds 420") == "420"
    with box.write("data/agent/images/i.tar").open("wb") as file:
        file.truncate(30_000_000_000)
    assert box.output("k3s-agent", "k3s_ready_seconds 420") == "1920"


def test_a_server_that_is_down_is_upgraded_without_a_snapshot(box: Box) -> None:
    box.program("bin/k3s", "exit 1")
    box.write("data/server/db/etcd/member/snap")
    call = "systemctl() { false; }; snapshot_before_upgrade"
    box.output("k3s-server", call, K3S_SHA256="0" * 64, VERSION="v1.35.7+k3s1")


@pytest.mark.parametrize(("seconds", "works"), [(10, "true"), (90, "false")])
def test_a_cluster_works_while_its_controller_manager_renews_its_lease(seconds: int, works: str) -> None:
    lease = f"api() {{ date -d '{seconds} seconds ago' +%FT%T.%6NZ; }}; "
    assert output("k3s-server", f"{lease}truth controllers_work", TZ="UTC") == works
    assert output("k3s-server", "api() { return 1; }; truth controllers_work") == "false"


def test_without_the_token_of_k3s_a_server_gives_no_facts(box: Box) -> None:
    box.write("data/server/token", "short")
    said = box.error("k3s-server", "facts")
    assert "/server/token is not a secure token. Fix: see: journalctl -u k3s" in said


def test_a_certificate_that_still_lacks_a_name_after_its_renewal_is_an_error(box: Box) -> None:
    renewing = "".join(f"{name}() {{ :; }}; " for name in ("rotate_certificates_at_start", "k3s_start"))
    renewing += "k3s_await_server() { :; }; certificates_are_rotated() { :; }; "
    said = box.error("k3s-server", f"{renewing} missing_names() {{ echo api.org; }}; renew_certificate")
    assert "the certificate of the API still lacks api.org" in said


ISSUER = {"jwt": "jwt:\n- issuer:\n    url: https://login.example.com\n"}
AUTH, KEPT = "etc/auth-config.yaml", "state/auth-config.loaded"
# An API server that tells the sha256 of the file that it has LOADED, and whose log is LOG.
API_SERVER = """
systemctl() { [[ -n ${ACTIVE-yes} ]]; }
api() {
  local name=apiserver_authentication_config_controller_last_config_info
  [[ -z $LOADED ]] || echo "$name{apiserver_id_hash=\\"sha256:ab\\",hash=\\"sha256:$LOADED\\"} 1"
}
journalctl() { echo "E1 authentication.go:1] $LOG"; }
sleep() { touch $ROOT/slept; SECONDS=$((SECONDS + 60)); }
auth_config
"""


def written(box: Box) -> str:
    """The file of a server without issuers, which its API server has loaded."""
    box.write("state/owner")
    box.output("k3s-server", API_SERVER, ACTIVE="")
    return box.read(AUTH)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("log", "waits"),
    [
        ('"failed to validate authentication config" err="jwt[0]: Bad"', False),
        ('"failed to update authentication config" err="no route"', True),
    ],
)
def test_issuers_that_are_not_loaded_leave_the_file_as_it_was(box: Box, log: str, waits: bool) -> None:
    before = written(box)
    said = box.error("k3s-server", API_SERVER, ISSUER, LOADED=sha256(before), LOG=log)
    assert f"and keeps what it had: {log[1:]}" in said
    assert "/.well-known/openid-configuration" in said
    assert (box.read(AUTH), box.has(KEPT)) == (before, False)
    assert box.has("slept") is waits, "what it has refused it never loads"


def test_an_update_that_was_killed_while_issuers_were_loaded_waits_for_them_again(box: Box) -> None:
    before = written(box)
    box.write(KEPT, before)
    box.write(AUTH, before + ISSUER["jwt"])
    assert "has not loaded" in box.error("k3s-server", API_SERVER, ISSUER, LOADED=sha256(before), LOG="")
    assert box.read(AUTH) == before


def test_an_api_server_that_does_not_tell_what_it_has_loaded_restarts_for_issuers(box: Box) -> None:
    before = written(box)
    box.write("state/k3s.sha256")
    done = box.run("k3s-server", API_SERVER, ISSUER, LOADED="", LOG="")
    assert "the API server does not tell which AuthenticationConfiguration it has" in done.stderr
    assert (box.read(AUTH), box.has("state/k3s.sha256")) == (before + ISSUER["jwt"], False)


def journal(script: str, lines: list[str], call: str, config: str = "") -> str:
    """The output of a call on a host whose K3s has logged these lines."""
    log = "K3S_SINCE=0; journalctl() { printf '%s\\n' \"$LOG\"; }; "
    done = run(script, log + call, LOG="\n".join(lines), PAYLOAD=line({"config": config}))
    return done.stdout + done.stderr


@pytest.mark.parametrize("token", ["serversecret", f"K10{'a' * 64}::server:serversecret"])
def test_tokens_and_keys_do_not_reach_the_log_lines_that_are_shown(token: str) -> None:
    config = f"agent-token: agentsecret\netcd-s3-secret-key: bucketsecret\ntoken: {token}\n"
    line = "bad serversecret and agentsecret, bucketsecret; K10abcdef::server:other twice serversecret"
    shown = journal("k3s-server", [line], "k3s_journal", config)
    assert "bad [secret] and [secret], [secret]; [token] twice [secret]" in shown


def test_the_reason_of_a_crash_is_shown_also_from_the_lines_of_kubernetes_itself() -> None:
    reasons = ["E1121 14:03:02.1 77 run.go:72] kubelet failed", "F1121 14:03:02.2 77 server.go:1] no cgroup"]
    waiting = [f"I1121 14:03:03.{n} 77 server.go:9] waiting" for n in range(20)]
    shown = journal("k3s-agent", [*reasons, *waiting], "k3s_journal")
    assert all(reason in shown for reason in reasons)
    assert shown.index(reasons[0]) < shown.index("waiting")


def test_what_a_server_answers_to_a_stranger_is_no_failure_of_its_own() -> None:
    sent = 'level=error msg="Sending HTTP/1.1 401 response to 10.0.0.99:41234: not authorized"'
    assert journal("k3s-server", [sent], "k3s_auth_failures").strip() == "0"


def test_of_a_long_log_the_last_lines_are_read() -> None:
    """With --since journalctl's -n takes the first ones."""
    log = 'journalctl() { [[ $* != *"-n "* ]] && seq 30; }; K3S_SINCE=0; '
    assert output("k3s-server", log + "k3s_log 2") == "29\n30\n"


def test_a_flag_that_a_server_ignores_is_shown_once() -> None:
    ignored = "Unknown flag --disable-network-polcy found in config.yaml, skipping"
    line = f'level=warning msg="{ignored}"'
    said = journal("k3s-server", [line, "other", line], "note_ignored_flags")
    assert said == f"busbar: worker-1: K3s: {ignored}\n"
    assert journal("k3s-server", ["ready"], "note_ignored_flags") == ""


def awaited(
    log: str, *, crashes: int = 0, seconds: int = 420, failed: bool = False, pauses: int = 10
) -> subprocess.CompletedProcess[str]:
    """The wait for an agent with this log, or for a server that has crashed, once before the wait."""
    return run(
        "k3s-server" if crashes else "k3s-agent",
        f"""systemctl() {{
              case $1 in
                is-active) return {int(crashes > 0)} ;;
                is-failed) return {int(not failed)} ;;
                show) echo {crashes} ;;
              esac
            }}
            journalctl() {{ printf '%s\\n' "$LOG"; }}
            sleep() {{ ((++slept <= {pauses})) || exit 99; }}
            slept=0 K3S_SINCE=0 K3S_CRASHED_BEFORE={int(crashes > 0)}
            k3s_await {seconds} 'Node Ready' false""",
        PAYLOAD="{}",
        LOG=log,
    )


SAME_NAME = "duplicate node name found, please use a unique name for this node"
IN_ETCD = "it has a member worker-1 of another machine (duplicate node name)"
IS_GONE = "Fix: if that machine is gone: busbar up STACK --converge worker-1, or"
PASSWORD = (
    "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not "
    "match server node-passwd entry, try enabling a unique node name with the --with-node-id flag"
)
UNAUTHORIZED = "server is not ready: 401 Unauthorized: not authorized"
MISMATCH = "failed to validate server configuration: critical configuration value mismatch between servers"
OTHER_TOKEN = "bootstrap data already found and encrypted with different token"
NEWER = "/x/cred/passwd newer than datastore and could cause a cluster outage. Remove the file(s)"


@pytest.mark.parametrize(
    ("log", "how", "says"),
    [
        ("\n".join([UNAUTHORIZED] * 8), {}, ["worker-1: the cluster refuses the token of this host"]),
        (PASSWORD, {}, ["a Node worker-1 exists that another machine joined as (node password)", IS_GONE]),
        (SAME_NAME, {}, [IN_ETCD, IS_GONE]),
        (SAME_NAME, {"crashes": 4}, [IN_ETCD]),
        (MISMATCH, {"crashes": 4}, ["Fix: write back their former values until this server has joined"]),
        (OTHER_TOKEN, {"crashes": 4}, ["worker-1: the data in etcd are encrypted with another server token"]),
        (NEWER, {"crashes": 4}, ["worker-1: files of K3s are newer here than in etcd. Fix: move the files"]),
        ("bad key in config.yaml", {"crashes": 4}, ["k3s crashed 3 times"]),
        ("no route", {"seconds": 0, "pauses": 0}, ["timed out after 0 s"]),
        ("no route", {"failed": True, "pauses": 0}, ["crashed 1 times"]),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_failed_wait_ends_with_reason_and_log(log: str, how: dict[str, Any], says: list[str]) -> None:
    done = awaited(f'level=error msg="{log}"', **how)
    assert done.returncode == 1
    assert all(text in done.stderr for text in says), done.stderr
    assert log in done.stderr or not how, "the log of a unit that failed is shown"


def test_what_still_runs_from_before_a_restart_does_not_end_the_wait(box: Box) -> None:
    """A busy systemd begins later with it; the next server would restart beside this one."""
    box.write("etc/config.yaml")
    call = """
    looks() { echo >>$ROOT/looks; wc -l <$ROOT/looks; }
    systemctl() {
      case "$*" in
        *InvocationID*) (($(looks) > 3)) && echo new || echo old ;;
        *NRestarts*) echo 0 ;;
        is-failed*) return 1 ;;
      esac
    }
    sleep() { :; }
    keep_quorum() { :; }
    K3S_SHA256=x
    k3s_start
    k3s_await 20 'Node Ready' true"""
    box.output("k3s-server", call)
    assert len(box.read("looks")) == 4, "one before the restart, three after it"


def test_crashes_from_before_a_restart_do_not_count() -> None:
    call = "systemctl() { :; }; K3S_CRASHED_BEFORE=5; k3s_restart; echo $K3S_CRASHED_BEFORE"
    assert output("k3s-agent", call) == "0\n", "reset-failed makes systemd count anew"


STARTED = 1_700_000_000
NODE = f"""
date() {{ case $* in *-d*) command date "$@" ;; *) echo $(({STARTED} + 100)) ;; esac; }}
systemctl() {{ echo 4711; }}
ps() {{ [[ $* == "-o etimes= -p 4711" ]] && echo '    100'; }}
k3s_version() {{ echo v1.35.6+k3s1; }}
k3s_node() {{ echo "$STATUS"; }}
"""


def status(second: int, *, ready: str = "True", version: str = "v1.35.6+k3s1") -> str:
    """The Node's condition, last written `second` s after the start of the unit."""
    time = datetime.fromtimestamp(STARTED + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{ready}|{time}|{version}"


@pytest.mark.parametrize(
    ("status", "process", "back"),
    [
        (status(9), "", True),
        (status(9), "ps() { return 1; }; ", False),
        # Of the kubelet that has ended, of another release, not yet, and without a Node.
        (status(0), "", False),
        (status(-9), "", False),
        (status(9, version="v1.34.2+k3s1"), "", False),
        (status(9, ready="False"), "", False),
        ("True||v1.35.6+k3s1", "", False),
        ("", "", False),
    ],
)
def test_a_node_is_back_by_the_word_of_its_new_kubelet(status: str, process: str, back: bool) -> None:
    done = run("k3s-agent", f"{NODE}{process}k3s_is_back", STATUS=status)
    assert (done.returncode == 0, done.stderr) == (back, "")


INTERFACES = """
ip() { cat <<'EOF'
1: lo    inet 127.0.0.1/8 scope host lo
1: lo    inet 10.9.9.9/32 scope global lo
2: ens3    inet 203.0.113.7/24 brd 203.0.113.255 scope global ens3
3: bond0@if7    inet 10.0.0.21/16 brd 10.0.255.255 scope global bond0
3: bond0    inet6 fd00::21/64 scope global
EOF
}
"""
RESOLVER = "getent() { printf '127.0.1.1 STREAM w\\n10.0.0.21 STREAM w\\n'; }; "
BOTH = ['node-ip: "10.0.0.21"', 'flannel-iface: "bond0"']


@pytest.mark.parametrize(
    ("address", "config", "prelude", "lines"),
    [
        ("10.0.0.21", "", "", BOTH),
        ("fd00::21", "", "", ['node-ip: "fd00::21"', 'flannel-iface: "bond0"']),
        ("worker-1", "", RESOLVER, BOTH),
        # The site sets the interface, the address, or both.
        ("10.0.0.21", "flannel-iface: eth9\n", "", ['node-ip: "10.0.0.21"']),
        ("192.0.2.1", "node-ip: 10.0.0.21\n", "", []),
        ("192.0.2.1", "", "address_is_configured() { :; }; ", []),
        # Flannel is not bound to the loopback interface.
        ("10.9.9.9", "", "", ['node-ip: "10.9.9.9"']),
    ],
)
def test_flannel_uses_the_interface_of_the_nodes_address_unless_the_site_sets_it(
    box: Box, address: str, config: str, prelude: str, lines: list[str]
) -> None:
    call = f"{INTERFACES}{prelude}k3s_node_address"
    printed = box.output("k3s-agent", call, {"config": config}, NODE_ADDRESS=address)
    assert printed.splitlines() == lines


def test_an_address_that_the_host_does_not_have_is_refused(box: Box) -> None:
    said = box.error("k3s-agent", INTERFACES + "k3s_node_address", NODE_ADDRESS="192.0.2.1")
    assert "none of the network interfaces has the address 192.0.2.1" in said
    assert "ip -br address" in said


BRIDGE = """
ip() { [[ -z $BRIDGE ]] || echo "7: cni0    inet $BRIDGE brd 10.42.3.255 scope global cni0"; }
timeout() { printf '%s' "$CIDR"; [[ $CIDR != silent ]]; }
"""


@pytest.mark.parametrize(
    ("bridge", "cidr", "fits"),
    [
        ("10.42.3.1/24", "10.42.3.0/24", True),
        ("10.42.3.65/26", "10.42.3.64/26", True),
        ("10.42.3.1/24", "10.42.4.0/24", False),
        ("10.42.3.1/24", "10.42.3.0/26", False),
        # No pod has run here yet; K3s has given no CIDR yet; IPv6.
        ("", "10.42.4.0/24", True),
        ("10.42.3.1/24", "", True),
        ("10.42.3.1/24", "fd00:42::/64", True),
    ],
)
def test_the_bridge_of_pods_has_the_first_address_of_the_cidr(bridge: str, cidr: str, fits: bool) -> None:
    done = run("k3s-agent", BRIDGE + "k3s_has_pod_network_of_node", BRIDGE=bridge, CIDR=cidr)
    assert (done.returncode == 0, done.stderr) == (fits, "")


def test_an_api_that_is_away_right_after_the_restart_of_the_agent_is_asked_again(box: Box) -> None:
    restarted = "timeout() { echo >>$ROOT/looks; (($(wc -l <$ROOT/looks) >= 3)) && echo 10.42.3.0/24; }; "
    call = f"{BRIDGE}{restarted} sleep() {{ :; }}; k3s_has_pod_network_of_node"
    box.output("k3s-agent", call, BRIDGE="10.42.3.1/24")
    assert len(box.read("looks")) == 3


def test_without_an_answer_of_the_api_no_pod_is_ended(box: Box) -> None:
    away = "sleep() { SECONDS=$((SECONDS + 30)); }; k3s_has_pod_network_of_node || echo renewed"
    said = box.error("k3s-agent", BRIDGE + away, BRIDGE="10.42.3.1/24", CIDR="silent")
    assert "the pod CIDR of Node worker-1 is unknown: the API is not responding. Fix: retry" in said


def test_the_processes_of_pods_are_those_below_the_containerd_of_k3s() -> None:
    here = Path("/proc/self/ns/pid").stat().st_ino
    processes = f"""\
  1 0 {here} /sbin/init
 40 1 {here} containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml
 50 1 {here} /var/lib/rancher/k3s/x/bin/containerd-shim-runc-v2 -address /run/k3s/containerd/containerd.sock
 51 50 12 /pause
 52 50 13 nginx: master
 53 52 13 nginx: worker
 60 1 {here} /usr/bin/containerd
 61 60 {here} containerd-shim -address /run/containerd/containerd.sock
 62 61 14 /bin/k3s server, which somebody runs in a container
 63 62 14 containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml
 64 63 14 /bin/containerd-shim-runc-v2 -address /run/k3s/containerd/containerd.sock
 65 64 15 /pause
 70 1 {here} bash -c tail -f /var/lib/rancher/k3s/agent/containerd/containerd.log
 71 70 {here} tail -f /var/lib/rancher/k3s/agent/containerd/containerd.log"""
    stubs = f"ps() {{ cat <<'EOF'\n{processes}\nEOF\n}}; kill() {{ echo \"$@\"; }}; poll() {{ :; }}; "
    assert sorted(output("k3s-agent", f"{stubs}k3s_kill_pods").split()[1:]) == ["40", "50", "51", "52", "53"]
