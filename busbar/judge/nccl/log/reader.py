"""Reads a log once, line by line: tables, NCCL's evidence, known failures and unusual lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from busbar.judge.nccl.log import patterns as p
from busbar.judge.nccl.log.clean import clean, is_csv, is_start, width
from busbar.judge.nccl.log.evidence import (
    KEEP_HOSTS,
    MACHINE,
    OPEN_FILES,
    Evidence,
    Fact,
    Process,
    Transport,
    candidates,
    plain_facts,
    read_transport,
)
from busbar.judge.nccl.log.known import KnownLine, LineRules
from busbar.judge.nccl.log.patterns import Message, find_message
from busbar.judge.nccl.log.records import EVIDENCE_WIDTH, LogLine, Preamble, Run, whole
from busbar.judge.nccl.log.source import BLOCK, MAX_LINE, Source, SourceError, open_log
from busbar.judge.nccl.log.tables import RunBuilder
from busbar.judge.nccl.log.unusual import Unusual

MAX_PROCESSES = 65_536


@dataclass
class _Part:
    """Messages of one owner in one part of the log: of the program AT, after that many of its rows."""

    owner: Preamble | None
    at: Preamble
    rows: int
    number: int  # of the program AT, in the order of the log
    unlisted: bool  # their processes are printed, and no device list read so far names them
    evidence: Evidence = field(default_factory=Evidence)
    processes: set[Process] = field(default_factory=set)


@dataclass
class Proof:
    """The evidence on one table: `own` can prove something, `loose` can only count against it."""

    own: Evidence
    loose: Evidence


class Binding:
    """Sorts messages while a log is read, and afterwards gives each table its own evidence."""

    def __init__(self) -> None:
        # owner, program AT, unlisted -> messages after its latest row, and those before that row
        self._latest: dict[tuple[int, int, bool], _Part] = {}
        self._earlier: dict[tuple[int, int, bool], _Part] = {}
        self._listed: dict[Process, Preamble] = {}
        self._order: dict[int, int] = {}  # id of a preamble -> number of the program

    def rank(self, host: str, pid: int, program: Preamble) -> None:
        """Record that the device list of PROGRAM names a process."""
        self._listed[short(host), pid] = program

    def evidence(self, host: str, pid: int | None, at: Preamble, rows: int) -> Evidence:
        """The evidence to which a message belongs that follows ROWS rows in the part of the program AT."""
        process = (short(host), pid) if host and pid is not None else None
        owner = self._listed.get(process) if process is not None else None
        unlisted = process is not None and owner is None
        key = (id(owner), id(at), unlisted)
        part = self._latest.get(key)
        if part is None or part.rows != rows:
            if part is not None and self._earlier.setdefault(key, part) is not part:
                self._earlier[key].evidence.add(part.evidence)
                self._earlier[key].processes |= part.processes
            number = self._order.setdefault(id(at), len(self._order))
            part = self._latest[key] = _Part(owner, at, rows, number, unlisted)
        if unlisted and process is not None and len(part.processes) < MAX_PROCESSES:
            part.processes.add(process)
        return part.evidence

    def whole(self) -> Evidence:
        """The evidence in the whole log."""
        return Evidence.merged(part.evidence for part in self._parts())

    def _parts(self) -> list[_Part]:
        return [*self._earlier.values(), *self._latest.values()]

    def proofs(self, runs: list[Run]) -> list[Proof]:
        """The evidence on each of RUNS."""
        own: dict[int, list[Evidence]] = defaultdict(list)
        loose: dict[int, list[Evidence]] = defaultdict(list)
        rows = {id(run.preamble): len(run.rows) for run in runs}
        for part in self._parts():
            owner = self._owner(part)
            program = owner or part.at
            here = part.at is program
            # where no device list was printed, only the position tells
            foreign = owner is None and part.unlisted and bool(program.ranks)
            finished = 0 < rows.get(id(program), 0) <= part.rows
            number = self._order.get(id(program), len(self._order))
            before = not finished if here else part.number < number
            (own if before and not foreign else loose)[id(program)].append(part.evidence)
        nothing = Evidence()  # shared by all runs without any: a damaged log may begin thousands of them
        return [
            Proof(_one(own[id(r.preamble)]) or nothing, _one(loose[id(r.preamble)]) or nothing) for r in runs
        ]

    def _owner(self, part: _Part) -> Preamble | None:
        """The program of PART; a device list that came later counts if it names all its processes."""
        if not part.unlisted:
            return part.owner
        owners = {id(o): o for o in map(self._listed.get, part.processes)}
        return next(iter(owners.values())) if len(owners) == 1 else None


def _one(parts: list[Evidence]) -> Evidence | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Evidence.merged(parts)


def short(host: str) -> str:
    """A host's name without its domain."""
    return host.partition(".")[0]


