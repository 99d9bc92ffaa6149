"""The steps of host/k3s-restore.sh, on folders of this test; the lab runs them on hosts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hosts.bash import output, run

TOKEN = "abcdef"
SCRIPT = "k3s-restore"


def install_id(token: str) -> str:
    return hashlib.sha256(f"busbar install {token}".encode()).hexdigest()[:16]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A server with K3s, stopped, with data and a snapshot."""
    for folder in ("etc", "state", "data/server/db/etcd/member", "data/server/db/snapshots", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin/k3s").write_text("#!/bin/sh\n")
    (tmp_path / "bin/k3s").chmod(0o755)
    (tmp_path / "mounts").touch()
    (tmp_path / "data/server/db/etcd/member/of").write_text("now")
    (tmp_path / "state/owner").write_text(f"role=server\nowner=a/b/c\ninstall_id={install_id(TOKEN)}\n")
    write_config(tmp_path, "cluster-init: true")
    return tmp_path


def write_config(host: Path, membership: str, token: str = f"K10{'a' * 64}::server:{TOKEN}") -> None:
    text = f'# Written by busbar\nnode-name: server-1\ntoken: {token}\n{membership}\nnode-ip: "10.0.0.1"\n'
    (host / "etc/config.yaml").write_text(text)


def entry(token: str, revision: int | None) -> bytes:
    """A mvccpb.KeyValue of etcd: key, revisions of creation and last change, version; a deletion: the key."""
    key = f"/bootstrap/{hashlib.sha256(token.encode()).hexdigest()[:12]}".encode()
    change = b"" if revision is None else b"\x10\x03\x18" + varint(revision) + b"\x20\x01\x2a\x02{}"
    return b"\x0a" + varint(len(key)) + key + change


def varint(number: int) -> bytes:
    rest = number >> 7
    return bytes([number & 127 | 128]) + varint(rest) if rest else bytes([number])


def snapshot(
    host: Path, token: str = TOKEN, size: int = 4096, others: Sequence[tuple[str, int | None]] = ()
) -> Path:
    """As etcd writes it: pages, one with the key of K3s's certificates, and the sha256 of all at the end.

    `others`: further keys, with the revision of their last change.
    """
    entries = (entry(token, 300), *(entry(*each) for each in others))
    pages = b"".join(each.rjust(len(each) + 100, b"\0") for each in entries).ljust(size, b"\0")
    path = host / "data/server/db/snapshots/nightly"
    path.write_bytes(pages + hashlib.sha256(pages).digest())
    return path


def prelude(host: Path, state: str = "inactive") -> str:
    return f"""
    K3S={host}/bin/k3s K3S_CONFIG_DIR={host}/etc K3S_DATA_DIR={host}/data STATE_DIR={host}/state
    DB=$K3S_DATA_DIR/server/db RESTORING=$STATE_DIR/restoring STEP_FILE={host}/step
    MOUNTS={host}/mounts PAYLOAD='{{}}' NODE_NAME=server-1
    systemctl() {{ case "$1" in is-active) echo {state}; [[ {state} == active ]] ;; esac; }}
    """


def facts(host: Path, call: str, state: str = "inactive", **values: str) -> dict[str, Any]:
    text = output(SCRIPT, f"{prelude(host, state)}\n{call}", **values)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def listed(host: Path, state: str = "inactive", prelude: str = "", **values: str) -> dict[str, Any]:
    return facts(host, f"{prelude}\nlist_here", state, **values)


def test_a_stopped_server_lists_its_snapshots(host: Path) -> None:
    path = snapshot(host)
    (path.parent / "half.part").touch()
    found = listed(host)
    assert found["problem"] == ""
    assert (found["s3"], found["stored"]) == (False, None)
    assert found["install_id"] == install_id(TOKEN)
    [one] = found["snapshots"]
    assert (one["name"], one["path"], one["bytes"]) == ("nightly", str(path), 4128)
    assert one["time"].endswith("Z")


def test_a_file_elsewhere_counts_where_it_exists(host: Path) -> None:
    kept = host / "kept.db"
    kept.write_bytes(b"x")
    assert [each["path"] for each in listed(host, SNAPSHOT=str(kept))["snapshots"]] == [str(kept)]
    assert listed(host, SNAPSHOT="/nowhere/kept.db")["snapshots"] == []


def test_snapshots_are_looked_for_where_the_site_keeps_them(host: Path) -> None:
    folder = host / "elsewhere"
    folder.mkdir()
    (folder / "nightly").write_bytes(b"x")
    (host / "etc/config.yaml.d").mkdir()
    (host / "etc/config.yaml.d/site.yaml").write_text(f'etcd-snapshot-dir: "{folder}"\n')
    assert [each["name"] for each in listed(host)["snapshots"]] == ["nightly"]


def test_a_running_k3s_lists_the_bucket(host: Path) -> None:
    with (host / "etc/config.yaml").open("a") as config:
        config.write("etcd-s3: true\n")
    lines = (
        "Name Location Size Created\\n"
        "a file:///x/a 1 2026-11-22T04:00:00Z\\n"
        "b s3://bucket/f/b 7 2026-11-22T05:00:00Z\\n"
    )
    (host / "bin/k3s").write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    found = listed(host, "active")
    assert found["s3"] is True
    assert found["stored"] == [
        {"name": "b", "path": "s3://bucket/f/b", "bytes": 7, "time": "2026-11-22T05:00:00Z"}
    ]
    assert listed(host)["stored"] is None, "without a running K3s nobody knows"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda host: (host / "state/owner").unlink(), "is not marked as a server"),
        (lambda host: (host / "bin/k3s").unlink(), "has no K3s"),
        (lambda host: write_config(host, "cluster-init: true", "other"), "the token in"),
        (
            lambda host: (host / "mounts").write_text(f"/dev/x {host}/data/server/db/etcd ext4 rw 0 0\n"),
            "is a mount point",
        ),
    ],
)
def test_what_keeps_a_server_from_a_restore_is_named(host: Path, change: Any, says: str) -> None:
    change(host)
    assert says in listed(host)["problem"]


