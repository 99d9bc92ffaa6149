"""The steps of host/k3s-restore.sh, on folders of this test; the lab runs them on hosts."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from busbar.hosts.k3s import install_id
from tests.support.bash import Box

TOKEN = "abcdef"
OLD = "data/server/db/etcd/member/of"
ETCD, SNAPSHOTS = "data/server/db/etcd", "data/server/db/snapshots"
# K3s is in the state STATE.
HOST = """
STEP_FILE=$ROOT/step
systemctl() { [[ $1 != is-active ]] || { echo ${STATE:-inactive}; [[ ${STATE:-} == active ]]; }; }
"""


@pytest.fixture
def host(box: Box) -> Box:
    """A server with K3s, stopped, with data and a snapshot."""
    box.program("bin/k3s", "exit 1")
    box.write("mounts")
    box.write(OLD, "now")
    box.write("state/owner", f"role=server\nowner=a/b/c\ninstall_id={install_id(TOKEN)}\n")
    (box.root / SNAPSHOTS).mkdir()
    write_config(box, "cluster-init: true")
    return box


def write_config(host: Box, membership: str, token: str = f"K10{'a' * 64}::server:{TOKEN}") -> None:
    text = f'# Written by busbar\nnode-name: server-1\ntoken: {token}\n{membership}\nnode-ip: "10.0.0.1"\n'
    host.write("etc/config.yaml", text)


def facts(host: Box, call: str, **values: str) -> dict[str, Any]:
    """The facts of a step that must succeed."""
    found: dict[str, Any] = json.loads(host.output("k3s-restore", HOST + call, **values).splitlines()[-1])
    return found


def error(host: Box, call: str, **values: str) -> str:
    return host.error("k3s-restore", HOST + call, **values)


def listed(host: Box, **values: str) -> dict[str, Any]:
    return facts(host, "list_here", **{"NODES": "worker-1", **values})


def test_a_stopped_server_lists_its_snapshots(host: Box) -> None:
    path = host.write(f"{SNAPSHOTS}/nightly", "x" * 9)
    host.write(f"{SNAPSHOTS}/half.part")
    found = listed(host)
    [one] = found.pop("snapshots")
    assert one.pop("time").endswith("Z")
    assert one == {"name": "nightly", "path": str(path), "bytes": 9}
    assert found == {
        **{"node": "worker-1", "install_id": install_id(TOKEN), "problem": ""},
        **{"restoring": False, "s3": False, "stored": None},
    }


def test_a_file_elsewhere_counts_where_it_exists_or_where_the_site_keeps_snapshots(host: Box) -> None:
    kept = str(host.write("kept.db", "x"))
    assert [each["path"] for each in listed(host, SNAPSHOT=kept)["snapshots"]] == [kept]
    assert listed(host, SNAPSHOT="/nowhere/kept.db")["snapshots"] == []
    folder = host.write("elsewhere/nightly", "x").parent
    host.write("etc/config.yaml.d/site.yaml", f'etcd-snapshot-dir: "{folder}"\n')
    assert [each["name"] for each in listed(host)["snapshots"]] == ["nightly"]


def test_only_a_running_k3s_lists_the_bucket(host: Box) -> None:
    write_config(host, "etcd-s3: true")
    host.program(
        "bin/k3s",
        "echo 'Name Location Size Created'; echo 'a file:///x/a 1 2026-11-22T04:00:00Z'\n"
        "echo 'b s3://bucket/f/b 7 2026-11-22T05:00:00Z'",
    )
    found = listed(host, STATE="active")
    stored = {"name": "b", "path": "s3://bucket/f/b", "bytes": 7, "time": "2026-11-22T05:00:00Z"}
    assert (found["s3"], found["stored"]) == (True, [stored])
    assert listed(host)["stored"] is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("rm $STATE_DIR/owner", "is not marked as a server"),
        ("rm $K3S", "has no K3s"),
        ("sed -i s/abcdef/other/ $K3S_CONFIG_DIR/config.yaml", "the token in"),
        ('echo "/dev/x $DB/etcd ext4 rw 0 0" >$MOUNTS', "is a mount point"),
        ("etcd_nodes() { printf '%s True\\n' worker-1 server-{2,3}; echo server-4 False; }", "with server-3"),
    ],
)
def test_what_keeps_a_server_from_a_restore_is_named(host: Box, change: str, says: str) -> None:
    assert says in facts(host, f"{change}; list_here", NODES="worker-1 Server-2")["problem"]


def varint(number: int) -> bytes:
    rest = number >> 7
    return bytes([number & 127 | 128]) + varint(rest) if rest else bytes([number])


def entry(token: str, revision: int | None) -> bytes:
    """A mvccpb.KeyValue of etcd: key, revisions of creation and last change, version; a deletion: the key."""
    key = f"/bootstrap/{hashlib.sha256(token.encode()).hexdigest()[:12]}".encode()
    change = b"" if revision is None else b"\x10\x03\x18" + varint(revision) + b"\x20\x01\x2a\x02{}"
    return b"\x0a" + varint(len(key)) + key + change


def snapshot(host: Box, token: str = TOKEN, others: Sequence[tuple[str, int | None]] = ()) -> Path:
    """A file as etcd writes it: pages, one with the key of K3s's certificates, then the sha256 of all.

    `others`: further keys, with the revision of their last change.
    """
    entries = (entry(token, 300), *(entry(*each) for each in others))
    pages = b"".join(each.rjust(len(each) + 100, b"\0") for each in entries).ljust(4096, b"\0")
    path = host.write(f"{SNAPSHOTS}/nightly")
    path.write_bytes(pages + hashlib.sha256(pages).digest())
    return path


@pytest.mark.parametrize(
    ("token", "others", "accepted"),
    [
        (TOKEN, [], True),
        ("earlier", [], False),
        # After a rotation the key that changed last counts.
        (TOKEN, [("earlier", 299), ("earlier", None)], True),
        (TOKEN, [("earlier", 2), ("earlier", 70000), ("earlier", None)], False),
        (TOKEN, [("later", 301)], False),
        (TOKEN, [("later", 20000)], False),
    ],
)
def test_only_a_snapshot_of_this_token_is_accepted(
    host: Box, token: str, others: list[tuple[str, int | None]], accepted: bool
) -> None:
    path = str(snapshot(host, token, others))
    if accepted:
        assert facts(host, "check_here", SNAPSHOT=path)["bytes"] == 4128
    else:
        said = error(host, "check_here", SNAPSHOT=path)
        assert "was made with another token than this cluster's (keys: /bootstrap/" in said
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("damage", ["a bit", "cut off", "longer"])
def test_a_damaged_snapshot_is_refused(host: Box, damage: str) -> None:
    path = snapshot(host)
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[2000] ^= 1
    path.write_bytes({"cut off": content[:-512], "longer": content + b"x"}.get(damage, bytes(content)))
    said = error(host, "check_here", SNAPSHOT=str(path))
    assert "is damaged or not a snapshot of etcd" in said and "no changes made" in said


def test_a_snapshot_that_does_not_fit_on_the_disk_or_does_not_exist_is_refused(host: Box) -> None:
    few = "df() { printf 'Avail\\n5000\\n'; }; check_here"
    said = error(host, few, SNAPSHOT=str(snapshot(host)))
    assert "has 5000 bytes free, a restore needs 8256; no changes made" in said
    said = error(host, "check_here", SNAPSHOT="/none")
    assert "/none does not exist or is empty; no changes made" in said


def test_a_server_is_marked_from_its_stop_until_its_start(host: Box) -> None:
    assert listed(host)["restoring"] is False
    facts(host, "stop_here")
    assert listed(host)["restoring"] is True
    facts(host, "k3s_await() { :; }; start_here")
    assert listed(host)["restoring"] is False


def test_a_reset_whose_connection_broke_ends_when_the_servers_stop(host: Box) -> None:
    """The next restore may reset another server; this one joins it then."""
    stop = """
    touch $ROOT/resets
    timeout() { shift; "$@"; }
    systemctl() {
      case "$*" in
        "is-active --quiet busbar-k3s-reset") [[ -e $ROOT/resets ]] ;;
        "stop busbar-k3s-reset") ${STOPS:-rm} $ROOT/resets ;;
        is-active*) echo inactive; return 1 ;;
      esac
    }
    stop_here"""
    facts(host, stop)
    assert not host.has("resets")
    assert "busbar-k3s-reset, of an earlier restore, did not stop. Fix" in error(host, stop, STOPS="true")


# K3s moves the data aside, and writes those of the snapshot.
RESETS = """
k3s_journal() { :; }
run_reset() {
  [[ $RESET != nothing ]] || return 1
  [[ $RESET != away ]] || return 0
  mv "$DB/etcd" "$DB/etcd-old-2"
  mkdir -p "$DB/etcd/member"; touch "$DB/reset-flag"; echo snapshot >"$DB/etcd/member/of"
  [[ $RESET == well ]]
}
reset_here
"""


def test_a_reset_leaves_the_old_data_aside_and_private_and_says_where(host: Box) -> None:
    host.write("data/server/db/etcd-old-1/x")
    found = facts(host, RESETS, RESET="well")
    assert (found["reset"], found["kept"]) == (True, f"{host.root}/data/server/db/etcd-old-2")
    assert host.mode("data/server/db/etcd-old-2") == 0o700
    assert host.read(OLD) == "snapshot\n"


@pytest.mark.parametrize(
    ("reset", "reason"),
    [
        ("badly", "k3s server --cluster-reset failed"),
        ("nothing", "k3s server --cluster-reset failed"),
        ("away", "k3s server --cluster-reset exited 0 without a restored etcd"),
    ],
)
def test_a_reset_that_fails_leaves_the_old_data_in_their_place(host: Box, reset: str, reason: str) -> None:
    found = facts(host, RESETS, RESET=reset)
    assert (found["reset"], found["kept"], found["reason"]) == (False, "", reason)
    assert host.read(OLD) == "now"
    assert {path.name for path in (host.root / "data/server/db").iterdir()} == {"etcd", "snapshots"}


def test_a_reset_that_fails_after_an_unfinished_restore_puts_nothing_back(host: Box) -> None:
    assert facts(host, RESETS, RESET="badly", RESUMED="true")["reset"] is False
    assert host.read("data/server/db/etcd-old-2/member/of") == "now"


def test_a_folder_that_is_a_link_to_another_disk_is_looked_into(host: Box) -> None:
    for folder, disk in ((SNAPSHOTS, "other"), ("data/server/db", "disk")):
        (host.root / folder).rename(host.root / disk)
        (host.root / folder).symlink_to(host.root / disk)
    host.write(f"{SNAPSHOTS}/nightly", "x")
    assert [each["name"] for each in listed(host)["snapshots"]] == ["nightly"]
    assert facts(host, RESETS, RESET="half")["reset"] is False
    assert host.read(OLD) == "now", "the former data are put back"
    host.write("mounts", f"/dev/x {host.root}/disk/etcd ext4 rw 0 0\n")
    assert "is a mount point" in listed(host)["problem"]


@pytest.mark.parametrize("state", ["active", "activating", "deactivating"])
@pytest.mark.parametrize("step", ["reset_here", "join_here"])
def test_data_are_not_touched_while_k3s_runs(host: Box, state: str, step: str) -> None:
    said = error(host, step, STATE=state, SERVERS="https://10.0.0.2:6443", SNAPSHOT="x")
    assert "k3s is running here; no changes made" in said
    assert host.read(OLD) == "now"


def test_the_token_does_not_reach_the_lines_that_a_failed_reset_shows(host: Box) -> None:
    log = "journalctl() { echo 'level=fatal msg=\"bad abcdef\"'; }; run_reset() { return 1; }; "
    done = host.run("k3s-restore", f"{HOST}{log} begin() {{ :; }}; main", VERB="reset", SNAPSHOT="x")
    assert "bad [secret]" in done.stderr and TOKEN not in done.stderr


@pytest.mark.parametrize("bucket", ["true", "false"])
def test_k3s_resets_in_a_unit_with_its_own_environment(host: Box, bucket: str) -> None:
    proxy = ["HTTPS_PROXY=http://proxy:3128", "NO_PROXY=a,b"]
    lines = ["# Written by busbar", "[Service]", *(f"Environment={each}" for each in proxy), ""]
    host.write("units/k3s.service.d/20-busbar-proxy.conf", "\n".join(lines))
    shown = HOST + "systemd-run() { printf '%s\\n' \"$@\" >&2; }; run_reset"
    said = host.run("k3s-restore", shown, SNAPSHOT="one", S3=bucket).stderr
    options, command = said.split(f"{host.root}/bin/k3s\n")
    assert {
        *("--wait", "--unit=busbar-k3s-reset", "--property=RuntimeMaxSec=600"),
        *(f"--property=EnvironmentFile=-/etc/{folder}/k3s" for folder in ("default", "sysconfig")),
        *("--property=LimitNOFILE=1048576", *(f"--setenv={each}" for each in proxy)),
    } <= {*options.splitlines()}
    reset = f"server --cluster-reset --cluster-reset-restore-path=one --etcd-s3={bucket} --server="
    assert command.splitlines() == reset.split()


def test_a_restored_server_starts_whatever_failed_before_and_is_waited_for(host: Box) -> None:
    host.write("state/restoring")
    recording = """
    systemctl() { echo "$*"; [[ $1 != ${FAILS:-reset-failed} ]]; }
    k3s_await_server() { echo "waits from $((K3S_SINCE > 0)) $K3S_CRASHED_BEFORE"; }
    start_and_await"""
    steps = host.output("k3s-restore", HOST + recording).splitlines()
    assert steps == ["enable -q k3s", "reset-failed k3s", "--no-block start k3s", "waits from 1 0"]
    assert not host.has("state/restoring")
    done = host.run("k3s-restore", HOST + recording, FAILS="enable")
    assert done.returncode == 1 and "systemctl enable k3s failed" in done.stderr


@pytest.mark.parametrize(("reset", "steps"), [("true", ["forget", "start", "save"]), ("", ["start"])])
def test_a_start_after_a_reset_forgets_and_saves_passwords(host: Box, reset: str, steps: list[str]) -> None:
    recording = """
    forget_passwords() { echo forget; }
    start_and_await() { echo start; }
    save_passwords() { echo save; }
    start_here | grep -v node"""
    assert host.output("k3s-restore", HOST + recording, RESET=reset).split() == steps


def joined(host: Box, servers: str = "https://10.0.0.2:6443") -> str:
    """The folder with the old data of a server that has joined one of these."""
    return str(facts(host, "start_and_await() { :; }; join_here", SERVERS=servers)["kept"])


def test_a_joining_server_moves_its_data_aside(host: Box) -> None:
    host.write("data/server/db/reset-flag")
    kept = Path(joined(host))
    assert kept.name.startswith("etcd-before-restore-20")
    assert (kept / "member/of").read_text() == "now"
    assert not host.has(ETCD) and not host.has("data/server/db/reset-flag")
    assert joined(host) == "", "a server without data joins too"


def test_a_joining_server_takes_passwords_and_keys_of_secrets_from_etcd(host: Box) -> None:
    for name in ("passwd", "encryption-config.json", "encryption-state.json", "ipsec.psk"):
        host.write(f"data/server/cred/{name}")
    joined(host)
    left = [path.name for path in (host.root / "data/server/cred").iterdir()]
    assert left == ["ipsec.psk"], "with files that are newer than etcd's K3s does not start"


@pytest.mark.parametrize("line", ["cluster-init: true", 'server: "https://10.0.0.3:6443"'])
def test_a_server_without_a_running_one_to_join_follows_the_restored(host: Box, line: str) -> None:
    write_config(host, line)
    before, file = host.read("etc/config.yaml"), f"{host.root}/etc/config.yaml"
    host.write("state/applied.sha256", f"{'0' * 64}  {host.root}/bin/k3s\n{'1' * 64}  {file}\n")
    joined(host)
    after = host.read("etc/config.yaml")
    expected = before.replace(line, 'server: "https://10.0.0.2:6443"')
    assert sorted(after.splitlines()) == sorted(expected.splitlines())
    assert host.mode("etc/config.yaml") == 0o600
    # `busbar verify` compares with this record.
    recorded = f"{hashlib.sha256(after.encode()).hexdigest()}  {file}"
    assert host.read("state/applied.sha256").splitlines() == [f"{'0' * 64}  {host.root}/bin/k3s", recorded]


def test_a_server_that_joins_a_running_one_keeps_its_configuration(host: Box) -> None:
    write_config(host, 'server: "https://10.0.0.3:6443"')
    before = host.read("etc/config.yaml")
    joined(host, "https://10.0.0.2:6443 https://10.0.0.3:6443")
    assert host.read("etc/config.yaml") == before


def test_a_node_counts_when_it_is_ready_and_has_renewed_its_lease(host: Box) -> None:
    nodes = """
    leases() { printf 'a 2\\nb 1\\nc 2\\nd 2\\n'; }
    api() { printf 'a True\\nb True\\nc False\\nd True\\n'; }
    waiting_nodes $'a 1\\nb 1\\nc 1'"""
    waiting = host.output("k3s-restore", HOST + nodes, NODES="a b c d e").split()
    assert waiting == ["b", "c", "e"], "b lives only in the snapshot, c is not Ready, e has no Node"


def test_without_an_answer_of_the_api_every_node_waits(host: Box) -> None:
    silent = "leases() { return 1; }; waiting_nodes 'a 1'"
    assert host.output("k3s-restore", HOST + silent, NODES="a b").split() == ["a", "b"]


def test_a_step_that_still_runs_ends_before_the_next_one(host: Box) -> None:
    host.write("step", "none\n")
    call = """
    setsid env BUSBAR_SCRIPT=k3s-restore-0123 sleep 60 &
    earlier=$!
    poll 10 is_a_step "$earlier"
    echo "$earlier" >"$STEP_FILE"
    end_earlier_step
    wait "$earlier" || echo "ended with $?" """
    assert host.output("k3s-restore", HOST + call).strip() == "ended with 143"


@pytest.mark.parametrize("verb", ["stop", "agent"])
def test_a_host_that_another_cluster_has_by_now_takes_no_part(host: Box, verb: str) -> None:
    host.write("state/owner", "role=worker\nowner=b/c/d\ninstall_id=22\n")
    given = {"VERB": verb, "INSTALL_ID": "11"}
    done = host.run("k3s-restore", f"{HOST} begin() {{ :; }}; acquire_lock() {{ :; }}; main", **given)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this host belongs to another cluster (b/c/d). Fix: " in done.stderr


def test_another_process_with_the_number_of_a_step_is_left_alone(host: Box) -> None:
    call = """
    setsid sleep 60 &
    other=$!
    echo "$other" >"$STEP_FILE"
    end_earlier_step
    kill -0 "$other" && kill "$other" """
    host.output("k3s-restore", HOST + call)
    assert host.read("step").strip().isdigit()
