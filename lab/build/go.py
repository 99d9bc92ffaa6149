"""`go build` of one tool, repeated only when its sources have changed."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.paths import LAB, cache, tools
from lab.steps import LabError, locked, run_logged, step

DEADLINE_SECONDS = 2400
MODULE = LAB / "go"
"""One module for all programs that can share one version of every library."""
_SOURCES = (".go", ".mod", ".sum", ".yaml", ".json", ".tmpl", ".s", ".c", ".h")
# The linker drops DWARF, so the compiler need not write it.
FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false")
_LDFLAGS = "-s -w"
_REPLACED = re.compile(r"=> (\.\.?/\S+)$", re.MULTILINE)
_MEMORY_MIB = 3072


@dataclass(frozen=True)
class Tool:
    """One executable of the cache's folder of programs."""

    name: str
    package: str
    module: Path = MODULE  # the folder with the go.mod that pins everything
    ldflags: str = ""  # besides those of every tool
    tags: tuple[str, ...] = ()
    sources: Callable[[Path], Path] | None = None
    """Fills an empty folder with sources that replace modules; returns the go.mod with the replacements."""

    @property
    def output(self) -> Path:
        """The executable."""
        return tools() / self.name

    def key(self) -> str:
        """A hash of the inputs of the build, without the compiler's version."""
        digest = hashlib.sha256("\0".join((self.package, *self.flags())).encode())
        if self.sources:
            digest.update(Path(inspect.getfile(self.sources)).read_bytes())
        for file in sorted(_sources(self.module)):
            digest.update(os.path.relpath(file, self.module).encode() + b"\0")
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def flags(self) -> list[str]:
        """The flags of `go build` that change the executable."""
        tags = ["-tags", ",".join(self.tags)] if self.tags else []
        return [*FLAGS, "-ldflags", f"{_LDFLAGS} {self.ldflags}".strip(), *tags]


def _sources(module: Path) -> Iterator[Path]:
    """The files that a module's programs are built from.

    Of other modules of the lab they are only those that its go.mod takes in place of others.
    """
    replaced = {(module / path).resolve() for path in _REPLACED.findall((module / "go.mod").read_text())}
    for folder in (module, *replaced):
        nested = {file.parent for file in folder.rglob("go.mod")} - {folder}
        for path in folder.rglob("*"):
            if (
                path.suffix in _SOURCES
                and not path.name.endswith("_test.go")
                and nested.isdisjoint(path.parents)
            ):
                yield path


def up_to_date(tool: Tool) -> bool:
    """True when the executable was built from exactly the present sources."""
    stamp = _stamp(tool)
    return tool.output.exists() and stamp.exists() and stamp.read_text() == tool.key()


def build(tool: Tool) -> None:
    """Build the tool if it is not up to date; raises LabError with the compiler's last lines."""
    if up_to_date(tool):
        return
    with locked(cache() / "locks" / tool.name):
        if up_to_date(tool):
            return
        key = tool.key()
        with step(f"build {tool.name} from its Go modules (once)"):
            _go_build(tool)
        stamp = _stamp(tool)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)


def module_folder(module: Path, path: str) -> Path:
    """Where Go keeps the sources of `path`, or of `path@version`; downloads them first.

    Without a version it is the one that `module`'s go.mod requires. `module`'s go.sum has the checksums.
    """
    done = subprocess.run(
        ["go", "mod", "download", "-json", path],
        cwd=module, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"`go mod download {path}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def edit(file: Path, before: str, after: str, times: int = 1) -> None:
    """Change a copied source. Raises LabError where `before` is not in it so many times."""
    text = file.read_text()
    if text.count(before) != times:
        raise LabError(f"{file}: expected {before!r} {times} times. Fix: correct the edits in lab/offline")
    file.write_text(text.replace(before, after))


def with_copies(folder: Path, copies: Mapping[str, Path], required: Sequence[str] = ()) -> Path:
    """Write the lab's go.mod with modules taken from `copies`, and its go.sum, into `folder`; returns it.

    `required`: the modules that the lab's own go.mod does not name.
    """
    lines = [f"require {path} v0.0.0\n" for path in required]
    lines += [f"replace {path} => {copy}\n" for path, copy in copies.items()]
    target = folder / "go.mod"
    target.write_text((MODULE / "go.mod").read_text() + "".join(lines))
    shutil.copyfile(MODULE / "go.sum", folder / "go.sum")
    return target


def environment() -> dict[str, str]:
    """The environment of `go build`: no C, and compilers that do not collect garbage while memory lasts."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    limit = min(_MEMORY_MIB, memory_mib // (os.cpu_count() or 1))
    return {
        **os.environ,
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "CGO_ENABLED": "0",
        "GOGC": "off",
        "GOMEMLIMIT": f"{limit}MiB",
    }


def _go_build(tool: Tool) -> None:
    tools().mkdir(parents=True, exist_ok=True)
    fresh = tools() / f".{tool.name}.new"
    with tempfile.TemporaryDirectory(prefix=f".{tool.name}-", dir=tools()) as folder:
        modfile = [f"-modfile={tool.sources(Path(folder))}"] if tool.sources else []
        # On two cores the boot of the hosts needs one of them.
        run_logged(
            ["nice", "-n", "5", "go", "build", *modfile, *tool.flags(), "-o", fresh, tool.package],
            cache() / "logs" / f"build-{tool.name}.log",
            deadline=DEADLINE_SECONDS,
            cwd=tool.module,
            env=environment(),
        )
    os.replace(fresh, tool.output)


def _stamp(tool: Tool) -> Path:
    return tools() / ".keys" / tool.name
