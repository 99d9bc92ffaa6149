"""Container images as one archive, in the form of `docker save`: what containerd and K3s import."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import zstandard

# Layers carry no date of their build: the same recipe gives the same digest.
EPOCH = "1970-01-01T00:00:00Z"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class File:
    """One file of a layer: from a path of this machine, or these bytes."""

    content: Path | bytes
    mode: int = 0o644


@dataclass(frozen=True)
class Image:
    """One image of one or two layers: a package tree (`tree`), then single files and links over it.

    `name` is the full reference, registry included. `files` maps paths inside the image; `links` maps the
    path of a link to its target. `keep` says whether a path of `tree` (without a leading slash) is taken.
    `user`: UID:GID of its processes; without one they are root's.
    """

    name: str
    files: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    tree: Path | None = None
    keep: Callable[[str], bool] = lambda path: True
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    environment: tuple[str, ...] = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)


def architecture() -> str:
    """This machine's architecture in an image's spelling; raises ValueError for an unknown one."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ValueError(f"images can be built for {', '.join(ARCHITECTURES)}, not for {machine}")
    return ARCHITECTURES[machine]


def write(images: Iterable[Image], path: Path) -> None:
    """Write the images to `path` (.tar.zst), whole or not at all."""
    stage = path.with_name(f".{path.name.partition('.')[0]}.new")  # not to be taken for an archive
    stage.parent.mkdir(parents=True, exist_ok=True)
    compressor = zstandard.ZstdCompressor(level=6, threads=-1)
    with (
        stage.open("wb") as raw,
        compressor.stream_writer(raw) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        seen: set[str] = set()
        entries = [_add_image(tar, image, seen) for image in images]
        _add_bytes(tar, "manifest.json", json.dumps(entries).encode())
    os.replace(stage, path)


def _add_image(tar: tarfile.TarFile, image: Image, seen: set[str]) -> dict[str, object]:
    layers: list[str] = []
    for fill in ([_tree_layer] if image.tree else []) + [_file_layer]:
        with tempfile.TemporaryFile() as blob:
            with tarfile.open(fileobj=blob, mode="w", format=tarfile.PAX_FORMAT) as layer:
                fill(layer, image)
            digest = _digest(blob)
            layers.append(digest)
            if digest not in seen:
                seen.add(digest)
                _add_stream(tar, f"{digest}/layer.tar", blob)
    config = json.dumps(_config(image, layers), sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    _add_bytes(tar, config_name, config)
    return {
        "Config": config_name,
        "RepoTags": [image.name],
        "Layers": [f"{digest}/layer.tar" for digest in layers],
    }


def _config(image: Image, layers: list[str]) -> dict[str, object]:
    return {
        "architecture": architecture(),
        "os": "linux",
        "created": EPOCH,
        "config": {
            "Env": list(image.environment),
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": list(image.command) or None,
            "WorkingDir": "/",
            **({"User": image.user} if image.user else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
        "history": [{"created": EPOCH, "created_by": "busbar lab"} for _ in layers],
    }


def _tree_layer(layer: tarfile.TarFile, image: Image) -> None:
    assert image.tree is not None
    for folder, names, files in os.walk(image.tree):
        names.sort()
        for name in sorted(names + files):
            path = Path(folder, name)
            inside = str(path.relative_to(image.tree))
            if image.keep(inside):
                layer.add(path, arcname=inside, recursive=False, filter=_undated)


def _file_layer(layer: tarfile.TarFile, image: Image) -> None:
    for name in _parents(image):
        _add(layer, name, kind=tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
    for name, file in sorted(image.files.items()):
        data = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
        _add(layer, name.lstrip("/"), mode=file.mode, data=data)
    for name, target in sorted(image.links.items()):
        _add(layer, name.lstrip("/"), kind=tarfile.SYMTYPE, mode=0o777, target=target)


def _parents(image: Image) -> list[str]:
    """The folders of the single files; those that the tree has keep the tree's owner and mode."""
    wanted = {name.strip("/") for name in image.folders}
    for name in [*image.files, *image.links]:
        wanted.update(str(parent) for parent in Path(name.lstrip("/")).parents if str(parent) != ".")
    return sorted(name for name in wanted if image.tree is None or not (image.tree / name).exists())


def _undated(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Sockets and devices stay out; the rest loses what differs from build to build."""
    if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        return None
    info.mtime = 0
    info.uname = info.gname = ""
    return info


def _add(
    layer: tarfile.TarFile,
    name: str,
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int,
    data: bytes = b"",
    target: str = "",
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, len(data), target
    layer.addfile(info, io.BytesIO(data))


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add(tar, name, mode=0o644, data=data)


def _add_stream(tar: tarfile.TarFile, name: str, blob: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    info.size = blob.seek(0, os.SEEK_END)
    blob.seek(0)
    tar.addfile(info, blob)


def _digest(blob: IO[bytes]) -> str:
    digest = hashlib.sha256()
    blob.seek(0)
    while block := blob.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()
