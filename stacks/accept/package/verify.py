"""Verifies a document: its files, its signatures, and all evidence judged again by this release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbar import __version__
from busbar.exits import DONE, FAILED, NO_VERDICT, Failed
from busbar.release import commit
from busbar.text import listed
from stacks.accept.package import document
from stacks.accept.package.criteria import offered
from stacks.accept.package.document import ACCEPTANCE, CRITERIA, REPORT, SIGNATURES, STATEMENT, SUMS
from stacks.accept.package.evidence import (
    FOLDER,
    MAX_UNPACKED,
    RUN,
    Evidence,
    Untrusted,
    files_of,
    read_json,
    sha256,
    unpacked_bytes,
)
from stacks.accept.package.kinds import verdict
from stacks.accept.package.signatures import MAX_BYTES, MAX_SIGNATURES, NAME, Signature, check

_SUM = re.compile(r"([0-9a-f]{64})  (\S+)")
MAX_SUMS = 4 << 20
# The fields of a row that another release may find otherwise.
JUDGED = ("result", "reason", "value", "nodes")


@dataclass
class Verified:
    """The result of a verification.

    `differences`: rows that this release judges otherwise, as sentences. `newer_rows`: default rows of this
    release that the one of the run did not have; they decide nothing.
    """

    document: Mapping[str, Any]
    again: Mapping[str, Any]
    differences: list[str]
    newer_rows: list[str]
    same_release: bool = False
    signatures: list[Signature] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0: accepted, signed by a known signer, the same when judged again; 1: refused; 2: not decided."""
        verdicts = {self.document["verdict"], self.again["verdict"]}
        is_forged = self.same_release and self.differences
        if "refused" in verdicts or is_forged or any(each.state == "bad" for each in self.signatures):
            return FAILED
        is_signed = any(each.state == "good" for each in self.signatures)
        return DONE if verdicts == {"accepted"} and is_signed and not self.differences else NO_VERDICT


def verify(folder: Path, signers: Path | None) -> Verified:
    """Verify the document in FOLDER. Raises Untrusted, in one sentence, for a folder that is refused."""
    files = files_of(folder)
    signatures = check_files(files)
    stored = _object(files[ACCEPTANCE])
    if (schema := stored.get("schema")) != document.SCHEMA:
        raise Untrusted(
            f"{ACCEPTANCE} has the schema {schema!r}, expected {document.SCHEMA}: a document of a busbar "
            "before 1.0 is not read. Fix: accept the cluster again"
        )
    if stored.get("files") != document.hashes_of(files):
        raise Untrusted(f"{ACCEPTANCE}: `files` is not that of the evidence")
    try:
        again, texts = document.contents(folder)
    except Failed as error:
        raise Untrusted(str(error)) from None
    _compare(stored, again, _object(files[STATEMENT]))
    begun = Evidence(folder).begun
    newer = [each for each in offered(begun.site) if each not in begun.rows]
    found = Verified(stored, again, list(_differences(stored["rows"], again["rows"])), newer)
    found.same_release = stored["busbar"] == {**again["busbar"], "version": __version__, "commit": commit()}
    if found.same_release and newer:
        raise Untrusted(f"{FOLDER}/{RUN} hides rows of its release: {listed(newer)}")
    for path, text in texts.items() if found.same_release and not found.differences else ():
        if files[path].read_text(encoding="utf-8", errors="replace") != text:
            raise Untrusted(f"{path} is not what its evidence gives")
    found.signatures = check(folder, signatures, signers)
    return found


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise Untrusted(f"{path.name} is not a JSON object")
    return found


def check_files(files: Mapping[str, Path]) -> list[str]:
    """Compare the files with SHA256SUMS; the names of the signatures. Raises Untrusted."""
    signatures = [path for path in files if path.startswith(f"{SIGNATURES}/")]
    for path in signatures:
        if not NAME.fullmatch(path) or files[path].stat().st_size > MAX_BYTES:
            raise Untrusted(f"{path!r} is not a signature that busbar writes")
    if len(signatures) > MAX_SIGNATURES:
        raise Untrusted(f"there are more than {MAX_SIGNATURES} signatures")
    wanted = _sums(files)
    there = {path for path in files if document.is_listed(path)}
    if missing := sorted(wanted.keys() - there):
        raise Untrusted(f"{missing[0]!r} is missing")
    if more := sorted(there - wanted.keys()):
        raise Untrusted(f"{more[0]!r} is not listed in {SUMS}")
    for path, digest in wanted.items():
        if sha256(files[path]) != digest:
            raise Untrusted(f"{path!r} has another sha256 than in {SUMS}: it was changed")
    own = {path for path in there if not path.startswith(f"{FOLDER}/")}
    if other := sorted(own ^ {ACCEPTANCE, CRITERIA, REPORT, STATEMENT}):
        what = "is no file of an acceptance" if other[0] in own else "is missing"
        raise Untrusted(f"{other[0]!r} {what}")
    unpacked = 0
    for path in sorted(there):
        unpacked += _size(path, files[path])
        if unpacked > MAX_UNPACKED:
            raise Untrusted(f"the evidence unpacks to more than {MAX_UNPACKED >> 20} MiB")
    return signatures


def _size(path: str, file: Path) -> int:
    try:
        return unpacked_bytes(file) if path.endswith(".zst") else file.stat().st_size
    except Untrusted:
        raise
    except Exception as error:  # ZstdError, EOFError and what else damaged data give
        raise Untrusted(f"{path!r} cannot be unpacked: {type(error).__name__}") from None


def _sums(files: Mapping[str, Path]) -> dict[str, str]:
    if SUMS not in files or files[SUMS].stat().st_size > MAX_SUMS:
        raise Untrusted(f"{SUMS} is missing or too large: this is not the document of an acceptance")
    found: dict[str, str] = {}
    for line in files[SUMS].read_text(encoding="utf-8", errors="replace").splitlines():
        entry = _SUM.fullmatch(line)
        if entry is None or entry[2] in found:
            raise Untrusted(f"{SUMS} has the line {line[:80]!r}, expected each file once with its sha256")
        found[entry[2]] = entry[1]
    return found


def _compare(stored: dict[str, Any], again: dict[str, Any], statement: dict[str, Any]) -> None:
    """Compare the document with its evidence. Only rows and judge may be others. Raises Untrusted."""
    try:
        kept = [{key: row[key] for key in JUDGED} for row in stored["rows"]]
        rows = [now | before for now, before in zip(again["rows"], kept, strict=True)]
        busbar = {**again["busbar"], "judge": stored["busbar"]["judge"]}
    except (KeyError, TypeError, ValueError):
        raise Untrusted(f"{ACCEPTANCE}: its rows are not those of the criteria") from None
    expected = {**again, "rows": rows, "busbar": busbar, "verdict": verdict(rows)}
    if wrong := [key for key in expected.keys() | stored.keys() if stored.get(key) != expected.get(key)]:
        raise Untrusted(f"{ACCEPTANCE}: `{min(wrong)[:80]}` is not that of the evidence")
    if statement != document.statement(expected):
        raise Untrusted(f"{STATEMENT} has another subject, result or criteria than {ACCEPTANCE}")


def _differences(stored: list[Any], again: list[Any]) -> Iterator[str]:
    for before, now in zip(stored, again, strict=True):
        if before["result"] != now["result"]:
            was, is_ = (f"{each['result']} ({each.get('reason')})" for each in (before, now))
            yield f"{now['id']}: was {was}, is {is_}"
