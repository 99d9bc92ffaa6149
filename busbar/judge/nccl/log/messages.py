"""Finds NCCL's messages in a line, and the process that printed each.

    gcn151:1904979:1905031 [0] NCCL INFO Using network IB
    mycl-g2:353236:353423 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion ...
    NCCL INFO NCCL_TOPO_FILE set by environment to /opt/x.xml         (pasted without its process)

The text before `NCCL INFO` or `NCCL WARN` is read backwards, token by token, in the same time for any text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = "NCCL "
WORDS = ("NCCL INFO ", "NCCL WARN ", "NCCL ATTN ", "NCCL ERROR ", "NCCL TRACE ", "NCCL CALL ", "NCCL DIAG ")
# transport/net_ib.cc:2244
WHERE = re.compile(r"\S+:\d+", re.ASCII)
DAY = re.compile(r"\[?\d{4}-\d\d-\d\d", re.ASCII)
TIME = re.compile(r"\d\d:\d\d:\d\d\]?", re.ASCII)
# (ncclIbGetDevices): a function, in front of WARN since 2.30.7; 12.345678: the time of a TRACE
BETWEEN = re.compile(r"\([\w:~<>, ]{1,200}\)|\d+\.\d+", re.ASCII)
GPU = re.compile(r"\[-?\d*\]", re.ASCII)
# host:pid:tid, backwards
PROCESS = re.compile(r"(?:(?P<tid>\d+):)?(?P<pid>\d+):(?P<host>[\w.\-]+)", re.ASCII)
LONGEST = 400  # host, process, time and source file fit into this


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a line: its `start`, where its text begins (`end`), level, host and pid as printed.

    `host_end` is where the host's name ends. Host and pid are None where they were not printed.
    """

    start: int
    end: int
    level: str
    host: str | None = None
    host_end: int = 0
    pid: str | None = None


def find_message(text: str, start: int = 0) -> Message | None:
    """The first message of NCCL at or after START."""
    at = text.find(NAME, start)
    while at >= 0 and not text.startswith(WORDS, at):
        at = text.find(NAME, at + len(NAME))
    if at < 0:
        return None
    end = text.index(" ", at + len(NAME)) + 1
    level = text[at + len(NAME) : end - 1]
    first = max(start, at - LONGEST)
    left = at
    token, before = _token(text, first, left)
    if GPU.fullmatch(token) is None:
        for pattern in (BETWEEN, WHERE, BETWEEN):
            if pattern.fullmatch(token) and not GPU.fullmatch(token):
                left = before
                token, before = _token(text, first, left)
        if TIME.fullmatch(token):
            day, before_day = _token(text, first, before)
            if DAY.fullmatch(day):
                left = before_day
                token, before = _token(text, first, left)
    if GPU.fullmatch(token):
        process, begin = _token(text, first, before)
        match = PROCESS.match(process[::-1])
        if match is not None and (host := match["host"][::-1].lstrip(".-")):
            host_end = begin + len(process) - match.start("host")
            return Message(host_end - len(host), end, level, host, host_end, match["pid"][::-1])
    return Message(left, end, level)


def _token(text: str, first: int, end: int) -> tuple[str, int]:
    """The token before the blank that ends at END, and its start; "" if there is no blank."""
    if end <= first or text[end - 1] != " ":
        return "", end
    begin = max(text.rfind(" ", first, end - 1), text.rfind("\t", first, end - 1)) + 1
    begin = max(begin, first)
    return text[begin : end - 1], begin
