"""Gathers the support bundle of a stack: versions, findings, facts, names of resources, logs, verdicts.

Host names and addresses stay, because errors name them; secrets do not (busbar.support.redact).
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from busbar.support.redact import SECRET, Redactor
from busbar.zstd import ZstdError, ZstdFile

# Only these files of .busbar/STACK are copied; everything else, above all the kubeconfig, is left out.
TEXTS = (".json", ".jsonl", ".log", ".txt")
COMPRESSED = ".log.zst"
# Number of runs of `busbar measure` per pool that are copied; all would be a hundred logs.
NEWEST_RUNS = 3
# The fields of a resource in the state that are copied.
_KEPT = ("urn", "created", "modified", "delete", "pendingReplacement", "initErrors")
ABOUT = f"""Support bundle of a busbar stack.

versions.json     of busbar, Python, Pulumi and its packages, and of the system that ran them
preflight.json    findings and facts of all hosts
engine.json       names of the resources in the state, and interrupted steps; no inputs, no outputs
files/            logs, verdicts and outputs that .busbar/STACK held

The stack file is not in it. Secrets were replaced by {SECRET}. Names and addresses of hosts were not: look
through the files before you send them.
"""


class Bundle:
    """A tar.gz that only its owner can read; every text passes through the redactor."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self._redactor = redactor
        self._prefix = path.name.removesuffix(".tar.gz")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.TarFile.gzopen(path.name, "w", fileobj=self._file)

    def __enter__(self) -> Bundle:
        self._add("README.txt", ABOUT.encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._file.close()

    def add_json(self, name: str, value: Any) -> None:
        self._add(name, json.dumps(self._redactor.value(value), indent=2, sort_keys=True).encode() + b"\n")

    def add_files(self, folder: Path) -> None:
        """Add the logs, verdicts and outputs below `folder`; files.json lists the files that are left out."""
        left_out: list[dict[str, Any]] = []
        old = {run for runs in folder.glob("*/runs") for run in sorted(runs.iterdir())[:-NEWEST_RUNS]}
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file() or not old.isdisjoint(path.parents):
                continue
            try:
                content = self._content(path)
            except (OSError, ValueError, EOFError, ZstdError) as error:
                left_out.append({"name": name, "bytes": path.stat().st_size, "reason": str(error)})
            else:
                self._add(f"files/{name}", content)
        self.add_json("files.json", {"left_out": left_out})

    def _content(self, path: Path) -> bytes:
        """The file without secrets. Raises ValueError for a kind of file that is left out, and OSError."""
        if path.name.endswith(COMPRESSED):
            packed = io.BytesIO()
            with path.open("rb") as file, ZstdFile(file) as reader, ZstdFile(packed, "w") as writer:
                lines = io.TextIOWrapper(reader, encoding="utf-8", errors="replace")
                for line in self._redactor.lines(lines):
                    writer.write(line.encode())
            return packed.getvalue()
        if path.suffix not in TEXTS:
            raise ValueError("not a log, a verdict or outputs")
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".json":
            try:
                return json.dumps(self._redactor.value(json.loads(text)), indent=2).encode() + b"\n"
            except ValueError:
                pass  # a file that is not JSON after all is a text
        return "".join(self._redactor.lines(text.splitlines(keepends=True))).encode()

    def _add(self, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._prefix}/{name}")
        entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(content))


def engine_state(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Names, types and times of the resources in an exported state, and its pending operations."""
    content = deployment.get("deployment") or {}
    return {
        "manifest": {key: content.get("manifest", {}).get(key) for key in ("time", "version")},
        "resources": [
            {key: each[key] for key in _KEPT if key in each} for each in content.get("resources") or ()
        ],
        "pending": [
            {"type": each.get("type"), "urn": (each.get("resource") or {}).get("urn")}
            for each in content.get("pending_operations") or ()
        ],
    }