def checked(host: Path, path: Path) -> Any:
    return run(SCRIPT, f"{prelude(host)}\ncheck_here", SNAPSHOT=str(path))


def test_a_whole_snapshot_of_this_cluster_passes(host: Path) -> None:
    done = checked(host, snapshot(host))
    assert (done.returncode, json.loads(done.stdout)["bytes"]) == (0, 4128), done.stderr


@pytest.mark.parametrize("damage", ["a bit", "cut off", "longer"])
def test_a_damaged_snapshot_is_refused(host: Path, damage: str) -> None:
    path = snapshot(host)
    content = bytearray(path.read_bytes())
    if damage == "a bit":
        content[2000] ^= 1
    path.write_bytes({"cut off": content[:-512], "longer": content + b"x"}.get(damage, bytes(content)))
    done = checked(host, path)
    assert done.returncode == 1
    assert "is damaged or not a snapshot of etcd" in done.stderr and "no changes made" in done.stderr


def test_a_snapshot_of_another_token_is_refused(host: Path) -> None:
    done = checked(host, snapshot(host, token="earlier"))
    assert done.returncode == 1
    assert "was made with another token than this cluster's (keys: /bootstrap/" in done.stderr


@pytest.mark.parametrize(
    ("others", "accepted"),
    [
        ([("earlier", 299), ("earlier", None)], True),
        ([("earlier", 2), ("earlier", 70000), ("earlier", None)], False),
        ([("later", 301)], False),
        ([("later", 20000)], False),
    ],
)
def test_of_the_keys_in_a_snapshot_after_a_rotation_the_one_that_changed_last_counts(
    host: Path, others: list[tuple[str, int | None]], accepted: bool
) -> None:
    done = checked(host, snapshot(host, others=others))
    assert (done.returncode == 0) is accepted, done.stderr
    assert ("was made with another token" in done.stderr) is not accepted
    assert len(done.stderr.splitlines()) == (0 if accepted else 1)


def test_a_snapshot_that_does_not_fit_on_the_disk_is_refused(host: Path) -> None:
    few = "df() { printf 'Avail\\n5000\\n'; }"
    done = run(SCRIPT, f"{prelude(host)}\n{few}\ncheck_here", SNAPSHOT=str(snapshot(host)))
    assert done.returncode == 1
    assert "has 5000 bytes free, a restore needs 8256; no changes made" in done.stderr


def test_a_snapshot_that_does_not_exist_is_refused(host: Path) -> None:
    assert "does not exist or is empty; no changes made" in checked(host, host / "nightly").stderr


