"""The environment in which the Pulumi engine runs against the lab."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from lab import offline
from lab.build import official
from lab.paths import RUN, link_to, tools

BACKEND = RUN / "pulumi"
REPLACEMENT_PLUGINS = RUN / "plugins"
PASSPHRASE = "busbar-lab"  # the lab's state holds no real secret


def pulumi() -> Path | None:
    """The Pulumi CLI that the lab uses: on PATH, else the official download, else the lab's own build."""
    if found := shutil.which("pulumi"):
        return Path(found)
    for folder in (official.cached_pulumi(), tools()):
        if folder and (folder / "pulumi").exists():
            return folder / "pulumi"
    return None


def environment(folder: Path | None = None) -> dict[str, str]:
    """The variables to set; PATH is the whole new one. Also makes the folders that they name.

    `folder`: the place of state and plugins, by default the lab's, which `python -m lab down` removes.
    """
    plugins, backend = (folder / "plugins", folder / "state") if folder else (REPLACEMENT_PLUGINS, BACKEND)
    backend.mkdir(parents=True, exist_ok=True)
    link_plugins(plugins)
    engine = pulumi()
    cli = [engine.parent] if engine else []
    folders = [plugins, *cli, tools(), Path(sys.executable).parent]
    known = os.environ.get("PATH", "").split(os.pathsep)
    front = [str(folder) for folder in dict.fromkeys(folders) if str(folder) not in known]
    return {
        "PATH": os.pathsep.join([*front, *known]),
        "PULUMI_BACKEND_URL": f"file://{backend}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "BUSBAR_PYTHON": sys.executable,
    }


def link_plugins(folder: Path | None = None) -> list[str]:
    """Link the lab's plugins into the engine's PATH where no official one is installed; returns the names."""
    folder = folder or REPLACEMENT_PLUGINS
    folder.mkdir(parents=True, exist_ok=True)
    names = offline.missing_plugins(folder)
    for name in official.PLUGINS:
        link = folder / f"pulumi-resource-{name}"
        if name in names:
            link_to(offline.replacement_plugin(name), link)
        else:
            link.unlink(missing_ok=True)
    return names


def replaced_plugins() -> list[str]:
    """Provider plugins that the lab replaces, because no official one is installed."""
    return offline.missing_plugins(REPLACEMENT_PLUGINS)
