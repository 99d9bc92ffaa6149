"""Import names of busbar 0.1, which stay for one release with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORMER = {
    "busbar.nccl": "busbar.judge.nccl",
    "busbar.localise": "busbar.fabric.localise",
    "busbar.diagnosis": "busbar.fabric.diagnosis",
    "busbar.measure": "busbar.fabric.measure",
}


class _Alias(Loader):
    """Gives a module that is imported already under another name."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has put that of the former name there


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = ".".join(name.split(".")[:2])
        if package not in FORMER:
            return None
        new = FORMER[package] + name.removeprefix(package)
        warnings.warn(f"{name} is now {new}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Alias(import_module(new)))


def install() -> None:
    """Let `import` find the former names, before it looks into the folders of the new ones."""
    sys.meta_path.insert(0, _Finder())