RESTORED = """
run_reset() {
  mv "$DB/etcd" "$DB/etcd-old-2"
  mkdir -p "$DB/etcd/member"; touch "$DB/reset-flag"; echo snapshot >"$DB/etcd/member/of"
}
reset_here
"""
BROKEN = """
k3s_journal() { :; }
run_reset() { mv "$DB/etcd" "$DB/etcd-old-2"; mkdir -p "$DB/etcd/member"; touch "$DB/reset-flag"; return 1; }
reset_here
"""


def data(host: Path) -> str:
    return (host / "data/server/db/etcd/member/of").read_text().strip()


def test_a_reset_leaves_the_old_data_aside_and_private_and_says_where(host: Path) -> None:
    (host / "data/server/db/etcd-old-1").mkdir()
    found = facts(host, RESTORED)
    assert (found["reset"], found["kept"]) == (True, f"{host}/data/server/db/etcd-old-2")
    assert Path(found["kept"]).stat().st_mode & 0o777 == 0o700
    assert data(host) == "snapshot"


def test_a_reset_that_fails_puts_the_old_data_back(host: Path) -> None:
    found = facts(host, BROKEN)
    assert (found["reset"], found["kept"]) == (False, "")
    assert found["reason"] == "k3s server --cluster-reset failed"
    assert data(host) == "now"
    assert not (host / "data/server/db/reset-flag").exists()
    assert not list((host / "data/server/db").glob("etcd-old-*"))


def test_a_reset_that_fails_after_an_unfinished_restore_puts_nothing_back(host: Path) -> None:
    found = facts(host, BROKEN, RESUMED="true")
    assert found["reset"] is False
    assert (host / "data/server/db/etcd-old-2/member/of").read_text() == "now"


def test_a_reset_whose_connection_broke_ends_when_the_servers_stop(host: Path) -> None:
    """The next restore may reset another server; this one joins it then."""
    resets = f"""
    touch {host}/resets
    timeout() {{ shift; "$@"; }}
    systemctl() {{
      case "$*" in
        "is-active --quiet busbar-k3s-reset") [[ -e {host}/resets ]] ;;
        "stop busbar-k3s-reset") ${{STOPS:-rm}} {host}/resets ;;
        is-active*) echo inactive; return 1 ;;
      esac
    }}
    stop_here"""
    facts(host, resets)
    assert not (host / "resets").exists()
    done = run(SCRIPT, f"{prelude(host)}\n{resets}", STOPS="true")
    assert "busbar-k3s-reset, of an earlier restore, did not stop. Fix: see" in done.stderr


def test_a_server_is_marked_from_its_stop_until_its_start(host: Path) -> None:
    assert listed(host)["restoring"] is False
    facts(host, "stop_here")
    assert listed(host)["restoring"] is True
    facts(host, "k3s_await() { :; }; start_here")
    assert listed(host)["restoring"] is False


def test_a_stopped_server_starts_again_also_at_the_next_boot_and_is_awaited(host: Path) -> None:
    steps = host / "steps"
    recorded = f"""
    systemctl() {{ echo "systemctl $*" >>{steps}; }}
    k3s_await() {{ echo "await $UNIT" >>{steps}; }}
    """
    facts(host, f"{recorded}\nstart_here")
    assert steps.read_text().splitlines() == [
        "systemctl enable -q k3s",
        "systemctl reset-failed k3s",
        "systemctl --no-block start k3s",
        "await k3s",
    ]


def test_an_update_leaves_a_server_alone_that_a_restore_has_stopped(host: Path) -> None:
    (host / "state/restoring").touch()
    done = run("k3s-server", f"STATE_DIR={host}/state; k3s_refuse_other_role() {{ :; }}; install_server")
    assert done.returncode == 1
    assert "an earlier restore of etcd is not finished on this host; no changes made" in done.stderr


def test_a_step_that_still_runs_ends_before_the_next_one(host: Path) -> None:
    (host / "step").write_text("none\n")
    script = f"""{prelude(host)}
    env BUSBAR_SCRIPT=k3s-restore-0123 setsid sleep 60 &
    earlier=$!
    poll 10 is_a_step "$earlier"
    echo "$earlier" >"$STEP_FILE"
    end_earlier_step
    wait "$earlier" || echo "ended with $?"
    """
    assert output(SCRIPT, script).strip() == "ended with 143"


def test_another_process_with_the_number_of_a_step_is_left_alone(host: Path) -> None:
    script = f"""{prelude(host)}
    setsid sleep 60 &
    other=$!
    echo "$other" >"$STEP_FILE"
    end_earlier_step
    kill -0 "$other" && kill "$other"
    """
    output(SCRIPT, script)
    assert (host / "step").read_text().strip().isdigit()


