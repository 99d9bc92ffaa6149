"""`go build` of one tool, repeated only when its sources have changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.paths import LAB, cache, tools
from lab.steps import LabError, locked, run_logged, step

DEADLINE_SECONDS = 2400
MODULES = LAB / "go"
_SOURCES = (".go", ".mod", ".sum", ".sh", ".yaml", ".json", ".tmpl", ".s", ".c", ".h")


@dataclass(frozen=True)
class Tool:
    """One executable of the cache's bin folder."""

    name: str
    package: str
    module: Path  # the folder with the go.mod that pins everything
    ldflags: str = "-s -w"
    static: bool = True
    script: tuple[
        str, ...
    ] = ()  # build script of the module instead of `go build`, then its arguments after the output path
    tags: tuple[str, ...] = ()

    @property
    def output(self) -> Path:
        """The executable."""
        return tools() / self.name

    def key(self) -> str:
        """A hash of the inputs of the build, without the compiler's version."""
        digest = hashlib.sha256(
            "\0".join((self.package, self.ldflags, str(self.static), *self.script, *self.tags)).encode()
        )
        sources = (path for path in self.module.rglob("*") if path.suffix in _SOURCES)
        for file in sorted(path for path in sources if not path.name.endswith("_test.go")):
            digest.update(str(file.relative_to(self.module)).encode() + b"\0")
            digest.update(file.read_bytes())
        return digest.hexdigest()


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
    """Where Go keeps the sources of a module that `module`'s go.mod requires; downloads them first."""
    done = subprocess.run(
        ["go", "mod", "download", "-json", path],
        cwd=module, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise LabError(f"`go mod download {path}` failed: {done.stderr.strip() or done.stdout.strip()}")
    listed = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", path],
        cwd=module, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return Path(listed.stdout.strip())


def _go_build(tool: Tool) -> None:
    tools().mkdir(parents=True, exist_ok=True)
    fresh = tools() / f".{tool.name}.new"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
    if tool.static:
        environment["CGO_ENABLED"] = "0"
    command: list[str | Path]
    if tool.script:
        command = [tool.module / tool.script[0], fresh, *tool.script[1:]]
    else:
        tags = ["-tags", ",".join(tool.tags)] if tool.tags else []
        command = ["go", "build", "-trimpath", "-ldflags", tool.ldflags, *tags, "-o", fresh, tool.package]
    # On two cores the boot of the hosts needs one of them.
    run_logged(
        ["nice", "-n", "5", *command],
        cache() / "logs" / f"build-{tool.name}.log",
        deadline=DEADLINE_SECONDS,
        cwd=tool.module,
        env=environment,
    )
    os.replace(fresh, tool.output)


def _stamp(tool: Tool) -> Path:
    return tools() / ".keys" / tool.name
