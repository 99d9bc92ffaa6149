"""Gathers the support bundle of a stack: versions, findings, facts, names of resources, logs, verdicts.

Host names and addresses stay, because errors name them; secrets do not (busbar.support.bundle).
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from busbar.zstd import ZstdError, ZstdFile

SECRET = "[secret]"
# Shorter values would be replaced inside ordinary words.
MIN_LENGTH = 4

_WORDS = (
    r"passwords?|passwd|passphrase|secrets?|tokens?|private[-_]?key|access[-_]?key(?:[-_]?id)?|secret[-_]?key|"
    r"api[-_]?key|credentials?|client-key-data|client-certificate-data|authorization|auth"
)
_SECRET_KEY = re.compile(rf"(?:.*[^a-z])?(?:{_WORDS})", re.IGNORECASE)
# The patterns below are tried only on lines with one of these: a log of millions of lines has few of them.
_HINTS = (
    *("pass", "secret", "token", "key", "credential", "auth", "bearer", "basic"),
    *("://", "k10", "eyj", "-----", "b3blbn"),
)
# A name and its `:` or `=`, and the value that follows.
_NAME = re.compile(r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]+)\\?[\"']?\s*[:=]\s*")
_VALUE = re.compile(r"\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'|[^\s,;}\]]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FORMS = (
    # An HTTP header, a login in a URL, a K3s join token, a JSON web token, a private key (or its first line).
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}", re.IGNORECASE), rf"\1 {SECRET}"),
    (re.compile(r"(://)[^/\s:@\"']+(?::[^/\s@\"']*)?@"), rf"\1{SECRET}@"),
    (re.compile(r"\bK10[0-9a-f]{8,}::[^\s\"']+"), SECRET),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?"), SECRET),
    (re.compile(r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]*"), SECRET),
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        SECRET,
    ),
)
_BEGIN, _END = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    re.compile(r"-----END [A-Z ]*PRIVATE KEY-----"),
)


class Redactor:
    """Replaces secrets by `[secret]`. `known`: values that are secrets wherever they occur, even in part."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        parts = {part for text in known for part in _parts(text) if len(part) >= MIN_LENGTH}
        # The longest first: one secret may contain another.
        self._known = sorted(parts, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without secrets."""
        for known in self._known:
            if known in text:
                text = text.replace(known, SECRET)
        low = text.lower()
        if not any(hint in low for hint in _HINTS):
            return text
        for form, replacement in _FORMS:
            text = form.sub(replacement, text)
        return _without_assignments(text)

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines without secrets; a private key may spread over several."""
        inside = False
        for line in lines:
            if inside or (_BEGIN.search(line) and not _END.search(line)):
                inside = not _END.search(line)
                yield f"{SECRET}\n"
            else:
                yield self.text(line)

    def value(self, value: Any) -> Any:
        """A structured value (JSON, YAML) with every secret in it replaced."""
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): _hide(item) if is_secret_name(str(key)) else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def _without_assignments(text: str) -> str:
    """The text without values that are assigned to names of secrets."""
    parts, done = [], 0
    for found in _NAME.finditer(text):
        if found.start() >= done and is_secret_name(found[1]):
            value = _VALUE.match(text, found.end())
            if value is not None:
                parts += [text[done : found.end()], SECRET]
                done = value.end()
    return "".join([*parts, text[done:]])


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: `password`, `agent-token`, `s3SecretKey`."""
    return _SECRET_KEY.fullmatch(_CAMEL.sub("_", name)) is not None


def kubeconfig_secrets(text: str) -> Iterator[str]:
    """All values of the users in a kubeconfig; empty if it cannot be read."""
    try:
        content = yaml.safe_load(text)
        users = [entry["user"] for entry in content["users"]]
    except (yaml.YAMLError, KeyError, TypeError):
        return
    for user in users:
        for value in user.values() if isinstance(user, Mapping) else ():
            if isinstance(value, str):
                yield value
                try:
                    yield base64.b64decode(value, validate=True).decode()
                except (binascii.Error, UnicodeDecodeError):
                    continue


def _parts(text: str) -> Iterator[str]:
    """The parts of a secret: itself, its lines, and its form in JSON, without the BEGIN and END of a PEM."""
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) > 1:
        yield text.strip().replace("\n", "\\n")
    yield from (line for line in lines if not line.startswith("-----"))


def _hide(value: Any) -> Any:
    """Hide a value, but not whether it is set: null, true, false and empty values stay."""
    return value if value is None or isinstance(value, bool) or value in ("", [], {}) else SECRET


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
