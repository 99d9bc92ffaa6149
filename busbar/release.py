"""Identifies this busbar: the distribution, its version and commit, and the requirements of a site."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from busbar import __version__

DISTRIBUTION = "busbar-cluster"
"""Name of the distribution; `busbar` on PyPI is another project."""
_PACKAGE = Path(__file__).resolve().parent


def commit() -> str:
    """The commit of the build (`-dirty`: with changes), or the one that is checked out; else `unknown`."""
    built = _PACKAGE / "COMMIT"
    if built.is_file():
        return built.read_text().strip()
    if not (_PACKAGE.parent / ".git").exists():
        return "unknown"
    words = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(
            words, cwd=_PACKAGE.parent, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def line() -> str:
    """The output of `busbar --version`."""
    return f"busbar {__version__} (commit {commit()})"


def requirements() -> list[str]:
    """The lines of a requirements.txt that installs this release again, with the packages as they are here.

    The release is named as it was given to pip (a repository, a folder), else by its version; a wheel by its
    name, beside the file. Raises PackageNotFoundError if it is not installed, or not with the extra `stack`.
    """
    found = distribution(DISTRIBUTION)
    pins = {name: f"{name}=={each.version}" for name, each in closure(found, "stack").items()}
    file = wheel()
    own = f"./{file.name}[stack]" if file else f"{DISTRIBUTION}[stack]{_source(found)}"
    return [own, *(pins[name] for name in sorted(pins))]


def wheel() -> Path | None:
    """The wheel that this release was installed from, if it was a file; it may be gone by now."""
    url = urlsplit(_origin(distribution(DISTRIBUTION)).get("url", ""))
    path = Path(unquote(url.path))
    return path if url.scheme == "file" and path.suffix == ".whl" else None


def _origin(found: Distribution) -> dict[str, Any]:
    """Where pip was told to take a distribution from (PEP 610); empty for one of an index."""
    origin: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")
    return origin


def _source(found: Distribution) -> str:
    origin = _origin(found)
    if not origin:
        return f"=={found.version}"
    if vcs := origin.get("vcs_info"):
        return f" @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f" @ {origin['url']}"


def closure(root: Distribution, *extras: str) -> dict[str, Distribution]:
    """All requirements of `root` with its `extras`, by name. Raises PackageNotFoundError."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    open_: list[tuple[Distribution, frozenset[str]]] = [(root, frozenset(extras))]
    while open_:
        current, wanted = open_.pop()
        for text in current.requires or ():
            need = Requirement(text)
            applies = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in {"", *wanted}
            )
            name = canonicalize_name(need.name)
            if applies and (name not in found or need.extras):
                found[name] = distribution(name)
                open_.append((found[name], frozenset(need.extras)))
    return found
