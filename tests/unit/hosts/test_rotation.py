"""Rotations on a host: what is due, and that a run which was killed anywhere is finished by the next one."""

import hashlib
import subprocess

import pytest

from busbar.hosts import k3s
from tests.support.bash import Box, output

OLD, NEW = "oldtoken", "newtoken"
PINNED = f"K10{'a' * 64}::server:"
CONFIG = {"config": f"token: {PINNED}{NEW}\n"}
# K3s accepts the token ACCEPTS, unless it does not run (RUNS=no); what curl is told is in `puts`.
PROGRAMS = """
systemctl() { [[ $1 != is-active || ${RUNS:-yes} == yes ]]; }
journalctl() { echo "${JOURNAL:-}"; }
poll() { shift; "$@"; }
curl() {
  local input
  input=$(cat)
  echo "$@" >>$ROOT/arguments
  echo "$input" | grep newToken >>$ROOT/puts
  case $input in *"server:$ACCEPTS"*) printf 200 ;; *) printf 401 ;; esac
}
"""


def test_a_raised_number_is_due_until_it_is_recorded(box: Box) -> None:
    def is_due(number: str) -> bool:
        done = box.run("k3s-agent", "rotation_is_due certificates", ROTATE_CERTIFICATES=number)
        return done.returncode == 0

    assert is_due("2") and not is_due("0")
    box.output("k3s-agent", "record_rotation server_token 1; record_rotation certificates 2")
    assert is_due("3") and not is_due("2")
    assert box.read("state/rotated") == "server_token 1\ncertificates 2\n"


def test_a_new_cluster_has_done_the_rotations_that_it_is_made_with(box: Box) -> None:
    done = box.output(
        "k3s-server", PROGRAMS + "with_rotations echo starts", CONFIG, ROTATE_SERVER_TOKEN="1", FIRST="true"
    )
    assert (done, box.read("state/rotated")) == ("starts\n", "server_token 1\n")
    assert not box.has("puts")


def test_a_lower_number_is_refused(box: Box) -> None:
    box.write("state/rotated", "server_token 3\n")
    said = box.error("k3s-server", PROGRAMS + "with_rotations echo changed", ROTATE_SERVER_TOKEN="2")
    assert "k3s.rotate.server_token is 2, but 3 is done here; K3s was not changed" in said
    assert "Fix: set it to 3, or to a higher number" in said


def start(box: Box) -> int:
    """The exit status of what systemd runs before K3s when certificates are due."""
    written = "write_file() { cat >$ROOT/rotate.conf; }; rotate_certificates_at_start"
    box.output("k3s-agent", PROGRAMS + written)
    [line] = [line for line in box.read("rotate.conf").splitlines() if line.startswith("ExecStartPre=")]
    return subprocess.run(["bash", "-c", line.removeprefix("ExecStartPre=")], check=False).returncode


def test_a_start_whose_rotation_failed_is_no_start(box: Box) -> None:
    box.program("bin/k3s", "exit 1")
    box.write("state/rotated")
    assert start(box) != 0
    said = box.error("k3s-agent", PROGRAMS + "certificates_are_rotated", ROTATE_CERTIFICATES="1")
    assert "k3s-agent is running, but its certificates were not rotated" in said


ROTATE = f"{PROGRAMS} rotate_server_token {OLD} {PINNED}{NEW}"
REFUSED = 'level=fatal msg="bootstrap data already found and encrypted with different token"'


@pytest.mark.parametrize(
    ("values", "puts"),
    [
        ({"ACCEPTS": OLD}, 1),
        # It was killed after the rotation, and has restarted since.
        ({"ACCEPTS": NEW}, 2),
        # Etcd refuses the earlier token since the rotation.
        ({"ACCEPTS": OLD, "RUNS": "no", "JOURNAL": REFUSED}, 0),
    ],
)
def test_etcd_gets_the_new_token_once(box: Box, values: dict[str, str], puts: int) -> None:
    box.write("state/rotated")
    box.write("puts")
    for _ in range(2):
        box.output("k3s-server", ROTATE, **values)
    assert box.read("puts").splitlines() == ['data = "{\\"newToken\\":\\"newtoken\\"}"'] * puts
    if puts:
        assert box.read("state/token-in-etcd").strip() == k3s.install_id(NEW)
        arguments = box.read("arguments")
        assert "/v1-k3s/token" in arguments and OLD not in arguments and NEW not in arguments


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ACCEPTS": "another"}, "k3s did not rotate the server token (PUT /v1-k3s/token: 401)"),
        ({"RUNS": "no"}, "k3s is not running here, and without it the server token cannot be rotated"),
    ],
)
def test_a_rotation_that_fails_ends_the_update(box: Box, values: dict[str, str], says: str) -> None:
    assert says in box.error("k3s-server", ROTATE, **values)
    assert not box.has("state/token-in-etcd")


def a_server(box: Box, config: str = f"node-name: worker-1\ntoken: {OLD}\n") -> None:
    box.write("data/server/db/etcd/member/snap")
    box.write("etc/config.yaml", config)


def test_another_server_takes_the_rotated_token_with_its_restart_and_rotates_none(box: Box) -> None:
    a_server(box)
    for path in ("data/server/cred/passwd", "state/k3s.sha256"):
        box.write(path)
    rotate = "with_rotations ls $K3S_DATA_DIR/server/cred $STATE_DIR"
    seen = box.output("k3s-server", PROGRAMS + rotate, CONFIG, ROTATE_SERVER_TOKEN="1", FIRST="false")
    assert "passwd" not in seen and "k3s.sha256" not in seen
    assert not box.has("puts")
    assert box.read("state/token-in-etcd").strip() == k3s.install_id(NEW)
    assert box.read("state/rotated") == "server_token 1\n"


@pytest.mark.parametrize(
    ("config", "values", "says"),
    [
        (f"token: {PINNED}{NEW}\n", {}, ""),
        (f"node-name: worker-1\ntoken: {NEW}\n", {}, ""),
        (f"token: {OLD}\n", {"ROTATE_SERVER_TOKEN": "1"}, ""),
        (f"token: {OLD}\n", {}, "the token is not the one that this cluster was created with; no changes"),
        ("node-name: other\n", {}, "this server is other in etcd and cannot become worker-1; no changes"),
        (f"agent-token: {OLD}\ntoken: {NEW}\n", {"ROTATE_AGENT_TOKEN": "1"}, ""),
        (
            f"agent-token: {OLD}\ntoken: {NEW}\n",
            {},
            "the agent token is not the one of this cluster; no changes",
        ),
    ],
)
def test_a_server_keeps_its_name_and_token(box: Box, config: str, values: dict[str, str], says: str) -> None:
    assert box.run("k3s-server", "refuse_new_identity").returncode == 0, "a fresh one may have any name"
    a_server(box, config)
    done = box.run("k3s-server", "refuse_new_identity", CONFIG, **values)
    assert (done.returncode == 1) is bool(says) and says in done.stderr


def test_the_digest_of_a_token_is_the_same_in_bash_and_in_python() -> None:
    text = output("k3s-server", f"token_digest {PINNED}{NEW}").strip()
    assert text == k3s.install_id(NEW) == hashlib.sha256(f"busbar install {NEW}".encode()).hexdigest()[:16]
