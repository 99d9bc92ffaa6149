"""Extracts a program's lines from the records of log collectors: JSON, logfmt, lists of strings.

{"log":"# nThread 1 ...\\n","stream":"stdout","time":"..."}       docker, also behind a prefix
{"jsonPayload":{"message":"# nThread 1 ..."},"timestamp":"..."}   Google Cloud
{"labels":{"pod":"x"},"line":"# nThread 1 ..."}                   logcli
time=... level=info msg="# nThread 1 ..."                         logfmt
        "# nThread 1 ...",                                        stdout_lines of Ansible
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# keys whose string is the line; the outermost object comes first, then this order
KEYS = (
    "log", "message", "msg", "textpayload", "line", "text", "body", "content", "_raw", "@message", "original",
    "event", "payload", "data", "stdout", "stderr",
)  # fmt: skip
# keys under which one word or number says how something ended
STATE = re.compile(
    r"(?i)(?:^|[._])(?:reason|status|phase|exit_?code|error|exception)(?:\.(?:type|code|class))?$"
)
NUMBER = r"(?:[-+]?\d[\d.]*(?:e[-+]?\d+)?%?|N/A|-?nan|-?inf)"
# the beginning of a line of nccl-tests or NCCL: a comment, a row or the rest of one, a message
PROGRAM = (
    r"#|\d+\s+\d+\s+[a-z]|[\w.\-]+:\d+:\d+ \[|NCCL (?:version|INFO|WARN)"
    rf"|{NUMBER}(?:\s+{NUMBER}){{3,17}}\s*$"
)
BEGINS = re.compile(rf"\s*(?:{PROGRAM})")
# "# nThread 1 ...",        or "msg": "# nThread 1 ..."
STRING = re.compile(r'(?:"(?P<key>[\w.@]{1,80})"\s*:\s*)?"(?P<text>(?:[^"\\]|\\.)*)"\s*,?\s*')
SINGLE = re.compile(r"'(?P<text>(?:[^']|'')*)'\s*,?\s*")
FIELD = re.compile(r'(?:^|\s)(?P<key>[\w.@]{1,80})="(?P<text>(?:[^"\\]|\\.)*)"')
LOGFMT = re.compile(r"[\w.@/\-]{1,80}=\S")
# text in a record that would have been read
READABLE = re.compile(r"NCCL (?:INFO|WARN|version)|# |\d +\d+ +[a-z]", re.ASCII)
RECORD = re.compile(r"""\{\s*["']""")
# a field of CSV in which a line of the program begins
CSV = re.compile(
    r'[^\s,;](?:[,;]"?|\t")(?:# nThread |#\s+Rank |\d+\s+\d+\s+[a-z]\w+\s|[\w.\-]+:\d+:\d+ \[-?\d*\] NCCL )'
)


def unwrap(text: str) -> list[str] | None:
    """The lines in the record TEXT; [TEXT] if it is not a record, None if it is an unreadable one."""
    if "{" in text and (record := RECORD.search(text)) is not None:
        return _object(text, record.start())
    if text[:1] == '"' and (match := STRING.fullmatch(text)) is not None:
        known = match["key"] is None or match["key"].lower() in KEYS
        return _unescaped(match["text"]) if known else []
    if text[:1] == "'" and (match := SINGLE.fullmatch(text)) is not None:
        return [match["text"].replace("''", "'")]
    if "=" in text and LOGFMT.match(text) is not None:
        fields = {m["key"].lower(): m["text"] for m in FIELD.finditer(text)}
        found = next((fields[key] for key in KEYS if key in fields), None)
        return [text] if found is None else _unescaped(found)
    return None if is_csv(text) else [text]


def is_csv(text: str) -> bool:
    """Whether a line of the program stands in a field of TEXT; CSV is not read."""
    if text.startswith('"') and BEGINS.match(text, 1) is not None:
        return '",' in text.rstrip(",")
    return BEGINS.match(text) is None and CSV.search(text) is not None


def _object(text: str, at: int) -> list[str] | None:
    """The lines of a JSON object at AT, possibly after a collector's prefix."""
    if BEGINS.search(text[:at]) is not None:
        return [text]  # a line of the program that has braces
    try:
        value = json.loads(text[at:])
    except (ValueError, RecursionError):  # the latter: thousands of nested brackets
        return None if READABLE.search(text, at) is not None else [text]
    lines = list(_lines(value))
    if lines:
        lines += _others(value, lines)
    return lines or (None if READABLE.search(text, at) is not None else [text])


def _lines(value: Any) -> Iterator[str]:
    """Lines of the outermost strings under a key of KEYS; a list has those of each of its objects."""
    level = [value]
    for _ in range(8):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                named = {str(k).lower(): v for k, v in each.items()}
                found = next((named[key] for key in KEYS if isinstance(named.get(key), str)), None)
                if found is not None:
                    yield from found.splitlines()
                else:
                    below += each.values()
            elif isinstance(each, list):
                below += each
        level = below


def _others(value: Any, lines: list[str]) -> Iterator[str]:
    """What a record says besides its LINES: sentences, and words under a key such as reason or exit_code."""
    said = [line.strip() for line in lines if line.strip()]
    level = [("", value)]
    for _ in range(8):
        below: list[tuple[str, Any]] = []
        for key, each in level:
            if isinstance(each, dict):
                below += ((f"{key}.{k}", v) for k, v in each.items())
            elif isinstance(each, list):
                below += ((key, v) for v in each)
            elif isinstance(each, str) and " " in each.strip():
                if not any(each.strip() in line or line in each for line in said):
                    yield from each.splitlines()
            elif STATE.search(key) is not None and isinstance(each, str | int) and str(each).strip():
                yield f"{key.rpartition('.')[2].replace('_', ' ')}: {each}"
        level = below


def _unescaped(text: str) -> list[str] | None:
    try:
        return str(json.loads(f'"{text}"')).splitlines()
    except ValueError:
        return None
