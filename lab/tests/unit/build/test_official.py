"""Official parts win where they can be had, and are taken only as the release published them."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from busbar import versions
from lab.build import official
from lab.steps import LabError

BINARY = b"#!/bin/sh\necho k3s\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a release server on this machine that offers K3s and a Pulumi CLI."""
    site = tmp_path / "site"
    folder = site / versions.K3S
    folder.mkdir(parents=True)
    monkeypatch.setenv("BUSBAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(official, "architecture", lambda: "amd64")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(versions, "K3S_BASE_URL", url)
        monkeypatch.setattr(official, "PULUMI_URL", url)
        official.reachable.cache_clear()
        (folder / "k3s").write_bytes(BINARY)
        (folder / "sha256sum-amd64.txt").write_text(f"{hashlib.sha256(BINARY).hexdigest()}  k3s\n")
        yield folder
        server.shutdown()
    official.reachable.cache_clear()


def test_the_official_k3s_is_downloaded_once_and_can_be_run(release: Path) -> None:
    assert quote(versions.K3S) != versions.K3S, "the + of the version has to be quoted in the URL"
    binary = official.k3s()
    assert binary is not None
    assert binary.read_bytes() == BINARY
    assert binary.stat().st_mode & 0o111
    (release / "k3s").unlink()
    assert official.k3s() == binary


def test_a_k3s_with_another_checksum_is_not_kept(release: Path, tmp_path: Path) -> None:
    (release / "k3s").write_bytes(b"something else")
    with pytest.raises(LabError, match=r"SHA-256 is .*, expected .* from the release"):
        official.k3s()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_release_without_a_checksum_for_k3s_is_not_taken(release: Path) -> None:
    (release / "sha256sum-amd64.txt").write_text(f"{'0' * 64}  k3s-airgap-images-amd64.tar.zst\n")
    with pytest.raises(LabError, match="has no checksum for k3s"):
        official.k3s()


def test_where_no_release_can_be_had_there_is_none_and_the_next_question_is_not_asked(release: Path) -> None:
    (release / "k3s").rename(release / "away")
    assert official.k3s() is None
    (release / "away").rename(release / "k3s")
    official.reachable.cache_clear()  # as in the next command: the answer is remembered in the cache
    assert official.k3s() is None


def test_the_official_pulumi_is_unpacked(release: Path) -> None:
    archive = release.parent / f"pulumi-v{official.PULUMI}-linux-x64.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        entry = tarfile.TarInfo("pulumi/pulumi")
        entry.size, entry.mode = len(BINARY), 0o755
        tar.addfile(entry, io.BytesIO(BINARY))
    folder = official.pulumi()
    assert folder is not None
    assert (folder / "pulumi").read_bytes() == BINARY
    assert official.cached_pulumi() == folder
