"""The Debian tree of the MPI image, and a compiler that fits it: both from packages, kept in the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.build.recipe import key, lines
from lab.hosts.rootfs import SUITE
from lab.steps import LabError, locked, run_logged, step

HERE = Path(__file__).resolve().parent
COMPILER_PACKAGES = ("gcc", "libc6-dev", "libopenmpi-dev", "make")
DEADLINE_SECONDS = 1200
# Name resolution is that of this machine.
_NAMES = ((Path("/etc/resolv.conf"), "/etc/resolv.conf"), (Path("/etc/hosts"), "/etc/hosts"))


def packages() -> list[str]:
    """The packages of the MPI image."""
    return lines(HERE / "nccl" / "packages.txt")


def ensure(work: Path) -> Path:
    """The package tree under `work`, made where it is missing. Raises LabError when debootstrap fails."""
    tree = work / f"tree-{key(SUITE, *packages())}"
    with once(tree) as stage:
        if stage:
            with step("debootstrap of the MPI image"):
                run_logged(
                    [
                        "debootstrap",
                        "--variant=minbase",
                        f"--include={','.join(packages())}",
                        SUITE,
                        stage,
                    ],
                    log_of(tree),
                    deadline=DEADLINE_SECONDS,
                )
    return tree


def compiler(work: Path) -> Path:
    """A layer over the tree with a C compiler and Open MPI's headers.

    They are of the image's own release, so that what is built runs there, whatever this machine is.
    """
    tree = ensure(work)
    layer = work / f"compiler-{key(tree.name, *COMPILER_PACKAGES)}"
    with once(layer) as stage:
        if stage:
            stage.mkdir(parents=True)
            install = f"apt-get install -y -q --no-install-recommends {' '.join(COMPILER_PACKAGES)}"
            with step("a compiler for the MPI image"):
                in_tree(
                    [tree],
                    stage,
                    f"apt-get update -q && {install}",
                    log=log_of(layer),
                    deadline=DEADLINE_SECONDS,
                )
    return layer


def in_tree(
    layers: Sequence[Path],
    upper: Path,
    script: str,
    *,
    log: Path,
    binds: Sequence[tuple[Path, str]] = (),
    deadline: float = 300,
) -> None:
    """Run a shell script in `overlay`, its output in `log`. Raises LabError."""
    with overlay(layers, upper, binds) as enter:
        run_logged([*enter, script], log, deadline=deadline)


@contextmanager
def overlay(
    layers: Sequence[Path], upper: Path, binds: Sequence[tuple[Path, str]] = ()
) -> Iterator[tuple[str, ...]]:
    """The start of a command that runs a shell script in the overlay of `layers` (lowest first).

    Writes go to `upper`. `binds`: folder or file of this machine, and its place inside. The mounts are in a
    mount namespace of the command and end with it.
    """
    scratch = upper.with_name(upper.name + ".overlay")
    root, work = scratch / "root", scratch / "work"
    for folder in (root, work):
        folder.mkdir(parents=True, exist_ok=True)
    lower = ":".join(str(layer) for layer in reversed(layers))
    mounts = [
        f"mount -t overlay overlay -o 'lowerdir={lower},upperdir={upper},workdir={work}' '{root}'",
        f"mount -t proc proc '{root}/proc'",
        f"mount --rbind /dev '{root}/dev'",
        f"mount --rbind /sys '{root}/sys'",
    ]
    for source, place in [*_NAMES, *binds]:
        target = f"'{root}{place}'"
        mounts.append(f"mkdir -p {target}" if source.is_dir() else f"[ -e {target} ] || : > {target}")
        mounts.append(f"mount --bind '{source}' {target}")
    enter = f"exec chroot '{root}' env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -eu -c \"$1\""
    body = "\n".join(["set -eu", *mounts, enter])
    try:
        yield ("unshare", "--mount", "--propagation", "private", "sh", "-c", body, "sh")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def once(result: Path) -> Iterator[Path | None]:
    """A folder to fill, which becomes `result` when the block ends well; None where `result` is there."""
    if result.is_dir():
        yield None
        return
    with locked(result.parent / "locks" / result.name):
        if result.is_dir():
            yield None
            return
        stage = result.with_name(result.name + ".new")
        shutil.rmtree(stage, ignore_errors=True)  # left by an interrupted run
        if stage.exists():
            raise LabError(f"{stage} exists and cannot be removed: check `findmnt` for a mount in it")
        yield stage
        os.replace(stage, result)


def log_of(result: Path) -> Path:
    """The log of what fills `result`."""
    return result.parent / "logs" / f"{result.name}.log"