# every text that is searched is shorter; only rings of thousands of ranks are longer
MAX_TEXT = 8192
MAX_HOST = 255
MAX_GAP = 600.0  # seconds from one row to the next
MAX_SKEW = 60.0  # by which a clock may be set back
HOUR = 3600.0
# text after MAX_TEXT that would have been read; lists of ranks and host names have none
READABLE = re.compile(rb"NCCL |# |\d +\d+ +[a-z]")
# the shape of a text: all its digits are 0, so that messages of all ranks have a few shapes
SHAPE = bytes.maketrans(b"123456789", b"000000000")
# 2026-05-05T06:16:47.123456789Z stdout P text      a part of a line in a CRI file; F is the last one
CRI = re.compile(rb"\S{20,40} (stdout|stderr) ([PF]) ")
# text [repeated 15x across cluster] (Ray deduplicates logs ..): Ray leaves out lines like this one
REPEATED = re.compile(rb" \[repeated \d+x across cluster\].*")
# nccl-1  | # nThread 1 ..         what a collector writes before each line, with other names and numbers;
# mpi [1,0]<stdout>:# nThread 1 ..  a rank's label follows it, which the launcher's own lines do not have
FIRST = re.compile(
    r"(\S.{0,300}?)(?:\[[^\[\]\s<]{1,200}\](?:\[[^\[\]\s]{1,200}\])?<std\w{3,4}>:? ?|(?<=\s)\d{1,6}: )?"
    r"# (?:nThread |nGpus|nccl-tests |Collective test )"
)
NAME = re.compile(r"[\w./+\-]+")
NUMBER = re.compile(r"\d+")
FEWEST = 3  # bytes of a line that says anything
SHORT = 7  # a text with fewer letters is neither a part of a table nor of a message
MAX_KNOWN = 4096  # processes, and shapes of messages, that are remembered
OF_HOST = re.compile(r"[a-z0-9][a-z0-9.\-]*")
GLUED_NUMBER = re.compile(r"-?\d+(?=[A-Za-z])")


@dataclass
class ParsedLog:
    """Everything that the checks use. `dangling`: a preamble without a table after it (a hang, a kill).

    `evidence`: from all messages of NCCL in this log. `proofs`: the evidence on each of `runs`.
    """

    runs: list[Run]
    dangling: Preamble | None
    evidence: Evidence
    proofs: list[Proof]
    known_lines: list[KnownLine] = field(default_factory=list)
    unusual: list[Unusual] = field(default_factory=list)  # lines that nothing knows
    uncounted: int = 0  # unusual lines beyond those that are kept
    missing: LogLine | None = None  # what says that lines were lost
    stated: dict[str, set[str]] = field(default_factory=dict)  # what decides between causes -> hosts
    lines: int = 0
    bytes: int = 0
    sha256: str = ""
    truncated: str | None = None
    gap: LogLine | None = None  # between the times of two rows
    form: str | None = None  # the form of a file or of lines that is not read
    long_lines: int = 0
    last_line: str = ""
    date: str | None = None  # the first one that it holds, as printed


