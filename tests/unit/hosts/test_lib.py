"""The functions that all scripts share, in a real bash on real files."""

import fcntl
import hashlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from busbar.hosts.scripts import text
from tests.support.bash import Box, output, run


def test_a_step_waits_for_the_one_before_it_on_the_same_host(box: Box) -> None:
    earlier = "exec 8>$LOCK_FILE; flock 8; { sleep 0.3; echo earlier; } & exec 8>&-; "
    printed = box.output("haproxy", f"{earlier} LOCK_DEADLINE=30; acquire_lock; echo later")
    assert printed.split() == ["earlier", "later"]


def test_a_step_whose_connection_breaks_while_it_waits_changes_nothing(box: Box) -> None:
    waits = f'flock() {{ touch {box.root}/waits; command flock "$@"; }}'
    step = f"{waits}; LOCK_FILE={box.root}/lock LOCK_DEADLINE=30; acquire_lock; touch {box.root}/changed\n"
    script = box.write("step.sh", text("haproxy").rstrip().removesuffix("main") + step)
    with box.write("lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # The shell stands for sshd: it starts `timeout`, and ends when the script waits.
        until = f"until [ -e {box.root}/waits ]; do sleep 0.02; done"
        sshd = f"timeout 60 bash {script} 2>{box.root}/said & {until}"
        subprocess.run(["sh", "-c", sshd], check=True, timeout=60)
    deadline = time.monotonic() + 30
    while "the connection broke" not in box.read("said") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "the connection broke while it waited; no changes made" in box.read("said")
    assert not box.has("changed")


def test_a_script_is_strict_and_takes_umask_locale_and_path_from_no_login() -> None:
    login = "set +euE; set +o pipefail; umask 077; PATH=/home/me/bin:$PATH; id() { echo 0; }"
    show = 'umask; echo "$LC_ALL $PATH"; shopt -op errexit nounset errtrace pipefail'
    assert output("haproxy", f"{login}; begin; {show}", PAYLOAD="{}", LC_ALL="de_DE.UTF-8").splitlines() == [
        "0022",
        "C /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *(f"set -o {option}" for option in ("errexit", "nounset", "errtrace", "pipefail")),
    ]


DIE = 'die "disk is full" "free some"'


@pytest.mark.parametrize("call", [DIE, f"why() {{ {DIE}; }}; value=$(why); echo reached"])
def test_an_error_names_host_and_fix_once_also_inside_a_substitution(call: str) -> None:
    trap = 'trap \'on_error "$?" "$LINENO" "$BASH_COMMAND"\' ERR; set -E; '
    done = run("kubeconfig", trap + call)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "busbar: worker-1: disk is full. Fix: free some\n"


def test_poll_ends_at_its_deadline() -> None:
    a_second_passes = "unset SECONDS; SECONDS=0; sleep() { ((SECONDS += 1)); echo slept; }"
    done = run("kubeconfig", f"{a_second_passes}; poll 3 false")
    assert (done.returncode, done.stdout.split()) == (1, ["slept"] * 3)


@pytest.mark.parametrize("state", ["inactive", "failed", "unknown", "active", "deactivating", "activating"])
def test_a_unit_is_stopped_when_it_has_ended(state: str) -> None:
    stopped = state in ("inactive", "failed", "unknown")
    unit = f"systemctl() {{ [[ $* == *--quiet* ]] || echo {state}; [[ {state} == active ]]; }}; "
    done = run("k3s-server", unit + "timeout() { :; }; stop_unit k3s")
    assert done.returncode == (0 if stopped else 1)
    assert ("k3s did not stop" in done.stderr) is not stopped


def write(box: Box, content: str, mode: str = "0600") -> None:
    box.output("haproxy", f"printf '{content}' | write_file $ROOT/sub/file {mode}")


def test_write_file_writes_content_and_mode_and_does_not_replace_an_equal_file(box: Box) -> None:
    for content in ("a: 1\\n", "b: 2\\n"):
        write(box, content)
    assert (box.read("sub/file"), box.mode("sub/file")) == ("b: 2\n", 0o600)
    assert [path.name for path in (box.root / "sub").iterdir()] == ["file"]
    write(box, "x", "0644")
    before = (box.root / "sub/file").stat()
    write(box, "x", "0644")
    assert (box.root / "sub/file").stat().st_ino == before.st_ino, "a new file would look like a change"
    write(box, "x", "0600")
    assert box.mode("sub/file") == 0o600


class Mirror(BaseHTTPRequestHandler):
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


CONTENT = Mirror.content
SUM = hashlib.sha256(CONTENT).hexdigest()
FILE, PARTIAL = "place/k3s", f"place/.busbar-download.{SUM[:16]}"


@pytest.fixture
def broken_mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    Mirror.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}/images.tar.zst"
    server.shutdown()
    thread.join()
    server.server_close()


