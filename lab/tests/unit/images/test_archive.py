"""Image archives: the form that `ctr images import` and K3s' air-gap import read."""

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from lab.images.archive import File, Image, write

Members = dict[str, bytes]


def read(path: Path) -> Members:
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        content = io.BytesIO(plain.read())
    with tarfile.open(fileobj=content) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@pytest.fixture
def pause(tmp_path: Path) -> Image:
    (tmp_path / "pause").write_bytes(b"program")
    return Image(
        "docker.io/lab/pause:1", files={"pause": File(tmp_path / "pause", 0o755)}, entrypoint=("/pause",)
    )


def test_the_same_images_give_the_same_archive(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    write([pause], tmp_path / "b.tar.zst")
    assert read(tmp_path / "a.tar.zst") == read(tmp_path / "b.tar.zst")


def test_an_archive_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    before = (tmp_path / "a.tar.zst").read_bytes()
    with pytest.raises(FileNotFoundError):
        write([Image("docker.io/lab/x:1", files={"x": File(tmp_path / "nowhere")})], tmp_path / "a.tar.zst")
    assert (tmp_path / "a.tar.zst").read_bytes() == before
