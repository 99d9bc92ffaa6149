"""Builds or downloads everything that `up` needs: the Pulumi CLI, tools from their Go modules, images."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from lab.build import official
from lab.build.go import build
from lab.build.tools import K3S_TOOL, TOOLS, is_on_path, python_host_scripts
from lab.engine.environment import pulumi
from lab.images import build_all
from lab.paths import cache, tools


def everything() -> None:
    """Make every tool and image that is missing or out of date; a no-op of well under a second otherwise.

    Raises LabError with the end of the build's output when one fails.
    """
    engine_is_official = pulumi() is not None and pulumi() != tools() / "pulumi"
    engine_is_official = engine_is_official or official.pulumi() is not None
    k3s_is_official = official.k3s_is_given() or official.k3s() is not None
    for tool in TOOLS:
        if (tool.engine and engine_is_official) or (tool.name == K3S_TOOL and k3s_is_official):
            continue
        if not is_on_path(tool):
            build(tool)
    if not engine_is_official:
        python_host_scripts()
    if engine := pulumi():
        official.install_plugins(engine)
    build_all(cache(), tools())


@contextmanager
def in_background() -> Iterator[None]:
    """Run `everything` in a thread during the `with` block, whose end waits for it and raises its error."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="build") as pool:
        builds = pool.submit(everything)
        yield
        builds.result()
