"""Decisions of the K3s scripts; the lab tests the rest."""

from __future__ import annotations

import re
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from busbar.hosts import scripts as hostscript
from tests.unit.hosts.bash import output, run

REACHABLE = "peer_reachable() { [[ $1 == 10.0.0.12 ]]; }; "
NOBODY = "peer_reachable() { return 1; }; nothing_listens() { :; }; "
SILENT = "peer_reachable() { return 1; }; nothing_listens() { return 1; }; "


def membership(prelude: str, tmp_path: Path, **values: str) -> str:
    places = f"K3S_CONFIG_DIR={tmp_path}/etc; K3S_DATA_DIR={tmp_path}/data; PEER_DEADLINE=1; "
    return output("k3s-server", places + prelude + "membership_line", **values)


def test_a_new_first_server_joins_a_reachable_server_instead_of_making_a_second_cluster(
    tmp_path: Path,
) -> None:
    line = membership(REACHABLE, tmp_path, FIRST="true", PEERS="10.0.0.11 10.0.0.12")
    assert line == 'server: "https://10.0.0.12:6443"'


def test_another_server_joins_server_1_also_where_a_later_one_answers(tmp_path: Path) -> None:
    line = membership(REACHABLE, tmp_path, FIRST="false", PEERS="10.0.0.12 10.0.0.13")
    assert line == 'server: "https://10.0.0.12:6443"'


