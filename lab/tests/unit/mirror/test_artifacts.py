"""What the mirror hands out, and the sums of it."""

import hashlib
from pathlib import Path

import pytest

from busbar.versions import K3S
from lab.mirror import artifacts
from lab.steps import LabError


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror's folder over a cache with one image archive; K3s is a file that the user names."""
    monkeypatch.setenv("BUSBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(artifacts, "CHECKSUMS", tmp_path / "artifacts" / "sha256sum.txt")
    (tmp_path / "cache" / "images").mkdir(parents=True)
    (tmp_path / "cache" / "images" / "system.tar.zst").write_bytes(b"an archive")
    monkeypatch.setenv("BUSBAR_LAB_K3S", str(k3s(tmp_path / "my-k3s", "v1.33.4+k3s1")))
    monkeypatch.delenv("BUSBAR_LAB_K3S_NEXT", raising=False)
    return tmp_path / "artifacts"


def k3s(path: Path, version: str) -> Path:
    path.write_text(f"#!/bin/sh\necho 'k3s version {version} (abcdef)'\n")
    path.chmod(0o755)
    return path


def test_a_k3s_that_the_user_names_is_served_under_the_version_that_it_reports(served: Path) -> None:
    artifacts.publish()
    assert "abcdef" in (served / "k3s" / "v1.33.4+k3s1" / "k3s").read_text()
    assert not (served / "k3s" / K3S).exists()


def test_the_k3s_to_upgrade_to_is_served_beside_the_first_which_alone_has_a_checksum_in_the_file(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = k3s(tmp_path / "later", "v1.34.0+k3s1")
    monkeypatch.setenv("BUSBAR_LAB_K3S_NEXT", str(later))
    assert artifacts.next_k3s() == artifacts.K3sRelease("v1.34.0+k3s1", later)
    artifacts.publish()
    first, other = (served / "k3s" / version / "k3s" for version in ("v1.33.4+k3s1", "v1.34.0+k3s1"))
    assert (first.readlink(), other.readlink()) == (tmp_path / "my-k3s", later)
    [line] = [line for line in (served / "sha256sum.txt").read_text().splitlines() if line.endswith("  k3s")]
    assert line.split()[0] == artifacts.sha256(first) != artifacts.sha256(other)
    monkeypatch.delenv("BUSBAR_LAB_K3S_NEXT")
    artifacts.publish()
    assert (first.exists(), other.exists()) == (True, False)


@pytest.mark.parametrize("version", ["v1.33.4+k3s1", "v1.33.3+k3s1", "v1.9.9+k3s1"])
def test_the_k3s_to_upgrade_to_is_a_later_one(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("BUSBAR_LAB_K3S_NEXT", str(k3s(tmp_path / "later", version)))
    with pytest.raises(LabError, match=r"Fix: name a release after v1\.33\.4\+k3s1$"):
        artifacts.publish()


def test_the_hosts_template_of_containerd_suits_both_releases(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSBAR_LAB_K3S_NEXT", str(k3s(tmp_path / "later", "v1.35.2+k3s1")))
    with pytest.raises(LabError, match=r"Fix: name two releases before v1\.35\.2, or two from it on$"):
        artifacts.publish()


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


@pytest.mark.parametrize("variable", ["BUSBAR_LAB_K3S", "BUSBAR_LAB_K3S_NEXT"])
def test_a_named_k3s_that_does_not_exist_is_an_error_and_not_a_fallback(
    served: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/nowhere/k3s")
    with pytest.raises(LabError, match=f"{variable}=/nowhere/k3s: no such file"):
        artifacts.publish()