def test_a_reset_that_fails_before_it_moves_anything_leaves_the_data(host: Path) -> None:
    found = facts(host, "k3s_journal() { :; }; run_reset() { return 1; }; reset_here")
    assert found["reset"] is False
    assert data(host) == "now"


def test_a_reset_without_a_restored_etcd_is_a_failure(host: Path) -> None:
    found = facts(host, "k3s_journal() { :; }; run_reset() { :; }; reset_here")
    assert found["reason"] == "k3s server --cluster-reset exited 0 without a restored etcd"
    assert data(host) == "now"


@pytest.mark.parametrize("state", ["active", "activating", "deactivating"])
@pytest.mark.parametrize("step", ["reset_here", "join_here"])
def test_data_are_not_touched_while_k3s_runs(host: Path, state: str, step: str) -> None:
    done = run(SCRIPT, f"{prelude(host, state)}\n{step}", SERVERS="https://10.0.0.2:6443", SNAPSHOT="x")
    assert done.returncode == 1
    assert "k3s is running here; no changes made" in done.stderr
    assert data(host) == "now"


def joined(host: Path, servers: str = "https://10.0.0.2:6443") -> dict[str, Any]:
    return facts(host, "start_and_await() { :; }; join_here", SERVERS=servers)


def test_a_joining_server_moves_its_data_aside(host: Path) -> None:
    (host / "data/server/db/reset-flag").touch()
    kept = Path(joined(host)["kept"])
    assert kept.name.startswith("etcd-before-restore-20")
    assert (kept / "member/of").read_text() == "now"
    assert not (host / "data/server/db/etcd").exists()
    assert not (host / "data/server/db/reset-flag").exists()


def test_a_joining_server_takes_passwords_and_keys_of_secrets_from_etcd(host: Path) -> None:
    names = {"passwd", "encryption-config.json", "encryption-state.json", "ipsec.psk"}
    (host / "data/server/cred").mkdir()
    for name in names:
        (host / "data/server/cred" / name).write_text("of what is lost")
    joined(host)
    left = {path.name for path in (host / "data/server/cred").iterdir()}
    assert left == {"ipsec.psk"}, "with files that are newer than etcd's K3s does not start"


def test_a_server_without_data_joins_too(host: Path) -> None:
    joined(host)
    assert joined(host)["kept"] == ""


@pytest.mark.parametrize("line", ["cluster-init: true", 'server: "https://10.0.0.3:6443"'])
def test_a_server_that_would_make_a_second_cluster_or_join_a_stopped_one_follows_the_restored(
    host: Path, line: str
) -> None:
    write_config(host, line)
    before = (host / "etc/config.yaml").read_text()
    record = f"{'0' * 64}  {host}/bin/k3s\n{'1' * 64}  {host}/etc/config.yaml\n"
    (host / "state/applied.sha256").write_text(record)
    joined(host)
    after = (host / "etc/config.yaml").read_text()
    assert sorted(after.splitlines()) == sorted(
        before.replace(line, 'server: "https://10.0.0.2:6443"').splitlines()
    )
    assert (host / "etc/config.yaml").stat().st_mode & 0o777 == 0o600
    digest = hashlib.sha256(after.encode()).hexdigest()
    assert (host / "state/applied.sha256").read_text().splitlines() == [
        f"{'0' * 64}  {host}/bin/k3s",
        f"{digest}  {host}/etc/config.yaml",
    ], "`busbar verify` compares with this record"


def test_a_server_that_joins_a_running_one_keeps_its_configuration(host: Path) -> None:
    write_config(host, 'server: "https://10.0.0.3:6443"')
    before = (host / "etc/config.yaml").read_text()
    joined(host, "https://10.0.0.2:6443 https://10.0.0.3:6443")
    assert (host / "etc/config.yaml").read_text() == before


NODES = """
leases() { printf 'a 2\\nb 1\\nc 2\\nd 2\\n'; }
api() { printf 'a True\\nb True\\nc False\\nd True\\n'; }
waiting_nodes $'a 1\\nb 1\\nc 1'
"""


def test_a_node_counts_when_it_is_ready_and_has_renewed_its_lease(host: Path) -> None:
    waiting = output(SCRIPT, f"{prelude(host)}{NODES}", NODES="a b c d e").split()
    assert waiting == ["b", "c", "e"], "b lives only in the snapshot, c is not Ready, e has no Node"