def read_lines(lines: Iterable[bytes | str]) -> ParsedLog:
    """Read lines, with or without their line ends, in one pass and bounded memory."""
    source = Source()
    return read_blocks(source.blocks(as_bytes(lines)), source)


def read_file(path: str) -> ParsedLog:
    """Read the log PATH or, for '-', standard input. Raises SourceError if it cannot be read."""
    source = Source()
    stream = open_log(path)
    try:
        return read_blocks(source.blocks(source.chunks(stream)), source)
    except OSError as error:
        raise SourceError(f"{path}: read failed: {error}") from error
    finally:
        if path != "-":
            stream.close()


def read_blocks(blocks: Iterable[bytes], source: Source) -> ParsedLog:
    """Read blocks of whole lines, which SOURCE counts, to the end."""
    reader = LogReader()
    for block in blocks:
        reader.block(block)
    return reader.result(source)


def as_bytes(lines: Iterable[bytes | str]) -> Iterator[bytes]:
    """Lines of text or bytes, with or without their ends, as chunks in which each has exactly one end."""
    chunk: list[bytes] = []
    held = 0
    for line in lines:
        raw = line.encode("utf-8", "replace") if isinstance(line, str) else bytes(line)
        chunk.append(raw if raw.endswith(b"\n") else raw + b"\n")
        held += len(raw)
        if held >= BLOCK:
            yield b"".join(chunk)
            chunk, held = [], 0
    if chunk:
        yield b"".join(chunk)


