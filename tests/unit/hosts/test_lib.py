"""The functions that all scripts share, in a real bash on real files."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from busbar.hosts.scripts import text
from tests.unit.hosts.bash import output, run

BINARY = b"\x7fELF, as far as this test is concerned"
SUM = hashlib.sha256(BINARY).hexdigest()


def test_a_step_waits_for_the_one_before_it_on_the_same_host(tmp_path: Path) -> None:
    earlier = 'exec 8>"$1"; flock 8; { sleep 1; echo earlier; } & exec 8>&-; '
    text = output(
        "haproxy", earlier + "LOCK_FILE=$1 LOCK_DEADLINE=30; acquire_lock; echo later", str(tmp_path / "l")
    )
    assert text.split() == ["earlier", "later"]


def test_a_step_whose_connection_breaks_while_it_waits_changes_nothing(tmp_path: Path) -> None:
    lock, changed = tmp_path / "l", tmp_path / "changed"
    waits = f'LOCK_FILE={lock} LOCK_DEADLINE=30; acquire_lock; touch "{changed}"'
    script = tmp_path / "step.sh"
    script.write_text(f"{text('haproxy').rstrip().removesuffix('main')}{waits}\n")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # The shell stands for sshd: it starts `timeout` and ends.
        subprocess.run(["sh", "-c", f"timeout 60 bash {script} 2>{tmp_path}/said & sleep 1"], check=True)
    deadline = time.monotonic() + 30
    said = tmp_path / "said"
    while "the connection broke" not in said.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "the connection broke while it waited; no changes made" in said.read_text()
    assert not changed.exists()


def test_write_file_writes_content_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "config.yaml"
    output("haproxy", 'printf "a: 1\n" | write_file "$1" 0600', str(file))
    assert file.read_text() == "a: 1\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_write_file_does_not_replace_an_equal_file(tmp_path: Path) -> None:
    file = tmp_path / "unit"
    output("haproxy", 'printf x | write_file "$1" 0644', str(file))
    before = file.stat()
    output("haproxy", 'printf x | write_file "$1" 0644', str(file))
    assert file.stat().st_ino == before.st_ino, "a new file would look like a change"


def test_write_file_tightens_a_mode_that_is_too_wide(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("x")
    file.chmod(0o644)
    output("haproxy", 'printf x | write_file "$1" 0600', str(file))
    assert file.stat().st_mode & 0o777 == 0o600


def test_write_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    output("haproxy", 'printf x | write_file "$1" 0644; printf y | write_file "$1" 0644', str(tmp_path / "f"))
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def fetch(
    url: str, wanted: str, path: Path, *, verb: str = "fetch", fails: bool = False, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `fetch` or `prefetch` with a state folder beside the folder of `path`."""
    state = path.parent.parent / "busbar"
    state.mkdir(exist_ok=True)
    places = f"STATE_DIR={state} DOWNLOADS_DIR={state}/downloads LOCK_FILE={state}/lock; {before}"
    done = run("prepare", f'{places} {verb} "$1" "$2" "$3"', url, wanted, str(path))
    assert (done.returncode != 0) == fails, done.stderr
    return done


def test_fetch_writes_a_file_with_the_right_checksum(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY)
    fetch(f"file://{source}", SUM, target)
    assert target.read_bytes() == BINARY


def test_a_checksum_mismatch_stops_and_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY + b"tampered")
    done = fetch(f"file://{source}", SUM, target, fails=True)
    assert done.returncode != 0
    assert "worker-1: checksum mismatch" in done.stderr
    assert SUM in done.stderr, "what was expected"
    assert list(target.parent.iterdir()) == []


def test_an_unreachable_mirror_names_the_url_and_the_fix(tmp_path: Path) -> None:
    done = fetch("file:///nowhere/k3s", SUM, tmp_path / "place/k3s", fails=True)
    assert "download of file:///nowhere/k3s failed" in done.stderr
    assert "k3s.base_url" in done.stderr
    assert list((tmp_path / "place").iterdir()) == []


def test_a_file_with_the_right_checksum_is_not_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "place/k3s"
    target.parent.mkdir()
    target.write_bytes(BINARY)
    fetch("file:///nowhere/k3s", SUM, target)


def test_a_file_that_was_downloaded_ahead_lies_apart_until_it_is_fetched(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY)
    fetch(f"file://{source}", SUM, target, verb="prefetch")
    assert not target.exists()
    source.unlink()
    fetch(f"file://{source}", SUM, target)
    assert target.read_bytes() == BINARY
    assert list((tmp_path / "busbar/downloads").iterdir()) == []


def test_a_file_that_was_downloaded_ahead_is_not_trusted(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY + b"tampered")
    fetch(f"file://{source}", SUM, target, verb="prefetch")
    assert "checksum mismatch" in fetch(f"file://{source}", SUM, target, fails=True).stderr