def test_every_file_with_a_token_a_key_or_a_login_is_private(tmp_path: Path) -> None:
    etc = [f"etc/{name}.yaml" for name in ("config", "registries", "k3s")]
    logins = ["agent/kubelet.kubeconfig", "server/cred/admin.kubeconfig"]
    private = [*etc, *(f"data/{name}" for name in ("server/token", "server/agent-token", *logins))]
    for name in (*private, "etc/auth-config.yaml", "data/agent/client-ca.crt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    places = f"K3S_CONFIG_DIR={tmp_path}/etc; K3S_DATA_DIR={tmp_path}/data; "
    found = output("k3s-server", places + "private_files").splitlines()
    assert sorted(found) == sorted(f"{tmp_path}/{name}" for name in private)


def test_the_first_server_begins_no_cluster_while_another_server_may_have_one(tmp_path: Path) -> None:
    prelude = f"K3S_CONFIG_DIR={tmp_path}; K3S_DATA_DIR={tmp_path}; PEER_DEADLINE=1; {SILENT}"
    done = run("k3s-server", prelude + "membership_line", FIRST="true", PEERS="10.0.0.12")
    assert done.returncode == 1 and "cluster-init" not in done.stdout
    assert "10.0.0.12:6443 neither answers nor refuses" in done.stderr


CA = "c" * 64
JOINS = 'server: "https://10.0.0.12:6443"'


def joining(
    root: Path, line: str = JOINS, *, ca: str = CA, first: str = "true"
) -> subprocess.CompletedProcess[str]:
    """What config.yaml of a server 1 with this line of membership gets as its token."""
    config = "agent-token: aaaa\nnode-name: s-1\ntoken: secret\n"
    payload = hostscript.stdin("k3s-server", {"config": config, "peer_ca": ca}).partition("\n")[0]
    places = f"K3S_CONFIG_DIR={root}/etc; K3S_DATA_DIR={root}/data; "
    call = f"{places} pin_peer_ca '{line}'; payload config"
    return run("k3s-server", call, PAYLOAD=payload, FIRST=first)


def test_a_replaced_first_server_joins_with_a_token_that_pins_the_ca(tmp_path: Path) -> None:
    pinned = f"agent-token: aaaa\nnode-name: s-1\ntoken: K10{CA}::server:secret\n"
    assert joining(tmp_path).stdout == pinned


def test_a_replaced_first_server_without_the_ca_tells_its_token_to_nobody(tmp_path: Path) -> None:
    done = joining(tmp_path, ca="")
    assert done.returncode == 1
    assert (
        "the CA of the running cluster is not known" in done.stderr and "--converge worker-1" in done.stderr
    )


@pytest.mark.parametrize(("written", "pinned"), [("secret", False), (f"K10{'d' * 64}::server:secret", True)])
def test_a_first_server_with_data_keeps_the_form_of_its_token(
    tmp_path: Path, written: str, pinned: bool
) -> None:
    (tmp_path / "data/server/db/etcd/member").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.yaml").write_text(f"token: {written}\n")
    assert (f"token: {written}\n" in joining(tmp_path, ca="").stdout) is True
    assert ("K10" in joining(tmp_path, ca="").stdout) is pinned


@pytest.mark.parametrize(("line", "first"), [("cluster-init: true", "true"), (JOINS, "false")])
def test_other_servers_and_a_new_cluster_keep_the_token_that_they_were_given(
    tmp_path: Path, line: str, first: str
) -> None:
    assert "token: secret\n" in joining(tmp_path, line, ca="", first=first).stdout


def test_a_closed_port_is_told_from_one_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # accepts, and says nothing
        for each, expected in ((closed, "closed"), (silent, "open")):
            port = each.getsockname()[1]
            asks = f"curl() {{ command curl ${{@/:6443/:{port}}} --max-time 0.5; }}; "
            asks += "if nothing_listens 127.0.0.1; then echo closed; else echo open; fi"
            assert output("k3s-server", asks).strip() == expected


def test_a_server_that_cannot_reach_the_first_one_says_what_to_open(tmp_path: Path) -> None:
    prelude = f"K3S_CONFIG_DIR={tmp_path}; K3S_DATA_DIR={tmp_path}; PEER_DEADLINE=1; {NOBODY}"
    done = run("k3s-server", prelude + "membership_line", FIRST="false", PEERS="10.0.0.11")
    assert "server 1 (10.0.0.11:6443) is not reachable" in done.stderr
    assert "2379" in done.stderr


def test_a_member_keeps_the_line_it_joined_with(tmp_path: Path) -> None:
    (tmp_path / "data/server/db/etcd").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/config.yaml").write_text('token: x\nserver: "https://10.0.0.12:6443"\n')
    line = membership(NOBODY, tmp_path, FIRST="true", PEERS="10.0.0.12")
    assert line == 'server: "https://10.0.0.12:6443"', "a changed config would restart it"


def test_an_ipv6_server_gets_brackets() -> None:
    assert output("k3s-server", "bracketed fd00::11") == "[fd00::11]"


def test_tokens_do_not_reach_the_log_lines_that_are_shown() -> None:
    config = "agent-token: agentsecret\netcd-s3-secret-key: bucketsecret\ntoken: serversecret\n"
    payload = hostscript.stdin("k3s-server", {"config": config}).partition("\n")[0]
    journal = (
        "bad serversecret and agentsecret, bucketsecret; K10abcdef::server:other joined twice serversecret"
    )
    done = run(
        "k3s-server",
        f"journalctl() {{ echo '{journal}'; }}; K3S_SINCE=0; k3s_journal",
        PAYLOAD=payload,
    )
    assert "bad [secret] and [secret], [secret]; [token] joined twice [secret]" in done.stderr


def test_the_reason_of_a_crash_is_shown_also_from_the_lines_of_kubernetes_itself() -> None:
    reasons = ["E1121 14:03:02.1 77 run.go:72] kubelet failed", "F1121 14:03:02.2 77 server.go:1] no cgroup"]
    lines = [*reasons, *(f"I1121 14:03:03.{n} 77 server.go:9] waiting" for n in range(20))]
    journal = "\\n".join(lines)
    log = f"journalctl() {{ printf '{journal}\\n'; }}"
    shown = run("k3s-agent", f"{log}; K3S_SINCE=0; k3s_journal").stderr
    assert all(reason in shown for reason in reasons)
    assert shown.index(reasons[0]) < shown.index("waiting")


SLEEP = "sleep() { SECONDS=$((SECONDS + 30)); }"


def test_an_annotation_that_fails_is_reported_with_the_log_of_k3s(tmp_path: Path) -> None:
    reason = "level=fatal msg=bad-system-reserved"
    given = (
        f"journalctl() {{ echo {reason}; }}; machine() {{ echo m1; }}; K3S_SINCE=0; K3S=/bin/false; {SLEEP}"
    )
    done = run("k3s-server", f"{given}; k3s_record_machine", NODE_NAME="server-1")
    assert done.returncode == 1
    failed = "setting the annotation busbar/machine on Node server-1 failed"
    assert done.stderr.index(reason) < done.stderr.index(failed)


def test_the_password_of_a_pinned_token_does_not_reach_the_log_either() -> None:
    config = f"token: K10{'a' * 64}::server:serversecret\n"
    payload = hostscript.stdin("k3s-server", {"config": config}).partition("\n")[0]
    shown = "journalctl() { echo 'bad serversecret'; }; K3S_SINCE=0; k3s_journal"
    assert "bad [secret]" in run("k3s-server", shown, PAYLOAD=payload).stderr


def test_what_a_server_answers_to_a_stranger_is_no_failure_of_its_own() -> None:
    sent = 'level=error msg="Sending HTTP/1.1 401 response to 10.0.0.99:41234: not authorized"'
    call = f"journalctl() {{ echo '{sent}'; }}; K3S_SINCE=0; k3s_auth_failures"
    assert output("k3s-server", call).strip() == "0"


@pytest.mark.parametrize("status", [0, 3])
def test_a_subcommand_of_k3s_is_logged_without_the_keys_that_it_does_not_know(
    tmp_path: Path, status: int
) -> None:
    k3s = tmp_path / "k3s"
    line = "Unknown flag --cluster-cidr found in config.yaml, skipping"
    k3s.write_text(f"#!/bin/sh\necho 'level=warning msg=\"{line}\"' >&2\necho saved $*\nexit {status}\n")
    k3s.chmod(0o755)
    done = run("k3s-server", f"K3S={k3s}; k3s_subcommand 9 etcd-snapshot save")
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "saved etcd-snapshot save\n")


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
MEMBER = "it has a member worker-1 of another machine (duplicate node name)"
IS_GONE = "Fix: if that machine is gone: k3s kubectl delete node worker-1 on"
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
        (SAME_NAME, {}, [MEMBER, IS_GONE]),
        (SAME_NAME, {"crashes": 4}, [MEMBER]),
        (MISMATCH, {"crashes": 4}, ["Fix: write back their former values until this server has joined"]),
        (OTHER_TOKEN, {"crashes": 4}, ["worker-1: the data in etcd are encrypted with another server token"]),
        (NEWER, {"crashes": 4}, ["worker-1: files of K3s are newer here than in etcd. Fix: move the files"]),
        ("bad key in config.yaml", {"crashes": 4}, ["k3s crashed 3 times"]),
        ("no route", {"seconds": 0, "pauses": 0}, ["timed out after 0 s"]),
        ("no route", {"failed": True, "pauses": 0}, ["crashed 1 times"]),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_wait_that_cannot_succeed_ends_with_the_reason_and_the_log(
    log: str, how: dict[str, Any], says: list[str]
) -> None:
    done = awaited(f'level=error msg="{log}"', **how)
    assert done.returncode == 1
    assert all(text in done.stderr for text in says), done.stderr
    assert log in done.stderr or not how, "the log of a unit that failed is shown"


