"""The files that the mirror serves: the K3s binary, image archives, and their checksums."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from busbar.versions import K3S
from lab import offline
from lab.build import official
from lab.paths import ARTIFACTS, cache, images, link_to
from lab.steps import LabError, log_line

CHECKSUMS = ARTIFACTS / "sha256sum.txt"
VERSION_SECONDS = 30
K3S_VARIABLE, NEXT_K3S_VARIABLE = "BUSBAR_LAB_K3S", "BUSBAR_LAB_K3S_NEXT"
_VERSION = re.compile(r"k3s version (?P<version>v\d+\.\d+\.\d+\S*)")
_IMPORTS_DROP_INS = Version("1.35.2")


@dataclass(frozen=True)
class K3sRelease:
    """A K3s for the hosts: the version that the binary reports, and the binary."""

    version: str
    binary: Path


def k3s_binary() -> Path:
    """The K3s binary for the hosts: $BUSBAR_LAB_K3S, else the official download, else the replacement.

    Raises LabError when BUSBAR_LAB_K3S names no file.
    """
    return _named(K3S_VARIABLE) or official.k3s() or offline.K3S.output


def k3s_is_replaced() -> bool:
    """Whether the hosts get the lab's replacement of K3s."""
    return k3s_binary() == offline.K3S.output


def k3s_version() -> str:
    """What hosts have to ask for: the version that the binary of BUSBAR_LAB_K3S reports, else the default.

    Raises LabError when the binary reports none.
    """
    binary = _named(K3S_VARIABLE)
    return _reported(K3S_VARIABLE, binary) if binary else K3S


def next_k3s() -> K3sRelease | None:
    """The K3s of BUSBAR_LAB_K3S_NEXT, which drills upgrade to; None where it is not set.

    Raises LabError when it names no file, or a K3s that the hosts cannot be upgraded to.
    """
    binary = _named(NEXT_K3S_VARIABLE)
    if binary is None:
        return None
    first, version = k3s_version(), _reported(NEXT_K3S_VARIABLE, binary)
    if version == first or _number(version) < _number(first):
        raise LabError(f"{NEXT_K3S_VARIABLE}={binary} is {version}. Fix: name a release after {first}")
    if imports_drop_ins(version) != imports_drop_ins(first):
        raise LabError(
            f"{NEXT_K3S_VARIABLE}={binary} is {version}, the hosts have containerd's template for {first}. "
            f"Fix: name two releases before v{_IMPORTS_DROP_INS}, or two from it on"
        )
    return K3sRelease(version, binary)


def imports_drop_ins(version: str) -> bool:
    """Whether this K3s imports config-v3.toml.d in its base template of containerd's configuration."""
    return _number(version) >= _IMPORTS_DROP_INS


def _number(version: str) -> Version:
    return Version(version.removeprefix("v").partition("+")[0])


def _named(variable: str) -> Path | None:
    if not (chosen := os.environ.get(variable)):
        return None
    path = Path(chosen).expanduser().resolve()
    if not path.is_file():
        raise LabError(f"{variable}={chosen}: no such file; name a K3s, or unset it")
    return path


def _reported(variable: str, binary: Path) -> str:
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
            f"{variable}={binary}: `--version` printed {said.strip()[:200]!r}, expected `k3s version "
            "v...`. Fix: name a K3s for this machine that may be executed"
        )
    return found["version"]


def publish() -> list[Path]:
    """Link everything into the mirror's folder and write the checksums; returns the files served.

    The file of checksums has one K3s, as it goes by names: a stack sets that of the next one in `k3s.sha256`.
    """
    version = k3s_version()
    if version != K3S:
        log_line(
            f"K3s {version} is served, the default is {K3S}; the hosts get it with: pulumi config set --path "
            f"busbar:cluster.k3s.version {version} --stack dev"
        )
    files = {ARTIFACTS / "k3s" / version / "k3s": k3s_binary()}
    files |= {ARTIFACTS / "images" / path.name: path for path in sorted(images().glob("*.tar*"))}
    summed = list(files)
    if later := next_k3s():
        files[ARTIFACTS / "k3s" / later.version / "k3s"] = later.binary
    for link, target in files.items():
        if not target.is_file():
            raise LabError(f"{target} is missing. Fix: `python -m lab build`")
        link_to(target, link)
    for stale in {*ARTIFACTS.glob("k3s/*/k3s"), *ARTIFACTS.glob("images/*")} - files.keys():
        stale.unlink()
    _write(CHECKSUMS, checksum_lines(summed))
    return list(files)


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