def test_without_an_answer_of_the_api_every_node_waits(host: Path) -> None:
    silent = "leases() { return 1; }; waiting_nodes 'a 1'"
    assert output(SCRIPT, f"{prelude(host)}{silent}", NODES="a b").split() == ["a", "b"]


def test_the_token_does_not_reach_the_lines_that_a_failed_reset_shows(host: Path) -> None:
    stubs = f"""
    begin() {{ :; }}; acquire_lock() {{ :; }}; run_reset() {{ return 1; }}
    journalctl() {{ echo 'level=fatal msg="bad {TOKEN}"'; }}
    """
    done = run(SCRIPT, f"{prelude(host)}{stubs}\nmain", VERB="reset", SNAPSHOT="x")
    assert "bad [secret]" in done.stderr and TOKEN not in done.stderr


def test_a_snapshot_in_a_bucket_is_fetched_with_the_proxy_of_k3s(host: Path) -> None:
    shown = "systemd-run() { printf '%s\\n' \"$@\" >&2; }"
    call = f"{prelude(host)}\n{shown}\nK3S_UNITS={host}/units SNAPSHOT=one S3=true run_reset"
    without = run(SCRIPT, call).stderr.splitlines()
    assert not [word for word in without if word.startswith("--setenv")]
    (host / "units/k3s.service.d").mkdir(parents=True)
    drop_in = "# Written by busbar\n[Service]\nEnvironment=HTTPS_PROXY=http://proxy:3128\nEnvironment=NO_PROXY=a,b\n"
    (host / "units/k3s.service.d/20-busbar-proxy.conf").write_text(drop_in)
    given = run(SCRIPT, call).stderr.splitlines()
    assert [word for word in given if word not in without] == [
        "--setenv=HTTPS_PROXY=http://proxy:3128",
        "--setenv=NO_PROXY=a,b",
    ]


@pytest.mark.parametrize(("values", "bucket"), [({"S3": "true"}, "true"), ({}, "false")])
def test_k3s_resets_in_a_unit_like_its_own_and_is_told_whether_the_snapshot_is_in_a_bucket(
    host: Path, values: dict[str, str], bucket: str
) -> None:
    shown = "systemd-run() { printf '%s\\n' \"$@\" >&2; }; run_reset"
    words = run(SCRIPT, f"{prelude(host)}\n{shown}", SNAPSHOT="one", **values).stderr.splitlines()
    files = [f"--property=EnvironmentFile=-/etc/{folder}/k3s" for folder in ("default", "sysconfig")]
    assert words == [
        *("--quiet", "--wait", "--collect", "--unit=busbar-k3s-reset", "--property=RuntimeMaxSec=600"),
        *(*files, "--property=LimitNOFILE=1048576", f"{host}/bin/k3s", "server", "--cluster-reset"),
        *("--cluster-reset-restore-path=one", f"--etcd-s3={bucket}", "--server="),
    ]


def test_only_after_a_reset_the_passwords_are_forgotten_before_the_start_and_saved_after_it(
    host: Path,
) -> None:
    steps = """
    forget_passwords() { echo forget; }; start_and_await() { echo start; }; token_password() { :; }
    save_passwords() { echo save; }; start_here | grep -v node
    """
    assert output(SCRIPT, f"{prelude(host)}{steps}", RESET="true").split() == ["forget", "start", "save"]
    assert output(SCRIPT, f"{prelude(host)}{steps}").split() == ["start"]


def test_a_restored_server_is_started_anew_whatever_failed_before_and_then_waited_for(host: Path) -> None:
    (host / "state/restoring").touch()
    recording = """
    systemctl() { echo "systemctl $*"; [[ $1 != reset-failed ]]; }
    k3s_await_server() { echo "waits from $((K3S_SINCE > 0)) $K3S_CRASHED_BEFORE"; }
    UNIT=k3s start_and_await
    """
    text = output(SCRIPT, f"{prelude(host)}\n{recording}")
    assert text.splitlines() == [
        "systemctl enable -q k3s",
        "systemctl reset-failed k3s",
        "systemctl --no-block start k3s",
        "waits from 1 0",
    ]
    assert not (host / "state/restoring").exists()
    refused = run(SCRIPT, f"{prelude(host)}\n{recording.replace('$1 != reset-failed', '$1 != enable')}")
    assert refused.returncode == 1
    assert "systemctl enable k3s failed" in refused.stdout + refused.stderr
