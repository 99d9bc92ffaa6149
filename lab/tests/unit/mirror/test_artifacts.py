"""What the mirror hands out, and the sums of it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from busbar.versions import K3S
from lab.mirror import artifacts
from lab.offline import PREVIOUS_K3S
from lab.steps import LabError


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror's folder over a cache with one image archive; K3s is a file that the user names."""
    monkeypatch.setenv("BUSBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(artifacts, "CHECKSUMS", tmp_path / "artifacts" / "sha256sum.txt")
    (tmp_path / "cache" / "images").mkdir(parents=True)
    (tmp_path / "cache" / "images" / "system.tar.zst").write_bytes(b"an archive")
    own = tmp_path / "my-k3s"
    own.write_text("#!/bin/sh\necho 'k3s version v1.33.4+k3s1 (abcdef)'\n")
    own.chmod(0o755)
    monkeypatch.setenv("BUSBAR_LAB_K3S", str(own))
    return tmp_path / "artifacts"


def test_a_k3s_that_the_user_names_is_served_under_the_version_that_it_reports(served: Path) -> None:
    artifacts.publish()
    assert "abcdef" in (served / "k3s" / "v1.33.4+k3s1" / "k3s").read_text()
    assert not (served / "k3s" / K3S).exists()


def test_the_replacement_of_k3s_is_served_under_another_version_until_the_next_publication(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BUSBAR_LAB_K3S")
    monkeypatch.setattr(artifacts.official, "k3s", lambda: None)
    tools = Path(os.environ["BUSBAR_CACHE"]) / "bin"
    tools.mkdir()
    (tools / "k3s-replacement").write_bytes(b"\0" + K3S.encode() + b"\0")
    version = K3S[:-1] + "9"
    content = b"\0" + version.encode() + b"\0"
    assert artifacts.publish_as(version) == hashlib.sha256(content).hexdigest()
    other = served / "k3s" / version / "k3s"
    assert other.read_bytes() == content
    artifacts.publish()
    assert (other.exists(), (served / "k3s" / K3S / "k3s").exists()) == (False, True)


def test_the_k3s_of_the_minor_release_before_is_served_where_it_is_built(served: Path) -> None:
    with pytest.raises(LabError, match=r"is missing\. Fix: `python -m lab build --upgrade`$"):
        artifacts.publish_previous()
    tool = Path(os.environ["BUSBAR_CACHE"]) / "bin" / "k3s-previous"
    tool.parent.mkdir()
    tool.write_bytes(b"earlier")
    assert artifacts.publish_previous() == hashlib.sha256(b"earlier").hexdigest()
    previous = served / "k3s" / PREVIOUS_K3S / "k3s"
    assert previous.read_bytes() == b"earlier"
    artifacts.publish()
    assert not previous.exists()


def test_only_the_replacement_of_k3s_can_report_another_version(served: Path) -> None:
    with pytest.raises(LabError, match="is not the lab's replacement"):
        artifacts.publish_as(K3S)


def test_a_named_k3s_that_reports_no_version_is_an_error(served: Path, tmp_path: Path) -> None:
    (tmp_path / "my-k3s").write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(LabError, match="`--version` printed 'hello', expected `k3s version"):
        artifacts.publish()


def test_sha256sum_itself_accepts_the_checksums_of_what_is_served(served: Path, tmp_path: Path) -> None:
    files = artifacts.publish()
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", served / "sha256sum.txt"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "k3s: OK\nsystem.tar.zst: OK\n")


def test_the_sum_follows_a_file_that_was_made_anew(served: Path, tmp_path: Path) -> None:
    artifacts.publish()
    another = (tmp_path / "my-k3s").read_bytes() + b"# changed\n"
    (tmp_path / "my-k3s").write_bytes(another)
    artifacts.publish()
    assert hashlib.sha256(another).hexdigest() in (served / "sha256sum.txt").read_text()


def test_an_archive_that_is_gone_is_no_longer_offered(served: Path, tmp_path: Path) -> None:
    artifacts.publish()
    (tmp_path / "cache" / "images" / "system.tar.zst").unlink()
    artifacts.publish()
    assert not list((served / "images").iterdir())
    assert "system.tar.zst" not in (served / "sha256sum.txt").read_text()


def test_a_named_k3s_that_does_not_exist_is_an_error_and_not_a_fallback(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSBAR_LAB_K3S", "/nowhere/k3s")
    with pytest.raises(LabError, match="BUSBAR_LAB_K3S=/nowhere/k3s: no such file"):
        artifacts.publish()


def test_two_files_with_one_base_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two artifacts with one name"):
        artifacts.checksum_lines([tmp_path / "a" / "k3s", tmp_path / "b" / "k3s"])
