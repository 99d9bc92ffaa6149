"""Strips prefixes and tags of launchers and log collectors from a line, which leaves the program's text.

Order matters: the prefix that was added last (kubectl's prefix, then its time) is removed first. A tag inside
a line (`sum      -1[1,0]<stdout>:    85.70`, Open MPI 4 writes one for each flush) becomes a blank.
"""

from __future__ import annotations

import json
import re
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
    r"#|\d+\s+\d+\s+[a-z]|[\w.\-]+:\d+:\d+ (?:\[|NCCL )|NCCL (?:version|INFO|WARN)"
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
# a field of CSV in which a line of the program begins, or a row with a field for each value
CSV = re.compile(
    r'^(?:"?\d+"?[,;]){2}"?(?:u?int|b?float|half|double|f8)\w*"?[,;]|'
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
    """True if a line of the program stands in a field of TEXT; CSV is not read."""
    if text.startswith('"') and BEGINS.match(text, 1) is not None:
        return '",' in text.rstrip(",")
    return BEGINS.match(text) is None and CSV.search(text) is not None


def _object(text: str, at: int) -> list[str] | None:
    """The lines of a JSON object at AT, possibly after a collector's prefix."""
    if BEGINS.search(text[:at]) is not None:
        return [text]  # a line of the program that has braces
    try:
        lines = _lines(json.loads(text[at:]))
    except (ValueError, RecursionError):  # the latter: thousands of nested brackets
        lines = []
    return lines or (None if READABLE.search(text, at) is not None else [text])


def _lines(value: Any) -> list[str]:
    """Lines of the outermost strings under a key of KEYS, also in lists, and what else the record says.

    That is sentences, and words under a key such as reason or exit_code.
    """
    lines: list[str] = []
    others: list[tuple[str, Any]] = []
    level = [("", value, True)]  # key, value, and whether its string may be a line
    for _ in range(8):
        below: list[tuple[str, Any, bool]] = []
        for key, each, outermost in level:
            if isinstance(each, dict):
                named = {str(k).lower(): k for k, v in each.items() if isinstance(v, str)}
                line = next((named[name] for name in KEYS if name in named), None) if outermost else None
                lines += each[line].splitlines() if line is not None else ()
                below += ((f"{key}.{k}", v, outermost and line is None) for k, v in each.items() if k != line)
            elif isinstance(each, list):
                below += ((key, v, outermost) for v in each)
            else:
                others.append((key, each))
        level = below
    said = [line.strip() for line in lines if line.strip()]
    found: list[str] = []
    for key, each in others if lines else ():
        if isinstance(each, str) and " " in each.strip():
            if not any(each.strip() in line or line in each for line in said):
                found += each.splitlines()
        elif STATE.search(key) is not None and isinstance(each, str | int) and str(each).strip():
            found.append(f"{key.rpartition('.')[2].replace('_', ' ')}: {each}")
    return lines + found


def _unescaped(text: str) -> list[str] | None:
    try:
        return str(json.loads(f'"{text}"')).splitlines()
    except ValueError:
        return None


MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
# Mon Sep  2 10:00:00 2024          mpirun --timestamp-output, ctime(3)
CTIME = rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:{MONTHS}) [ \d]\d \d\d:\d\d:\d\d \d{{4}}"

# [1,0]<stdout>:                    Open MPI 4 --tag-output; also <stderr> and <stddiag>
# [1,0][worker-0:57]<stdout>:       Open MPI 5 --output tag-detailed
# [prterun-host-123@1,0]<stdout>:   Open MPI 5 --output tag-fullname
# [0]<stdout>:                      Open MPI 5 --output rank
# [1,0]<stdout>                     some builds leave the colon out
# Mon Sep  2 10:00:00 2024<stdout>:  Open MPI 4 --timestamp-output alone
TAG = re.compile(
    rf"(?:\[?{CTIME}\]?\s?)?(?:\[(?:[^\[\]\s@<]{{1,200}}@)?(?:\d+,)?\d+\](?:\[[^\[\]\s]{{1,200}}:\d+\])?)?"
    r"<std(?:out|err|diag)>:? ?"
)
# ESC [ 1 ; 31 m                    colours of a terminal, and ESC ] ... BEL titles
ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")

