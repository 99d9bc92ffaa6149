"""A folder of Debian packages as a repository that the hosts' apt reads."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path


def index(folder: Path, source: str) -> str:
    """Write the list of the folder's packages; the line of sources.list for hosts that see it as `source`.

    Raises subprocess.CalledProcessError where dpkg-deb fails.
    """
    (folder / "Packages").write_text("\n".join(_entry(archive) for archive in sorted(folder.glob("*.deb"))))
    return f"deb [trusted=yes] file:{source} ./"


def _entry(archive: Path) -> str:
    control = subprocess.run(
        ["dpkg-deb", "--field", archive], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    content = archive.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return f"{control}Filename: ./{archive.name}\nSize: {len(content)}\nSHA256: {digest}\n"