def test_a_wait_pauses_between_its_looks() -> None:
    looks = (
        "looks() { ((++count > 3)); }; sleep() { echo slept; }; count=0 K3S_SINCE=0 K3S_CRASHED_BEFORE=0; "
    )
    unit = "systemctl() { case $1 in is-failed) return 1 ;; show) echo 0 ;; esac; }; "
    for wait in ("k3s_await 20 'Node Ready' looks", "poll 20 looks"):
        assert output("k3s-agent", unit + looks + wait, PAYLOAD="{}") == "slept\n" * 3


def test_what_still_runs_from_before_a_restart_does_not_end_the_wait(tmp_path: Path) -> None:
    """A busy systemd begins later with it; the next server would restart beside this one."""
    (tmp_path / "config.yaml").touch()
    done = run(
        "k3s-server",
        f"""STATE_DIR={tmp_path} K3S_CONFIG_DIR={tmp_path} K3S_SHA256=x
            looks() {{ echo >>{tmp_path}/looks; wc -l <{tmp_path}/looks; }}
            systemctl() {{
              case "$*" in
                *InvocationID*) (($(looks) > 3)) && echo new || echo old ;;
                *NRestarts*) echo 0 ;;
                is-failed*) return 1 ;;
              esac
            }}
            sleep() {{ :; }}
            keep_quorum() {{ :; }}
            k3s_start
            k3s_await 20 'Node Ready' true""",
        PAYLOAD="{}",
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "looks").read_text()) == 4, "one before the restart, three after it"


