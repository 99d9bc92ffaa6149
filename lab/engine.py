"""The environment in which the Pulumi engine runs against the lab."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from lab import official
from lab.paths import LAB, RUN, tools

BACKEND = RUN / "pulumi"
STAND_IN_PLUGINS = RUN / "plugins"
PASSPHRASE = "busbar-lab"  # nothing in the lab's state is worth hiding


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
    folders = [STAND_IN_PLUGINS, *([engine.parent] if engine else []), tools(), Path(sys.executable).parent]
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
    """Put the lab's provider plugins on the engine's PATH where no official one is; returns their names."""
    STAND_IN_PLUGINS.mkdir(parents=True, exist_ok=True)
    names = stand_in_plugins()
    for name in official.PLUGINS:
        link = STAND_IN_PLUGINS / f"pulumi-resource-{name}"
        link.unlink(missing_ok=True)
        if name in names:
            link.symlink_to(LAB / "plugins" / "bin" / link.name)
    return names


def stand_in_plugins() -> list[str]:
    """Provider plugins for which the lab's stand-in serves."""
    own = str(STAND_IN_PLUGINS)
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != own)
    elsewhere = {**os.environ, "PATH": path}
    return [name for name in official.PLUGINS if official.plugin(name, elsewhere) is None]