LEADERS = [
    # [pod/nccl-launcher-x7k/mpi] text               kubectl logs --prefix
    re.compile(r"\[pod/[^\]\s]+\]\s?"),
    # Sep 02 10:00:00 node-1 nccl[1234]: text        journalctl, syslog; also with micros, or -o short-iso
    re.compile(
        rf"(?:(?:{MONTHS}) [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"
        r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
        r" [\w.\-]{1,255} [^\s\[\]:]{1,255}\[\d+\]: ?"
    ),
    # 2026-05-05T06:16:47.123456789Z text            kubectl logs --timestamps; journalctl -o short-iso
    # [2026-05-05 06:16:47] text                     NCCL >= 2.26.2 in front of WARN; ts, loguru
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s"),
    # 2026/11/25 10:00:00 text                       Go's log, nginx
    re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? "),
    # I1125 10:00:00.000000       1 main.go:42] text  klog, glog
    re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./\-]+:\d+\] "),
    # stdout F text                                  CRI log files under /var/log/pods
    re.compile(r"(?:stdout|stderr) [FP] "),
    # Mon Sep  2 10:00:00 2024 text
    re.compile(rf"\[?{CTIME}\]?:?\s?"),
    # Sep 02 10:00:00 text                           ts(1)
    re.compile(rf"(?:{MONTHS}) [ \d]\d \d\d:\d\d:\d\d "),
    # 10:00:00.123 text
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?\s"),
    # [0] text                                       mpiexec.hydra -prepend-rank; not [1] + Killed of a shell
    re.compile(rf"\[\d{{1,6}}\] (?=[^\s+\-]|\s*(?:{PROGRAM}))"),
    # 0: text                                        srun -l; "00: " on wide jobs
    re.compile(r"\d{1,6}:\s"),
    # 10.0.87.143: 10.0.87.143: text                 pdsh, twice where it wraps deepspeed
    re.compile(r"([\w.\-]+): (?=\1: )"),
    # worker-0: # nThread ..                         pdsh, clush, only in front of something we know
    re.compile(rf"[\w.\-]+: (?=\s*(?:{PROGRAM}))"),
    # - # nThread ..                                 a list of Ansible
    re.compile(rf"- (?=\s*(?:['\"]|{PROGRAM}))"),
    # > text                                         quoted in a mail or an issue
    re.compile(r">\s?(?=\s*(?:#|\d))"),
]
# most lines have no prefix, so one search for all of them is faster than one for each
ANY_LEADER = re.compile("|".join(leader.pattern for leader in LEADERS))


# text,2026-11-25T10:00:00.000+0000,gpu-1        the next columns of an export
COLUMNS = re.compile(r",\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^,\s\"]{0,40}(?:,[\w./\-]{0,80}){0,8}$")
# nccl [1,0]<stdout>:text            k9s: the container's name before a tag
CONTAINER = re.compile(r"[A-Za-z][\w./-]{0,200} +(?=\[[^\[\]\s<]{1,200}\](?:\[[^\[\]\s]{1,200}\])?<std)")
MAX_DEPTH = 4  # collectors inside each other


def clean(text: str) -> list[str] | None:
    """The program's own lines in one line of a log, usually one. None: they are wrapped in an unknown way.
    Never raises.
    """
    text = _stripped(text)
    at = text.find(" [")
    if at > 0 and text.count(":", 0, at) == 2 and text[:at].replace(":", "").replace("-", "").isalnum():
        return [text]  # host:pid:tid [0]: most lines, and no record
    return _clean(text, MAX_DEPTH)


# how a line of a program begins that a terminal has not wrapped
START = re.compile(r"\s*(?:#(?:\s|$)|\d+\s+\d+\s+[a-z]|[\w.\-]+:\d+:\d+ \[|NCCL (?:version|INFO|WARN))")


def is_start(line: bytes) -> bool:
    """Whether LINE is the beginning of a line that a program printed."""
    return START.match(_stripped(line[:1024].decode("utf-8", "replace"))) is not None


def width(lines: list[bytes]) -> int | None:
    """The width at which a terminal wrapped LINES: none is longer, and the rests of full ones follow them."""
    widest = max(map(len, lines), default=0)
    full = [at for at, line in enumerate(lines[:-1]) if len(line) == widest]
    if not 40 <= widest <= 400 or len(full) < 8:
        return None
    rests = sum(not is_start(lines[at + 1]) for at in full)
    return widest if rests >= 0.9 * len(full) else None


def _clean(text: str, depth: int) -> list[str] | None:
    """The lines in TEXT, which is stripped of its prefixes."""
    inner = unwrap(text) if depth else [text]
    if inner is None or inner == [text]:
        return inner
    found: list[str] = []
    for line in inner:
        lines = _clean(_stripped(line), depth - 1)
        if lines is None:
            return None
        found += lines
    return found


def _stripped(text: str) -> str:
    """TEXT without the prefixes of launchers and collectors."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    # non-breaking blanks of a web page, among others
    text = text.rstrip("\r\n").replace("\r", " ").replace("\ufeff", "").replace("\xa0", " ")
    if "<std" in text:
        if (container := CONTAINER.match(text)) is not None:
            text = text[container.end() :]
        if (tag := TAG.match(text)) is not None:
            text = text[tag.end() :]  # nearly always the only one
        if "<std" in text:
            text = TAG.sub(" ", text)
    text = text.strip()
    if "," in text and (columns := COLUMNS.search(text)) is not None:
        text = text[: columns.start()]
    for _ in range(8):  # a few nested collectors at most
        if ANY_LEADER.match(text) is None:
            break
        for leader in LEADERS:
            match = leader.match(text)
            if match is not None:
                text = text[match.end() :].lstrip()
    return text