def test_crashes_from_before_a_restart_do_not_count() -> None:
    call = "systemctl() { :; }; K3S_CRASHED_BEFORE=5; k3s_restart; echo $K3S_CRASHED_BEFORE"
    assert output("k3s-agent", call) == "0\n", "reset-failed makes systemd count anew"


def test_the_unit_has_the_settings_of_k3s_s_own_installer() -> None:
    """k3s-io/k3s install.sh: pods outlive a restart (KillMode), and K3s starts again however it ended."""
    text = output("k3s-server", 'write_file() { echo "$*"; cat; }; k3s_unit server')
    place, *sections = re.split(r"\n\[(?=\w+\]\n)", text)
    assert place.startswith("/etc/systemd/system/k3s.service 0644\n")
    found = {
        name: {*lines.split("\n")} - {""} for name, _, lines in (each.partition("]") for each in sections)
    }
    assert found == {
        "Unit": {
            "Description=Lightweight Kubernetes (server)", "Documentation=https://k3s.io",
            "Wants=network-online.target", "After=network-online.target",
        },
        "Install": {"WantedBy=multi-user.target"},
        "Service": {
            "Type=notify", "TimeoutStartSec=0", "KillMode=process", "Delegate=yes",
            "Restart=always", "RestartSec=5s",
            "EnvironmentFile=-/etc/default/%N", "EnvironmentFile=-/etc/sysconfig/%N",
            "LimitNOFILE=1048576", "LimitNPROC=infinity", "LimitCORE=infinity", "TasksMax=infinity",
            "ExecStartPre=-/sbin/modprobe br_netfilter", "ExecStartPre=-/sbin/modprobe overlay",
            "ExecStart=/usr/local/bin/k3s server",
        },
    }  # fmt: skip


STARTED = 1_700_000_000
NODE = f"""
date() {{ case $* in *-d*) command date "$@" ;; *) echo $(({STARTED} + 100)) ;; esac; }}
systemctl() {{ echo 4711; }}
ps() {{ [[ $* == "-o etimes= -p 4711" ]] && echo '    100'; }}
k3s_version() {{ echo v1.35.6+k3s1; }}
k3s_node() {{ echo "$STATUS"; }}
"""


def at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("status", "back"),
    [
        (f"True|{at(STARTED + 9)}|v1.35.6+k3s1", True),
        # Of the kubelet that has ended, of another release, not yet, and without a Node.
        (f"True|{at(STARTED)}|v1.35.6+k3s1", False),
        (f"True|{at(STARTED - 9)}|v1.35.6+k3s1", False),
        (f"True|{at(STARTED + 9)}|v1.34.2+k3s1", False),
        (f"False|{at(STARTED + 9)}|v1.35.6+k3s1", False),
        ("True||v1.35.6+k3s1", False),
        ("", False),
    ],
)
def test_a_restarted_node_is_back_by_the_word_of_its_new_kubelet(status: str, back: bool) -> None:
    done = run("k3s-agent", NODE + "k3s_is_back", STATUS=status)
    assert (done.returncode == 0, done.stderr) == (back, "")


def test_a_node_whose_unit_has_no_process_is_not_back() -> None:
    status = f"True|{at(STARTED + 9)}|v1.35.6+k3s1"
    done = run("k3s-agent", NODE + "ps() { return 1; }; k3s_is_back", STATUS=status)
    assert done.returncode == 1


def test_the_processes_of_pods_are_those_below_the_containerd_of_k3s() -> None:
    processes = """\
  1 0 /sbin/init
 40 1 containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml
 50 1 /var/lib/rancher/k3s/data/x/bin/containerd-shim-runc-v2 -address /run/k3s/containerd/containerd.sock
 51 50 /pause
 52 50 nginx: master
 53 52 nginx: worker
 60 1 /usr/bin/containerd
 61 60 containerd-shim -address /run/containerd/containerd.sock
 62 61 the site's own"""
    done = output(
        "k3s-agent",
        f"""ps() {{ cat <<'EOF'\n{processes}\nEOF\n}}; kill() {{ echo "$@"; }}; k3s_kill_pods""",
    )
    assert sorted(done.split()[1:]) == ["40", "50", "51", "52", "53"]


