"""A script that preflight delivers, and the Command that runs it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from busbar.hosts import scripts
from tests.unit.hosts.bash import run

PREFLIGHT = scripts.text("preflight")
SCRIPT = 'echo "ran with $(cat)$PAYLOAD"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host keeps scripts; the agent's script is SCRIPT."""
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()[:12]
    monkeypatch.setattr(scripts, "text", lambda _: SCRIPT)
    monkeypatch.setattr(scripts, "digest", lambda _: digest)
    return tmp_path / "busbar"


def keep(folder: Path, role: str = "worker") -> subprocess.CompletedProcess[str]:
    """What preflight does with its payload, on a host whose umask is the usual one."""
    line = scripts.payload_line(scripts.delivery(role))
    return run_preflight(folder, line)


def run_preflight(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    functions = PREFLIGHT.rstrip().removesuffix("\nmain")
    call = "set -euo pipefail; umask 022; DELIVERED_DIR=$1; keep_script"
    return subprocess.run(
        ["bash", "-c", f"{functions}\n{call}", "bash", str(folder)],
        env={"BUSBAR_LIB": "1", "PAYLOAD": line, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def launch(folder: Path, line: str = '{"config":"eA=="}\n') -> subprocess.CompletedProcess[str]:
    """Runs the Command's text as sshd does."""
    text = scripts.command(
        "k3s-agent", {"NODE_NAME": "gpu-1"}, user="root", timeout_seconds=20, delivered=True
    )
    return subprocess.run(
        ["sh", "-c", text.replace(scripts.DELIVERED_DIR, str(folder))],
        input=line, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_what_preflight_kept_runs_with_the_payload_of_the_command(folder: Path) -> None:
    assert keep(folder).returncode == 0
    assert launch(folder).stdout == 'ran with {"config":"eA=="}\n'


def test_a_kept_script_runs_as_often_as_it_is_asked_for(folder: Path) -> None:
    keep(folder)
    assert launch(folder).stdout == launch(folder).stdout != ""


def test_only_the_owner_reads_what_is_kept(folder: Path) -> None:
    keep(folder)
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_script_that_is_not_there_is_named_and_nothing_runs(folder: Path) -> None:
    done = launch(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-2:] == [
        f"busbar: gpu-1: this host does not have the script {scripts.identity('k3s-agent')}",
        scripts.not_delivered("k3s-agent"),
    ]


@pytest.mark.parametrize("changed", [f"{SCRIPT}echo more\n", SCRIPT[:-2], ""])
def test_a_script_that_is_not_the_one_of_the_digest_does_not_run(folder: Path, changed: str) -> None:
    keep(folder)
    (folder / scripts.identity("k3s-agent")).write_text(changed)
    done = launch(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert scripts.not_delivered("k3s-agent") in done.stderr.splitlines()


def test_a_connection_that_breaks_before_the_payload_has_come_runs_nothing(folder: Path) -> None:
    keep(folder)
    for cut in ("", '{"config":"eA'):
        assert (launch(folder, cut).returncode, launch(folder, cut).stdout) == (1, "")


def test_a_delivery_replaces_what_was_there(folder: Path) -> None:
    keep(folder)
    (folder / scripts.identity("k3s-agent")).write_text("exit 3\n")
    keep(folder)
    assert launch(folder).returncode == 0
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("role", ["lb", "server"])
def test_hosts_whose_commands_carry_their_scripts_are_left_alone(folder: Path, role: str) -> None:
    assert keep(folder, role).returncode == 0
    assert not folder.exists()


def test_a_preflight_by_hand_keeps_nothing(folder: Path) -> None:
    assert run_preflight(folder, "{}").returncode == 0
    assert not folder.exists()


def test_a_removal_takes_away_what_was_delivered(tmp_path: Path) -> None:
    for name in ("state", "delivered"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    done = run("k3s-agent", "STATE_DIR=$1/state DELIVERED_DIR=$1/delivered; remove_state", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
