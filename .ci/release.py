"""Makes the files of a release in dist/: sdist, wheel, SBOM, notes, checksums, a signature where asked for.

`make release [KEY=~/.ssh/id_ed25519]`. Nothing is published; the tag is the owner's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
NAMESPACE = "release@busbar"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)((?:.|\n)*?)(?=^\S|\Z)", re.MULTILINE)


def main() -> None:
    """Make everything; ends with a sentence where something is missing."""
    version, commit = _version(), _git("rev-parse", "HEAD")
    if _git("status", "--porcelain"):
        sys.exit("error: the checkout has changes. Fix: commit them, or release from a clean clone")
    os.environ["SOURCE_DATE_EPOCH"] = _git("log", "-1", "--format=%ct")
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version)
    DIST.mkdir(exist_ok=True)
    for file in DIST.iterdir():
        file.unlink()
    built = build(DIST)
    with tempfile.TemporaryDirectory() as folder:
        again = {path.name: path.read_bytes() for path in build(Path(folder))}
    if other := [path.name for path in built if path.read_bytes() != again.get(path.name)]:
        sys.exit(f"error: two builds of {', '.join(other)} differ. Fix: find what depends on time or place")
    sbom = json.dumps(bill(version, commit, (ROOT / "requirements.txt").read_text()), indent=1)
    (DIST / f"busbar_cluster-{version}.cdx.json").write_text(sbom + "\n")
    (DIST / "RELEASE_NOTES.md").write_text(notes)
    sums = DIST / "SHA256SUMS"
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(DIST.iterdir())))
    if key := os.environ.get("KEY"):
        sign = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(Path(key).expanduser()), "-n", NAMESPACE]
        signature = subprocess.run(sign, input=sums.read_bytes(), stdout=subprocess.PIPE, check=True).stdout
        (DIST / "SHA256SUMS.sig").write_bytes(signature)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  dist/{path.name}")
    print(f"busbar {version}, commit {commit[:12]}: built twice with the same bytes")


def build(folder: Path) -> list[Path]:
    """The sdist and the wheel, in a folder."""
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return sorted(path for path in folder.iterdir() if path.name.startswith("busbar_cluster-"))


def notes_of(changelog: str, version: str) -> str:
    """The section of a version. Ends with a sentence without one."""
    found = re.search(
        rf"^## {re.escape(version)}(?!\S).*?\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE
    )
    if not found:
        sys.exit(f"error: CHANGELOG.md has no section {version}. Fix: write it")
    return f"# busbar {version}\n\n{found[1].strip()}\n"


def bill(version: str, commit: str, requirements: str) -> dict[str, Any]:
    """Return the pinned packages as a CycloneDX 1.6 document: a component per package, with file hashes."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'busbar-cluster@{version}+{commit}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "busbar-cluster",
                "name": "busbar-cluster",
                "version": version,
                "purl": f"pkg:pypi/busbar-cluster@{version}",
            },
            "properties": [{"name": "busbar:commit", "value": commit}],
        },
        "components": [*_components(requirements)],
    }


def _components(requirements: str) -> Iterator[dict[str, Any]]:
    for name, version, rest in _PIN.findall(requirements):
        # A package has a file per platform, any of which may be installed.
        files = re.findall(r"sha256:([0-9a-f]{64})", rest)
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{version}/",
                    "hashes": [{"alg": "SHA-256", "content": each} for each in files],
                }
            ],
        }


def _version() -> str:
    text = (ROOT / "busbar" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found, "busbar/__init__.py has the version"
    return found[1]


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