def test_what_is_there_is_not_downloaded_ahead(tmp_path: Path) -> None:
    target = tmp_path / "state" / "k3s"
    target.parent.mkdir()
    target.write_bytes(BINARY)
    fetch("file:///nowhere/k3s", SUM, target, verb="prefetch")


def test_a_download_ahead_leaves_half_of_the_free_space(tmp_path: Path) -> None:
    full = "df() { echo 1; }; content_length() { echo 1; };"
    done = fetch("file:///nowhere/k3s", SUM, tmp_path / "state/k3s", verb="prefetch", fails=True, before=full)
    assert "larger than half of the free space" in done.stderr


def test_fetch_waits_for_a_download_of_the_same_file_that_still_runs(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY)
    ends = f'sleep 1; mkdir "$DOWNLOADS_DIR"; mv {source} "$DOWNLOADS_DIR/{SUM}"'
    running = f"(lock_download {SUM}; {ends}) & sleep 0.3;"
    fetch("file:///nowhere/k3s", SUM, target, before=running)
    assert target.read_bytes() == BINARY


def test_poll_ends_at_its_deadline() -> None:
    assert run("kubeconfig", "poll 1 false").returncode == 1


def test_a_script_is_strict_and_takes_umask_locale_and_path_from_no_login() -> None:
    login = "set +euE; set +o pipefail; umask 077; PATH=/home/me/bin:$PATH; id() { echo 0; }"
    show = 'umask; echo "$LC_ALL $PATH"; shopt -op errexit nounset errtrace pipefail'
    assert output("haproxy", f"{login}; begin; {show}", PAYLOAD="{}", LC_ALL="de_DE.UTF-8").splitlines() == [
        "0022",
        "C /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *(f"set -o {option}" for option in ("errexit", "nounset", "errtrace", "pipefail")),
    ]


def test_die_names_host_error_and_fix() -> None:
    done = run("kubeconfig", 'die "disk is full" "free some"')
    assert (done.returncode, done.stderr) == (1, "busbar: worker-1: disk is full. Fix: free some\n")


def test_an_error_inside_a_substitution_is_reported_once() -> None:
    done = run(
        "kubeconfig",
        """trap 'on_error "$?" "$LINENO" "$BASH_COMMAND"' ERR; set -E
           why() { die "no answer" "look"; }
           value=$(why)
           echo "$value reached" """,
    )
    assert done.returncode == 1
    assert done.stderr == "busbar: worker-1: no answer. Fix: look\n"
    assert done.stdout == ""


class HalfAFile(BaseHTTPRequestHandler):
    """Sends the first half of a file and breaks off; the second half only to who asks for a range."""

    content = bytes(range(256)) * 400
    ranges = True
    asked: ClassVar[list[str | None]] = []

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        whole = wanted is not None or not self.ranges
        self.wfile.write(self.content[start:] if whole else self.content[: len(self.content) // 2])

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def broken_mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HalfAFile)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    HalfAFile.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}/images.tar.zst"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_that_breaks_off_is_continued_not_begun_again(broken_mirror: str, tmp_path: Path) -> None:
    wanted, target = hashlib.sha256(HalfAFile.content).hexdigest(), tmp_path / "place/images.tar.zst"
    fetch(broken_mirror, wanted, target)
    assert target.read_bytes() == HalfAFile.content
    assert HalfAFile.asked == [None, f"bytes={len(HalfAFile.content) // 2}-"]
    assert [path.name for path in target.parent.iterdir()] == ["images.tar.zst"]


def test_a_partial_file_is_begun_again_where_the_server_knows_no_ranges(
    broken_mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HalfAFile, "ranges", False)
    wanted, target = hashlib.sha256(HalfAFile.content).hexdigest(), tmp_path / "place/images.tar.zst"
    target.parent.mkdir()
    (target.parent / f".busbar-download.{wanted[:16]}").write_bytes(HalfAFile.content[:100])
    fetch(broken_mirror, wanted, target)
    assert target.read_bytes() == HalfAFile.content


def test_the_size_of_a_download_is_asked_of_the_server(broken_mirror: str) -> None:
    assert output("k3s-agent", 'content_length "$1"', broken_mirror) == str(len(HalfAFile.content))
    assert output("k3s-agent", 'content_length "$1"', "http://127.0.0.1:1/") == "0"


def stopped(state: str) -> subprocess.CompletedProcess[str]:
    """`stop_unit` on a unit that is in this state afterwards."""
    systemctl = f"systemctl() {{ [[ $* == *--quiet* ]] || echo {state}; [[ {state} == active ]]; }}; "
    return run("k3s-server", systemctl + "timeout() { :; }; stop_unit k3s")


@pytest.mark.parametrize("state", ["inactive", "failed", "unknown"])
def test_a_unit_that_has_ended_is_stopped(state: str) -> None:
    assert stopped(state).returncode == 0


@pytest.mark.parametrize("state", ["active", "deactivating", "activating"])
def test_a_unit_that_has_not_ended_is_not_stopped(state: str) -> None:
    done = stopped(state)
    assert done.returncode == 1
    assert "k3s did not stop" in done.stderr
