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


def environment() -> dict[str, str]:
    """The variables to set; PATH is the whole new one. Also makes the folders that they name."""
    BACKEND.mkdir(parents=True, exist_ok=True)
    link_plugins()
    engine = pulumi()
    cli = [engine.parent] if engine else []
    folders = [REPLACEMENT_PLUGINS, *cli, tools(), Path(sys.executable).parent]
    known = os.environ.get("PATH", "").split(os.pathsep)
    front = [str(folder) for folder in dict.fromkeys(folders) if str(folder) not in known]
    return {
        "PATH": os.pathsep.join([*front, *known]),
        "PULUMI_BACKEND_URL": f"file://{BACKEND}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "BUSBAR_PYTHON": sys.executable,
    }


def link_plugins() -> list[str]:
    """Link the lab's plugins into the engine's PATH where no official one is installed; returns the names."""
    REPLACEMENT_PLUGINS.mkdir(parents=True, exist_ok=True)
    names = replaced_plugins()
    for name in official.PLUGINS:
        link = REPLACEMENT_PLUGINS / f"pulumi-resource-{name}"
        if name in names:
            link_to(offline.replacement_plugin(name), link)
        else:
            link.unlink(missing_ok=True)
    return names


def replaced_plugins() -> list[str]:
    """Provider plugins that the lab replaces, because no official one is installed."""
    return offline.missing_plugins(REPLACEMENT_PLUGINS)