INTERFACES = """ip() { cat <<'EOF'
1: lo    inet 127.0.0.1/8 scope host lo
1: lo    inet 10.9.9.9/32 scope global lo
2: ens3    inet 203.0.113.7/24 brd 203.0.113.255 scope global ens3
3: bond0@if7    inet 10.0.0.21/16 brd 10.0.255.255 scope global bond0
3: bond0    inet6 fd00::21/64 scope global
EOF
}; """


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
    address: str, config: str, prelude: str, lines: list[str]
) -> None:
    payload = hostscript.stdin("k3s-agent", {"config": config or "node-name: a\n"}).partition("\n")[0]
    call = INTERFACES + prelude + "k3s_node_address"
    assert output("k3s-agent", call, NODE_ADDRESS=address, PAYLOAD=payload).splitlines() == lines


def test_an_address_that_the_host_does_not_have_is_refused() -> None:
    done = run("k3s-agent", INTERFACES + "k3s_node_address", NODE_ADDRESS="192.0.2.1", PAYLOAD="{}")
    assert "none of the network interfaces has the address 192.0.2.1" in done.stderr
    assert "ip -br address" in done.stderr


def test_image_archives_are_imported_once_and_not_at_every_start(tmp_path: Path) -> None:
    places = f"K3S_DATA_DIR={tmp_path}/data; STATE_DIR={tmp_path}; k3s_is_installed() {{ true; }}; "
    fetch = 'fetch() { mkdir -p "$(dirname "$3")"; touch "$3"; }; '
    values = {"VERSION": "v1", "URL_AMD64": "u", "SHA256_AMD64": "s", "URL_ARM64": "u", "SHA256_ARM64": "s"}
    output("k3s-agent", places + fetch + "k3s_download", **values)
    assert not (tmp_path / "data").exists(), "without archives there is nothing to import"
    cache = tmp_path / "data/agent/images/.cache.json"
    for content in ("", '{"known": 1}'):
        output("k3s-agent", places + fetch + "k3s_download", **values, IMAGES="aa https://m/i.tar.zst\n")
        assert cache.read_text() == content
        cache.write_text('{"known": 1}')


def test_the_wait_for_a_node_grows_with_the_image_archives(tmp_path: Path) -> None:
    archive = tmp_path / "data/agent/images/i.tar"
    assert output("k3s-agent", f"K3S_DATA_DIR={tmp_path}/data; k3s_ready_seconds 420") == "420"
    archive.parent.mkdir(parents=True)
    with archive.open("wb") as file:
        file.truncate(30_000_000_000)
    assert output("k3s-agent", f"K3S_DATA_DIR={tmp_path}/data; k3s_ready_seconds 420") == "1920"


def test_a_server_that_is_down_is_upgraded_without_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "server/db/etcd/member").mkdir(parents=True)
    stubs = f"K3S=/bin/false K3S_DATA_DIR={tmp_path}; systemctl() {{ false; }}; "
    output("k3s-server", stubs + "snapshot_before_upgrade", K3S_SHA256="0" * 64, VERSION="v1.35.7+k3s1")


def test_of_a_long_log_the_last_lines_are_read() -> None:
    """With --since journalctl's -n takes the first ones."""
    log = 'journalctl() { [[ $* != *"-n "* ]] && seq 30; }; K3S_SINCE=0; '
    assert output("k3s-server", log + "k3s_log 2") == "29\n30\n"


def test_a_flag_that_a_server_ignores_is_shown_once() -> None:
    line = 'level=warning msg="Unknown flag --disable-network-polcy found in config.yaml, skipping"'
    log = f"journalctl() {{ echo '{line}'; echo other; echo '{line}'; }}; K3S_SINCE=0; NODE_NAME=server-1; "
    said = run("k3s-server", log + "note_ignored_flags").stderr.splitlines()
    assert said == [
        "busbar: server-1: K3s: Unknown flag --disable-network-polcy found in config.yaml, skipping"
    ]


def test_a_log_without_an_ignored_flag_says_nothing() -> None:
    assert run("k3s-server", "k3s_log() { echo ready; }; note_ignored_flags").stderr == ""
