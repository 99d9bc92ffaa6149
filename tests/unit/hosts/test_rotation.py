"""Rotations on a host: what is due, and that a run which was killed anywhere is finished by the next one."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from busbar.hosts import k3s
from busbar.hosts import scripts as hostscript
from tests.unit.hosts.bash import output, run

OLD, NEW = "oldtoken", "newtoken"
PINNED = f"K10{'a' * 64}::server:"


def places(root: Path) -> str:
    """Paths below `root`; curl notes what it is told."""
    return f"""
        STATE_DIR={root}; K3S_DATA_DIR={root}/data; K3S_CONFIG_DIR={root}/etc
        systemctl() {{ [[ $1 != is-active || ${{RUNS:-yes}} == yes ]]; }}
        journalctl() {{ echo "${{JOURNAL:-}}"; }}
        poll() {{ shift; "$@"; }}
        curl() {{
          local input
          input=$(cat)
          echo "$input" >>{root}/puts
          case $input in *"server:$ACCEPTS"*) printf 200 ;; *) printf 401 ;; esac
        }}
    """


def test_a_raised_number_is_due_until_it_is_recorded(tmp_path: Path) -> None:
    due = places(tmp_path) + "rotation_is_due certificates && echo due || echo done"
    assert output("k3s-agent", due).strip() == "done", "never rotated, and not asked for"
    assert output("k3s-agent", due, ROTATE_CERTIFICATES="2").strip() == "due"
    output("k3s-agent", places(tmp_path) + "record_rotation server_token 1; record_rotation certificates 2")
    assert output("k3s-agent", due, ROTATE_CERTIFICATES="2").strip() == "done"
    assert output("k3s-agent", due, ROTATE_CERTIFICATES="3").strip() == "due"
    assert (tmp_path / "rotated").read_text() == "server_token 1\ncertificates 2\n"


def test_a_lower_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rotated").write_text("server_token 3\n")
    install = places(tmp_path) + "with_rotations echo changed"
    done = run("k3s-server", install, ROTATE_SERVER_TOKEN="2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "k3s.rotate.server_token is 2, but 3 is done here; K3s was not changed" in done.stderr
    assert "Fix: set it to 3, or to a higher number" in done.stderr


def flag(root: Path, k3s_command: str) -> subprocess.CompletedProcess[str]:
    """What systemd runs before K3s, with `k3s_command` as K3s."""
    path = root / "rotate.conf"
    write = "write_file() { cat >" + str(path) + "; }; "
    output("k3s-agent", places(root) + f"K3S={k3s_command}; " + write + "rotate_certificates_at_start")
    line = next(line for line in path.read_text().splitlines() if line.startswith("ExecStartPre="))
    return subprocess.run(["bash", "-c", line.removeprefix("ExecStartPre=")], check=False, text=True)


def test_certificates_are_rotated_once_at_the_next_start_also_if_k3s_then_crashes(tmp_path: Path) -> None:
    k3s_binary = tmp_path / "k3s"
    k3s_binary.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/rotations\n')
    k3s_binary.chmod(0o755)
    assert flag(tmp_path, str(k3s_binary)).returncode == 0
    assert (tmp_path / "rotations").read_text() == "certificate rotate\n"
    assert not (tmp_path / "rotate-certificates").exists(), "the next start keeps them"


def test_a_start_whose_rotation_failed_is_no_start(tmp_path: Path) -> None:
    assert flag(tmp_path, "/bin/false").returncode != 0
    assert (tmp_path / "rotate-certificates").exists()
    done = run("k3s-agent", places(tmp_path) + "certificates_are_rotated", ROTATE_CERTIFICATES="1")
    assert "k3s-agent is running, but its certificates were not rotated" in done.stderr


def rotate(root: Path, **values: str) -> subprocess.CompletedProcess[str]:
    call = f"rotate_server_token {OLD} {PINNED}{NEW}"
    return run("k3s-server", places(root) + call, **{"ACCEPTS": OLD, **values})


def puts(root: Path) -> list[str]:
    path = root / "puts"
    return [line for line in path.read_text().splitlines() if "newToken" in line] if path.exists() else []


def test_etcd_gets_the_new_token_once(tmp_path: Path) -> None:
    assert rotate(tmp_path).returncode == 0
    assert puts(tmp_path) == ['data = "{\\"newToken\\":\\"newtoken\\"}"']
    assert rotate(tmp_path).returncode == 0
    assert len(puts(tmp_path)) == 1, "a run that was killed right after it"
    assert (tmp_path / "token-in-etcd").read_text().strip() == k3s.install_id(NEW)


def test_the_tokens_are_in_no_argument_of_a_process(tmp_path: Path) -> None:
    seen = places(tmp_path) + f'curl() {{ echo "$@" >>{tmp_path}/arguments; cat >/dev/null; printf 200; }}; '
    output("k3s-server", seen + f"rotate_server_token {OLD} {NEW}")
    arguments = (tmp_path / "arguments").read_text()
    assert "/v1-k3s/token" in arguments and OLD not in arguments and NEW not in arguments


def test_a_server_that_has_restarted_with_the_new_token_is_asked_with_it(tmp_path: Path) -> None:
    assert rotate(tmp_path, ACCEPTS=NEW).returncode == 0
    assert len(puts(tmp_path)) == 2


def test_a_refused_rotation_ends_the_update(tmp_path: Path) -> None:
    done = rotate(tmp_path, ACCEPTS="another")
    assert done.returncode == 1
    assert "k3s did not rotate the server token (PUT /v1-k3s/token: 401)" in done.stderr
    assert not (tmp_path / "token-in-etcd").exists()


def test_a_server_that_etcd_refuses_since_the_rotation_goes_on_with_the_new_token(tmp_path: Path) -> None:
    refused = 'level=fatal msg="bootstrap data already found and encrypted with different token"'
    assert rotate(tmp_path, RUNS="no", JOURNAL=refused).returncode == 0
    assert puts(tmp_path) == []


def test_without_k3s_nothing_is_rotated(tmp_path: Path) -> None:
    done = rotate(tmp_path, RUNS="no")
    assert "k3s is not running here, and without it the server token cannot be rotated" in done.stderr


def identity(root: Path, **values: str) -> subprocess.CompletedProcess[str]:
    (root / "data/server/db/etcd/member").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/config.yaml").write_text(f"node-name: worker-1\ntoken: {OLD}\n")
    payload = hostscript.stdin("k3s-server", {"config": f"token: {PINNED}{NEW}\n"}).partition("\n")[0]
    return run("k3s-server", places(root) + "refuse_new_identity", PAYLOAD=payload, **values)


def test_another_token_is_refused_unless_a_rotation_is_due(tmp_path: Path) -> None:
    done = identity(tmp_path)
    assert "the token is not the one that this cluster was created with" in done.stderr


def test_another_token_is_taken_where_a_rotation_is_due(tmp_path: Path) -> None:
    assert identity(tmp_path, ROTATE_SERVER_TOKEN="1").returncode == 0


def test_the_digest_of_a_token_is_the_same_in_bash_and_in_python(tmp_path: Path) -> None:
    text = output("k3s-server", places(tmp_path) + f"token_digest {PINNED}{NEW}").strip()
    assert text == k3s.install_id(NEW) == hashlib.sha256(f"busbar install {NEW}".encode()).hexdigest()[:16]