class LogReader:
    """Feed blocks of whole lines to `block`, then call `result`. MEASURED: see LineRules."""

    def __init__(self, *, measured: bool = False) -> None:
        self.builder = RunBuilder()
        self.hosts: set[str] = set()  # of all messages so far
        self._binding = Binding()
        self._at = self.builder.program
        self._rules = LineRules(measured=measured)
        self._log = ParsedLog(self.builder.runs, None, Evidence(), [])
        self._width: int | None = None  # where a terminal wrapped the lines
        self._held: list[bytes] = []  # a line's parts so far
        self._parts: dict[bytes, bytes] = {}  # of lines of a CRI file, by stream
        self._last_line = b""
        self._raw = b""  # the line that is read
        self._prefix: re.Pattern[str] | None = None  # of the program's lines, as its first one has it
        self._numbered = ""  # that one, with 0 as each of its numbers
        # of the processes that print while no other line stands between their messages
        self._processes: dict[tuple[bytes, bytes], tuple[Evidence, Process]] = {}
        self._before = ""  # the line before
        # shapes of texts before a process, transports, and shapes of messages with the facts they may state
        self._prefixes: set[bytes] = {b""}
        self._transports: dict[bytes, Transport] = {}
        self._shapes: dict[bytes, tuple[Fact, ...]] = {}
        self._row_at: tuple[datetime, int] | None = None  # the last row's time and line

    def block(self, block: bytes) -> None:
        """Take a block of whole lines."""
        log = self._log
        log.date = log.date or p.date_in(block)
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if not log.lines:
            self._width = width([line.rstrip(b"\r") for line in lines])
        for number, line in enumerate(lines, log.lines + 1):
            if self._width is not None:
                self._wrapped(line.rstrip(b"\r"), number)
            elif len(line) >= FEWEST:
                self._line(line, number)
        log.lines += len(lines)
        self._last_line = next((x for x in reversed(lines) if not x.isspace() and x), self._last_line)

    def result(self, source: Source) -> ParsedLog:
        """Everything that was read from SOURCE."""
        log, rules = self._log, self._rules
        self._wrapped(b"# ", log.lines + 1)
        self.builder.finish()
        self._list_ranks()
        log.dangling = self.builder.dangling
        log.evidence, log.proofs = self._binding.whole(), self._binding.proofs(log.runs)
        log.known_lines, log.unusual = [*rules.known.values()], [*rules.unusual.values()]
        log.uncounted = rules.uncounted
        log.missing, log.stated = rules.missing, rules.stated
        log.bytes, log.sha256, log.truncated = source.bytes, source.sha256.hexdigest(), source.truncated
        log.form = source.form or log.form
        log.long_lines += source.long_lines + self.builder.foreign
        log.last_line = "".join((clean(_text(self._last_line)) or [""])[-1:])[:EVIDENCE_WIDTH]
        return log

    def _lost(self, number: int, text: str) -> None:
        """Note that TEXT says that lines of the run are missing."""
        self._rules.missing = self._rules.missing or LogLine.of(number, text)

    def _wrapped(self, line: bytes, number: int) -> None:
        """Take one line of a log that a terminal has wrapped: the rest of a full line, or a beginning."""
        if self._held and (len(self._held) > MAX_TEXT // 40 or is_start(line)):
            self._line(b"".join(self._held), number - len(self._held))
            self._held.clear()
        self._held.append(line)
        if len(line) != self._width:
            self._line(b"".join(self._held), number - len(self._held) + 1)
            self._held.clear()

    def _line(self, line: bytes, number: int) -> None:
        if b"x across cluster]" in line and (repeated := REPEATED.search(line)) is not None:
            self._lost(number, _text(line))
            line = line[: repeated.start()]
        self._raw = line
        message = find_info(line.rstrip()) if not self._parts else None
        if message is not None and self._take(message, number):
            return
        if self._parts or b" P " in line[:64]:
            joined = self._joined(line)
            if joined is None:
                return
            self._raw = line = joined
        if line.startswith(bytes(8)) and self.builder.started and self.builder.stage != "after":
            self._lost(number, "zeros in place of lines")
        if len(line) > MAX_TEXT and READABLE.search(line, MAX_TEXT - MAX_HOST) is not None:
            self._log.long_lines += 1
        texts = clean(_text(line))
        if texts is None:
            self._log.long_lines += 1
            if is_csv(_text(line)):
                self._log.form = "CSV"
        for text in texts or ():
            if text:
                self._read(text, number)
        if message is not None and texts == [_text(message.string[message.start() :])]:
            self._remember(message, texts[0])

    def _take(self, message: re.Match[bytes], number: int) -> bool:
        """Take an INFO message if what stands before it and its shape are known, as of nearly every line."""
        line, start = message.string, message.start()
        if line[:start].translate(SHAPE) not in self._prefixes:
            return False
        via = message["transport"]
        if via is not None:
            transport = self._transports.get(via)
            if transport is None:
                return False
            evidence, process = self._process(message)
            evidence.edge(message, transport, process, number, line[start:])
            return True
        raw = line[message.end() :]
        facts = self._shapes.get(raw.translate(SHAPE))
        if facts is None:
            return False
        evidence, process = self._process(message)
        if facts:
            body, text = _text(raw).strip(), _text(line[start:])
            for fact in facts:
                fact.take(evidence, body, process[0], number, text)
        return True

    def _remember(self, message: re.Match[bytes], text: str) -> None:
        """Remember the prefix and the shape of an INFO message that `clean` leaves as TEXT."""
        line, start, via = message.string, message.start(), message["transport"]
        raw = line[message.end() :]
        body = _text(raw)
        if "NCCL " in body or (via is not None and b"NCCL " in via) or len(line) > EVIDENCE_WIDTH:
            return
        if len(self._prefixes) < MAX_KNOWN and b" P " not in line[:start]:
            self._prefixes.add(line[:start].translate(SHAPE))
        if via is not None:
            transport = read_transport(_text(via))
            if transport is not None and len(self._transports) < MAX_KNOWN:
                self._transports[via] = transport
        elif len(self._shapes) < MAX_KNOWN and not (
            p.names_transport(body) or p.names_process(body) or self._rules.concerns(text)
        ):
            self._shapes[raw.translate(SHAPE)] = candidates(body)

    def _joined(self, line: bytes) -> bytes | None:
        """LINE of a CRI file behind the parts before it; None for a part that others follow."""
        found = CRI.match(line)
        if found is None:
            return line
        whole = self._parts.pop(found[1], b"") + line[found.end() :]
        if found[2] == b"P" and len(whole) < MAX_LINE:
            self._parts[found[1]] = whole
            return None
        return line[: found.end()] + whole

    def _read(self, text: str, number: int) -> None:
        before, self._before = self._before, text
        if text and before.endswith("Last error:"):  # PyTorch: in the next line, NCCL's last warning
            text = "NCCL WARN " + text.removeprefix(before.removesuffix("Last error:"))
        if len(text) < SHORT:
            self._look(text, number)
            return
        message = find_message(text)
        if message is None:
            self._plain(text, number)
            return
        start, host = self._unglue(text, message, 0)
        if text[:start].strip():
            self._plain(text[:start], number)
        while message is not None:
            following = find_message(text, message.end)
            end, next_host = len(text), ""
            if following is not None:
                end, next_host = self._unglue(text, following, message.end)
            body = text[message.end : end].strip()
            evidence, process = self._speaker(host, message.pid)
            self._message(evidence, message.level, process, body, number, text[start:end])
            message, start, host = following, end, next_host

    def _process(self, message: re.Match[bytes]) -> tuple[Evidence, Process]:
        """The evidence to which a MESSAGE belongs, and its process."""
        key = message["host"], message["pid"]
        found = self._processes.get(key)
        if found is None:
            found = self._speaker(_text(key[0]), _text(key[1]))
            if len(self._processes) < MAX_KNOWN:
                self._processes[key] = found
        return found

    def _speaker(self, host: str, pid: str | None) -> tuple[Evidence, Process]:
        """The evidence to which a message of NCCL belongs, and its process ("" and 0: not printed)."""
        evidence = self._binding.evidence(host, None if pid is None else whole(pid), *self._at)
        evidence.speaks = True
        if host and len(self.hosts) < KEEP_HOSTS:
            self.hosts.add(host)
            evidence.hosts.add(host)
        return evidence, (host, whole(pid or "0"))

    def _message(
        self, evidence: Evidence, level: str, process: Process, body: str, line: int, text: str
    ) -> None:
        if (not body and level == "INFO") or level in ("TRACE", "CALL"):
            return  # what a trace shows is said by INFO and WARN
        if level == "WARN":
            evidence.keep("warnings", body, line, text)
        elif (edge := p.EDGE.fullmatch(body.encode("utf-8", "replace"))) is not None:
            transport = read_transport(_text(edge["transport"]))
            if transport is not None:
                evidence.edge(edge, transport, process, line, text.encode("utf-8", "replace"))
                return
        for fact in candidates(body):
            fact.take(evidence, body, process[0], line, text)
        if p.names_transport(body):
            evidence.keep("unread_edges", body, line, text)
        elif p.names_process(body):
            evidence.keep("unread_messages", body, line, text)
        self._look(text, line, level)

    def _look(self, text: str, line: int, level: str | None = None) -> None:
        if text:
            stage, started = self.builder.stage, self.builder.started
            behind, certain = self._behind_prefix() if level is None else ("", False)
            self._rules.look(
                text, line, level=level, started=started, stage=stage, behind=behind, certain=certain
            )

    def _behind_prefix(self) -> tuple[str, bool]:
        """Return the text behind a prefix like that of the program's first line, "" without one.

        The prefix is certain to be one if it differs in numbers only.
        """
        raw = _text(self._raw).strip()
        if self._prefix is None and "# " in raw and (first := FIRST.match(raw)) is not None:
            parts = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in NAME.split(first[1]))
            # a record of JSON has an open quote there, and is read by itself
            self._prefix = None if first[1].count('"') % 2 else re.compile(NAME.pattern.join(parts))
            self._numbered = NUMBER.sub("0", first[1])
        found = self._prefix.match(raw) if self._prefix is not None else None
        if found is None:
            return "", False
        behind = "".join((clean(raw[found.end() :]) or [""])[-1:])
        said = "" if find_message(behind) is not None else behind  # a message is read by itself
        return said, NUMBER.sub("0", found[0]) == self._numbered

    def _plain(self, text: str, number: int) -> None:
        """Take a text that is not a message of NCCL."""
        rows = self._rows()
        self._processes.clear()
        self.builder.add(text, number)
        if self._rows() > rows:
            self._time_row(number, first=not rows)
        if self.builder.listed:
            self._list_ranks()
        self._at = self.builder.program
        evidence = self._binding.evidence("", None, *self._at)
        for kind, value in plain_facts(text):
            evidence.keep(kind, value, number, text)
        if "open files on" in text and (limits := p.OPEN_FILES.match(text)) is not None:
            evidence.of_host(OPEN_FILES, limits["limits"], limits["host"])
        if ("Running" in text or "assigned" in text) and (pod := p.POD.search(text)) is not None:
            evidence.of_host(MACHINE, pod["node"] or pod["to"], pod["pod"] or pod["assigned"])
        self._look(text, number)

    def _rows(self) -> int:
        run = self.builder.current
        return len(run.rows) if run is not None else 0

    def _time_row(self, number: int, *, first: bool) -> None:
        """Keep the first gap or jump between the times that a collector wrote to two rows of a table."""
        try:
            at = datetime.fromisoformat((p.date_in(self._raw) or "")[:19])
        except ValueError:
            return
        before, self._row_at = self._row_at, (at, number)
        if before is None or first or self._log.gap is not None:
            return
        seconds = (at - before[0]).total_seconds()
        set_back = -HOUR <= seconds <= MAX_GAP - HOUR  # the end of daylight saving time
        if not (-MAX_SKEW <= seconds <= MAX_GAP or set_back):
            text = f"{seconds:.0f} s between the rows of lines {before[1]} and {number}"
            self._log.gap = LogLine(str(seconds), number, text)

    def _list_ranks(self) -> None:
        for rank, program in self.builder.listed:
            self._binding.rank(rank.host, rank.pid, program)
        self.builder.listed.clear()

    def _unglue(self, text: str, message: Message, after: int) -> tuple[int, str]:
        """The start of a message, and its host: text after AFTER may be attached to the host's name.

        `float     sum      -1gcn151:1904979:...`: a row was interrupted right after its root.
        """
        start, host = message.start, message.host or ""
        if not host or not text[after:start].strip():
            return start, host
        end = start + len(host)
        first = max(after, text.rfind(" ", 0, end) + 1, text.rfind("\t", 0, end) + 1)
        glued = text[first:end]
        ends = (glued[i:] for i in range(max(0, len(glued) - MAX_HOST), len(glued)))
        known = (x for x in ends if x in self.hosts or x in self.builder.hosts)
        if (found := next(known, None)) is not None:
            if _is_another(glued[: -len(found)], inside=after > 0):
                return start, host
            host = found
        elif p.ROW_START.search(text[after:start]) and (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return end - len(host), host


def _is_another(before: str, *, inside: bool) -> bool:
    """Whether BEFORE is the beginning of another host's name, and not other text attached to a host's name.

    INSIDE a message a whole word may be attached: `Connected all ringsworker-0:40:90`.
    """
    if OF_HOST.fullmatch(before) is None or before.isdigit():
        return False
    return not (inside and before.isalpha() and len(before) >= 4)


def find_info(line: bytes) -> re.Match[bytes] | None:
    """The first INFO message in LINE and its process, behind whatever a launcher or collector wrote."""
    at = line.find(p.INFO)
    gpu = line.rfind(b" ", 0, at) if 0 < at < MAX_TEXT else -1
    if gpu < 0:
        return None
    begin = line.rfind(b" ", 0, gpu) + 1
    found = p.MESSAGE.match(line, begin)
    if found is None and (tag := line.rfind(b">:", begin, gpu)) >= 0:
        found = p.MESSAGE.match(line, tag + 2)
    return found


def _text(line: bytes) -> str:
    """The part of LINE that is read."""
    # a character has four bytes at most
    return line[: 4 * MAX_TEXT].decode("utf-8", "replace")[:MAX_TEXT]
