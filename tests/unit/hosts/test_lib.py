"""The functions that all scripts share, in a real bash on real files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.unit.hosts.bash import output, run

BINARY = b"\x7fELF, as far as this test is concerned"
SUM = hashlib.sha256(BINARY).hexdigest()


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


def test_fetch_writes_a_file_with_the_right_checksum(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY)
    output("k3s-agent", 'fetch "$1" "$2" "$3"', f"file://{source}", SUM, str(target))
    assert target.read_bytes() == BINARY


def test_a_checksum_mismatch_stops_and_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "k3s", tmp_path / "state" / "k3s"
    source.write_bytes(BINARY + b"tampered")
    done = run("k3s-agent", 'fetch "$1" "$2" "$3"', f"file://{source}", SUM, str(target))
    assert done.returncode != 0
    assert "worker-1: checksum mismatch" in done.stderr
    assert SUM in done.stderr, "what was expected"
    assert list(target.parent.iterdir()) == []


def test_an_unreachable_mirror_names_the_url_and_the_fix(tmp_path: Path) -> None:
    done = run("k3s-agent", 'fetch "$1" "$2" "$3"', "file:///nowhere/k3s", SUM, str(tmp_path / "k3s"))
    assert "download of file:///nowhere/k3s failed" in done.stderr
    assert "k3s.base_url" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_the_right_checksum_is_not_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "k3s"
    target.write_bytes(BINARY)
    output("k3s-agent", 'fetch "$1" "$2" "$3"', "file:///nowhere/k3s", SUM, str(target))


def test_poll_ends_at_its_deadline() -> None:
    assert run("kubeconfig", "poll 1 false").returncode == 1


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
