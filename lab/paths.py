"""Paths of the lab: run state in the checkout; builds and downloads in the cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lab.topology import PROJECT

LAB = Path(__file__).resolve().parent
RUN = PROJECT / ".lab"
HOSTS = RUN / "hosts"
LOGS = RUN / "logs"
ARTIFACTS = RUN / "artifacts"
SSH_KEY = RUN / "ssh" / "id_ed25519"
KNOWN_HOSTS = RUN / "ssh" / "known_hosts"


def cache() -> Path:
    """The folder for what is built or downloaded once: $BUSBAR_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("BUSBAR_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "busbar"


def tools() -> Path:
    """Executables that the lab built from Go modules."""
    return cache() / "programs"


def images() -> Path:
    """Image archives for the hosts' containerd."""
    return cache() / "images"


def link_to(target: Path, link: Path) -> None:
    """Make `link` a symlink to `target`, in one step, so that another process always finds one.

    A link that is right is left alone.
    """
    if link.is_symlink() and link.readlink() == target:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".link-", dir=link.parent) as folder:
        fresh = Path(folder) / link.name
        fresh.symlink_to(target)
        fresh.replace(link)
