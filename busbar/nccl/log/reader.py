"""Reads the lines that matter in full: each goes to the tables, the evidence and the findings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from busbar.nccl.diagnose.diagnosis import Findings
from busbar.nccl.log import patterns as p
from busbar.nccl.log.clean import clean
from busbar.nccl.log.evidence import Evidence
from busbar.nccl.log.records import Preamble, Run
from busbar.nccl.log.runs import RunBuilder
from busbar.nccl.log.source import Source

# nothing that is looked for is longer; rings of thousands of ranks are, and patterns must not crawl over them
MAX_TEXT = 8192
GLUED_NUMBER = re.compile(r"-?\d+(?=[A-Za-z])")


@dataclass
class ParsedLog:
    """Everything that the gates look at. `dangling` is a preamble that no table followed (a hang, a kill)."""

    runs: list[Run]
    dangling: Preamble | None
    evidence: Evidence
    findings: Findings
    lines: int = 0
    bytes: int = 0
    sha256: str = ""
    truncated: str | None = None
    long_lines: int = 0
    trailing_errors: list[tuple[int, str]] = field(default_factory=list)
    last_line: str = ""


class LogReader:
    """Feed lines (without their ends) to `line`, then call `result`."""

    def __init__(self) -> None:
        self.builder = RunBuilder()
        self.evidence = Evidence()
        self.findings = Findings()
        self.last_line = ""

    def line(self, raw: bytes, number: int) -> None:
        """Take one line in full."""
        text = clean(raw[:MAX_TEXT]).text
        if not text:
            return
        self.last_line = text[:400]
        message = p.find_message(text)
        if message is None:
            self.builder.add(text, number)
            self.evidence.bare(text, number)
        else:
            before, host = self._unglue(text, message)
            self.evidence.message(message["level"], host, message["body"], number, text)
            if before.strip():
                self.builder.add(before, number)
        self.findings.look(text, number)

    def result(self, source: Source, lines: int) -> ParsedLog:
        """Everything that was read from SOURCE."""
        self.builder.finish()
        return ParsedLog(
            runs=self.builder.runs,
            dangling=self.builder.dangling,
            evidence=self.evidence,
            findings=self.findings,
            lines=lines,
            bytes=source.bytes,
            sha256=source.sha256.hexdigest(),
            truncated=source.truncated,
            long_lines=source.long_lines,
            trailing_errors=self.builder.trailing_errors,
            last_line=self.last_line,
        )

    def _unglue(self, text: str, message: re.Match[str]) -> tuple[str, str]:
        """What stands before a message, and its host, where the text before it sticks to the host's name.

        `float     sum      -1gcn151:1904979:...`: a row was interrupted right behind its root.
        """
        before, host = text[: message.start()], message["host"] or ""
        if not host or not before.strip():
            return before, host
        end = message.end("host")
        start = max(text.rfind(" ", 0, end), text.rfind("\t", 0, end)) + 1
        glued = text[start:end]
        known = [h for h in self.evidence.hosts | self.builder.hosts if glued.endswith(h)]
        if known:
            host = max(known, key=len)
        elif p.ROW_START.search(before) is not None and (digits := GLUED_NUMBER.match(glued)) is not None:
            host = glued[digits.end() :]
        return text[:start] + glued[: len(glued) - len(host)], host