def source(box: Box, content: bytes = CONTENT) -> str:
    """The URL of a file with this content."""
    file = box.write("source")
    file.write_bytes(content)
    return f"file://{file}"


def fetch(box: Box, url: str, prelude: str = "") -> None:
    """Download the file with the checksum of CONTENT."""
    box.output("prepare", f"{prelude} fetch {url} {SUM} $ROOT/{FILE}")
    assert (box.root / FILE).read_bytes() == CONTENT
    assert [path.name for path in (box.root / FILE).parent.iterdir()] == ["k3s"]


def prefetch(box: Box, url: str, prelude: str = "") -> None:
    box.output("prepare", f"{prelude} prefetch {url} {SUM} $ROOT/{FILE}")


def not_fetched(box: Box, url: str, call: str = "fetch") -> str:
    """The reason why a file was not downloaded. Nothing of it is left then."""
    said = box.error("prepare", f"{call} {url} {SUM} $ROOT/{FILE}")
    assert not [path for path in box.root.rglob("*") if path.parent.name == "place"]
    return said


def test_a_file_with_the_right_checksum_is_fetched_once(box: Box) -> None:
    fetch(box, source(box))
    fetch(box, "file:///nowhere/k3s")
    prefetch(box, "file:///nowhere/k3s")


def test_a_checksum_mismatch_or_an_unreachable_mirror_stops_and_leaves_nothing(box: Box) -> None:
    said = not_fetched(box, source(box, CONTENT + b"tampered"))
    assert "worker-1: checksum mismatch" in said
    assert f"expected {SUM}" in said
    said = not_fetched(box, "file:///nowhere/k3s")
    assert "download of file:///nowhere/k3s failed" in said and "k3s.base_url" in said


def test_a_download_that_breaks_off_is_continued_not_begun_again(box: Box, broken_mirror: str) -> None:
    fetch(box, broken_mirror)
    assert Mirror.asked == [None, f"bytes={len(CONTENT) // 2}-"]


def test_without_ranges_a_partial_file_is_begun_again(
    box: Box, broken_mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mirror, "ranges", False)
    box.write(PARTIAL).write_bytes(CONTENT[:100])
    fetch(box, broken_mirror)


def test_the_size_of_a_download_is_asked_of_the_server(broken_mirror: str) -> None:
    assert output("k3s-agent", 'content_length "$1"', broken_mirror) == str(len(CONTENT))
    assert output("k3s-agent", 'content_length "$1"', "http://127.0.0.1:1/") == "0"


def test_a_file_that_was_downloaded_ahead_is_not_trusted(box: Box) -> None:
    url = source(box, CONTENT + b"tampered")
    prefetch(box, url)
    assert "checksum mismatch" in not_fetched(box, url)


def test_a_download_ahead_leaves_half_of_the_free_space(box: Box) -> None:
    full = "df() { echo 1; }; content_length() { echo 1; }; prefetch"
    assert "larger than half of the free space" in not_fetched(box, "file:///nowhere/k3s", full)


def test_fetch_waits_for_a_download_of_the_same_file_that_still_runs(box: Box) -> None:
    source(box)
    runs = f"lock_download {SUM}; touch $ROOT/runs"
    ends = f"sleep 0.3; mkdir -p $DOWNLOADS_DIR; mv $ROOT/source $DOWNLOADS_DIR/{SUM}"
    fetch(box, "file:///nowhere/k3s", f"({runs}; {ends}) & until [[ -e $ROOT/runs ]]; do sleep 0.02; done;")


@pytest.mark.parametrize(
    ("script", "call", "through_proxy"),
    [
        ("haproxy", "CONFIG=/dev/null CA_FILE=/dev/null API_PORT=1; healthy 127.0.0.1", False),
        ("haproxy", "backends", False),
        ("k3s-server", "peer_ping 127.0.0.1", False),
        ("k3s-server", "desired_value() { echo 127.0.0.1; }; missing_names", False),
        ("k3s-server", "put_token a b", False),
        ("k3s-agent", "content_length https://192.0.2.1/k3s", True),
    ],
)
def test_the_proxy_is_for_downloads_not_for_the_cluster(script: str, call: str, through_proxy: bool) -> None:
    # As /etc/environment names it for logins. The proxy never answers; a port of loopback refuses at once.
    short = 'curl() { command curl "$@" --max-time 0.3; }; '
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        run(script, f"{short}{call} || true", http_proxy=url, https_proxy=url, no_proxy="", NO_PROXY="")
        proxy.settimeout(0)
        try:
            proxy.accept()[0].close()
            asked = True
        except BlockingIOError:
            asked = False
    assert asked is through_proxy


def test_kubectl_asks_another_server_without_the_proxy() -> None:
    call = "timeout() { shift; env; }; API_SERVER=https://10.0.0.2:6443; api 5 get nodes"
    found = output("k3s-server", call, HTTPS_PROXY="http://10.0.0.9:3128", NO_PROXY="localhost").splitlines()
    assert "NO_PROXY=*" in found
