"""The files that the mirror serves: the K3s binary, image archives, and their checksums."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

from busbar.versions import K3S
from lab import offline
from lab.build import official
from lab.paths import ARTIFACTS, cache, images, link_to
from lab.steps import LabError, log_line

CHECKSUMS = ARTIFACTS / "sha256sum.txt"
VERSION_SECONDS = 30
_VERSION = re.compile(r"k3s version (?P<version>v\S+)")


def k3s_binary() -> Path:
    """The K3s binary for the hosts: $BUSBAR_LAB_K3S, else the official download, else the replacement.

    Raises LabError when BUSBAR_LAB_K3S names no file.
    """
    if chosen := os.environ.get("BUSBAR_LAB_K3S"):
        path = Path(chosen).expanduser().resolve()
        if not path.is_file():
            raise LabError(f"BUSBAR_LAB_K3S={chosen}: no such file; unset it to use the lab's replacement")
        return path
    return official.k3s() or offline.K3S.output


def k3s_version() -> str:
    """What hosts have to ask for: the version that the binary of BUSBAR_LAB_K3S reports, else the default.

    Raises LabError when the binary reports none.
    """
    if not os.environ.get("BUSBAR_LAB_K3S"):
        return K3S
    binary = k3s_binary()
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
        said = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    found = _VERSION.search(said)
    if found is None:
        raise LabError(
            f"BUSBAR_LAB_K3S={binary}: `--version` printed {said.strip()[:200]!r}, expected `k3s version "
            "v...`. Fix: name a K3s for this machine that may be executed"
        )
    return found["version"]


def publish() -> list[Path]:
    """Link everything into the mirror's folder and write the checksums; returns the files served."""
    version = k3s_version()
    if version != K3S:
        log_line(
            f"K3s {version} is served, the default is {K3S}; the hosts get it with: pulumi config set --path "
            f"busbar:cluster.k3s.version {version} --stack dev"
        )
    files = {ARTIFACTS / "k3s" / version / "k3s": k3s_binary()}
    files |= {ARTIFACTS / "images" / path.name: path for path in sorted(images().glob("*.tar*"))}
    for link, target in files.items():
        if not target.is_file():
            raise LabError(f"{target} is missing. Fix: `python -m lab build`")
        link_to(target, link)
    for stale in {*ARTIFACTS.glob("k3s/*/k3s"), *ARTIFACTS.glob("images/*")} - files.keys():
        stale.unlink()
    _write(CHECKSUMS, checksum_lines(list(files)))
    return list(files)


def publish_as(version: str) -> str:
    """Serve the replacement of K3s under another version too, which it then reports; returns its sha256.

    The version takes the place of the default's in the executable, so both have the same length. The next
    `publish` removes it. Raises LabError for a K3s that is not the replacement, and for another length.
    """
    binary = k3s_binary()
    if binary != offline.K3S.output:
        raise LabError(f"{binary} is not the lab's replacement: it cannot report another version")
    if len(version) != len(K3S):
        raise LabError(f"{version!r} is not as long as {K3S!r}, whose place it takes in {binary}")
    target = ARTIFACTS / "k3s" / version / "k3s"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(binary.read_bytes().replace(K3S.encode(), version.encode()))
    return sha256(target)


def publish_previous() -> str:
    """Serve the K3s of the minor release before, offline.PREVIOUS_K3S, too; returns its sha256.

    The next `publish` removes it. Raises LabError where it is not built.
    """
    if not offline.PREVIOUS_K3S_TOOL.output.is_file():
        raise LabError(f"{offline.PREVIOUS_K3S_TOOL.output} is missing. Fix: `python -m lab build --upgrade`")
    target = ARTIFACTS / "k3s" / offline.PREVIOUS_K3S / "k3s"
    link_to(offline.PREVIOUS_K3S_TOOL.output, target)
    return sha256(target)


def checksum_lines(files: list[Path]) -> str:
    """The files' sums in sha256sum's format, by base name, sorted.

    Raises ValueError when two files share a base name: checksums are looked up by it.
    """
    names = [file.name for file in files]
    if len(set(names)) != len(names):
        raise ValueError(f"two artifacts with one name in {sorted(names)}: checksums are looked up by name")
    return "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))


def sha256(file: Path) -> str:
    """The file's SHA-256; cached by path, size and time, since the files are large and rarely change."""
    status = file.stat()
    key = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    memory = cache() / "sums.json"
    try:
        known: dict[str, str] = json.loads(memory.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        known = {}
    if key not in known:
        with file.open("rb") as content:
            known[key] = hashlib.file_digest(content, "sha256").hexdigest()
        _write(memory, json.dumps({old: known[old] for old in list(known)[-50:]}, indent=1))
    return known[key]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.write_text(text)
    os.replace(fresh, path)
