"""Image archives: the form that `ctr images import` and K3s' air-gap import read."""

from __future__ import annotations

import hashlib
import io
import json
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


def layer_of(members: Members, image: int = 0, layer: int = -1) -> tarfile.TarFile:
    manifest = json.loads(members["manifest.json"])
    return tarfile.open(fileobj=io.BytesIO(members[manifest[image]["Layers"][layer]]))


@pytest.fixture
def pause(tmp_path: Path) -> Image:
    (tmp_path / "pause").write_bytes(b"program")
    return Image(
        "docker.io/lab/pause:1", files={"pause": File(tmp_path / "pause", 0o755)}, entrypoint=("/pause",)
    )


def test_the_manifest_names_every_image_with_its_config_and_layers(tmp_path: Path, pause: Image) -> None:
    write([pause, Image("docker.io/lab/other:2", files={"other": File(b"x")})], tmp_path / "a.tar.zst")
    members = read(tmp_path / "a.tar.zst")
    manifest = json.loads(members["manifest.json"])
    assert [entry["RepoTags"] for entry in manifest] == [["docker.io/lab/pause:1"], ["docker.io/lab/other:2"]]
    assert all(entry["Config"] in members and set(entry["Layers"]) <= set(members) for entry in manifest)


def test_the_config_promises_the_digests_that_the_layers_have(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    members = read(tmp_path / "a.tar.zst")
    entry = json.loads(members["manifest.json"])[0]
    config = json.loads(members[entry["Config"]])
    digests = ["sha256:" + hashlib.sha256(members[layer]).hexdigest() for layer in entry["Layers"]]
    assert config["rootfs"]["diff_ids"] == digests
    assert config["config"]["Entrypoint"] == ["/pause"]


def test_a_program_keeps_its_mode_and_belongs_to_root(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    member = layer_of(read(tmp_path / "a.tar.zst")).getmember("pause")
    assert (member.mode, member.uid, member.gid) == (0o755, 0, 0)


def test_the_same_images_give_the_same_archive(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    write([pause], tmp_path / "b.tar.zst")
    assert read(tmp_path / "a.tar.zst") == read(tmp_path / "b.tar.zst")


def test_what_is_left_out_of_a_tree_is_not_in_the_layer(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("usr/bin/mpirun", "usr/share/doc/mpirun/README"):
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text("x")
    image = Image("docker.io/lab/tree:1", tree=tree, keep=lambda path: not path.startswith("usr/share/doc/"))
    write([image], tmp_path / "a.tar.zst")
    names = layer_of(read(tmp_path / "a.tar.zst"), layer=0).getnames()
    assert "usr/bin/mpirun" in names
    assert "usr/share/doc/mpirun" not in names


def test_links_point_where_they_were_told_to(tmp_path: Path) -> None:
    image = Image("docker.io/lab/links:1", files={"opt/a": File(b"x")}, links={"usr/local/bin/a": "/opt/a"})
    write([image], tmp_path / "a.tar.zst")
    layer = layer_of(read(tmp_path / "a.tar.zst"))
    assert layer.getmember("usr/local/bin/a").linkname == "/opt/a"
    assert layer.getmember("usr/local").isdir()


def test_a_layer_that_two_images_share_is_there_once(tmp_path: Path) -> None:
    images = [Image(f"docker.io/lab/{name}:1", files={"same": File(b"x")}) for name in ("a", "b")]
    write(images, tmp_path / "a.tar.zst")
    assert sum(name.endswith("layer.tar") for name in read(tmp_path / "a.tar.zst")) == 1


def test_an_archive_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, pause: Image) -> None:
    write([pause], tmp_path / "a.tar.zst")
    before = (tmp_path / "a.tar.zst").read_bytes()
    with pytest.raises(FileNotFoundError):
        write([Image("docker.io/lab/x:1", files={"x": File(tmp_path / "nowhere")})], tmp_path / "a.tar.zst")
    assert (tmp_path / "a.tar.zst").read_bytes() == before
