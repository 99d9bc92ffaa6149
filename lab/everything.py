"""Builds or downloads everything that `up` needs: the Pulumi CLI, tools from their Go modules, images."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lab import offline
from lab.build import official
from lab.build.go import build
from lab.build.tools import TOOLS
from lab.engine.environment import pulumi, replaced_plugins
from lab.images import build_all, programs
from lab.offline.kubernetes import PROVIDER
from lab.paths import cache, images, tools


def everything() -> None:
    """Make every tool and image that is missing or out of date; a no-op of well under a second otherwise.

    Raises LabError with the end of the build's output when one fails.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="images") as pool:
        # Their packages come from the network, and compilers of C use one core.
        packages = pool.submit(programs.ensure, images() / "work")
        for tool in (*offline.missing_tools(), *TOOLS):
            build(tool)
        engine()
        if "kubernetes" in replaced_plugins():
            build(PROVIDER)
        packages.result()
    build_all(cache(), tools())


def engine() -> None:
    """The part of `everything` that a stack without K3s needs: the engine and its plugins."""
    if offline.engine_is_replaced():
        for tool in offline.ENGINE:
            build(tool)
        offline.python_host_scripts()
    if command := pulumi():
        official.install_plugins(command)


@contextmanager
def in_background() -> Iterator[None]:
    """Run `everything` in a thread during the `with` block, whose end waits for it and raises its error."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="build") as pool:
        builds = pool.submit(everything)
        yield
        builds.result()
