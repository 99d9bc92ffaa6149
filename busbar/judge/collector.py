"""From a job of any scheduler to a verdict: look the job up, follow and judge its log, keep both."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Generic, Protocol, TypeVar

from busbar.judge import COUNT_LINE, FIRST_LINE, LAST_LINE
from busbar.judge.archive import Archive
from busbar.judge.checks import JobOutcome, Verdict
from busbar.zstd import ZstdError, ZstdFile

_PROGRESS_LINES = 20_000
_MEASURING = re.compile(r"# busbar: (measuring \w+|\w+ ended with exit code \d+)")
_ERROR = re.compile(
    r"# busbar: (\w+ ended with exit code [1-9].*|\w+ timed out.*|no program .*|\S+ does not resolve .*)"
)
_COUNT = re.compile(rf"{COUNT_LINE} (\d+) lines, (\d+) bytes")


@dataclass
class Recording:
    """Passes lines on and writes them compressed into `sink`.

    Afterwards `missing` tells whether the lines are the launcher's whole output, from its first to its last
    line, as many as it counted. `counted`: whether the launcher printed its count; without it, missing lines
    may go unnoticed. `errors`: the errors that the launcher itself reported.

    `text_of`: the progress text of a line, or None. `cause_of_loss`: ends the message about lost lines.
    """

    sink: BinaryIO
    progress: Callable[[str], None]
    text_of: Callable[[bytes], str | None]
    cause_of_loss: str = ""
    counted: bool = False
    errors: list[str] = field(default_factory=list)
    _lines: int = 0
    _bytes: int = 0
    _first: bool | None = None
    _last: bool = False
    _lost: str = ""

    @property
    def missing(self) -> list[str]:
        """The parts of the launcher's output that were not among the lines, one sentence each."""
        if self._first is None:
            return ["the log is empty"]
        ends = [] if self._first else ["the beginning of the launcher's log is missing"]
        ends += [] if self._last else ["the end of the launcher's log is missing"]
        return [*ends, self._lost] if self._lost else ends

    def tee(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines unchanged. The compressed stream is finished even if the reader stops early."""
        with ZstdFile(self.sink, "wb") as writer:
            for line in lines:
                writer.write(line)
                self._inspect(line)
                yield line

    def _inspect(self, line: bytes) -> None:
        if line.startswith(COUNT_LINE.encode()):
            self._compare(line.decode("utf-8", "replace"))
        self._lines += 1
        self._bytes += len(line)
        if self._first is None:
            self._first = line.startswith(FIRST_LINE.encode())
        # The last output of a rank may have no newline: the launcher's own line then stands behind it.
        if (at := line.find(b"# busbar: ")) >= 0:
            self._last = self._last or line.startswith(LAST_LINE.encode())
            text = line[at:].decode("utf-8", "replace").rstrip()
            if found := _MEASURING.match(text):
                self.progress(found[1])
            if found := _ERROR.match(text):
                self.errors.append(found[1])
        elif shown := self.text_of(line):
            self.progress(shown)
        elif self._lines % _PROGRESS_LINES == 0:
            self.progress(f"{self._lines} lines, {self._bytes / 1e6:.0f} MB of log so far")

    def _compare(self, line: str) -> None:
        """Compare the launcher's own count with the lines before this one."""
        found = _COUNT.match(line)
        if not found:
            return
        self.counted = True
        lines, size = int(found[1]), int(found[2])
        # More bytes than written are not a loss: a kubelet may stamp the parts of a very long line.
        if self._lines != lines or self._bytes < size:
            self._lost = (
                f"the launcher wrote {lines} lines ({size} bytes), {self._lines} lines ({self._bytes} bytes) "
                f"were read{self.cause_of_loss}"
            )


Log = TypeVar("Log")
V = TypeVar("V", bound=Verdict)


class JobNeverStarted(Exception):
    """The job gives no log. `reasons`: one finding each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class LogLost(Exception):
    """The log is not available, or not in time; the text says why."""


class JobLog(Protocol):
    """The log of a job that has started."""

    def lines(self) -> Iterator[bytes]:
        """Every line to the end of the job. Raises LogLost."""

    @property
    def doubt(self) -> str | None:
        """Why lines may be missing unnoticed; None where none can be."""


class Job(Protocol):
    """A job as its scheduler shows it. Methods raise the errors of its API if nothing is known."""

    name: str

    def uid(self) -> str:
        """The uid of this run of the job. Raises JobNeverStarted if there is no such job."""

    def log(self) -> JobLog:
        """Wait until there is a log. Raises JobNeverStarted if there will be none."""

    def outcome(self, wait_seconds: float = ...) -> JobOutcome:
        """The outcome of the job; unknown if it is not recorded after `wait_seconds`."""

    def suspend(self) -> None:
        """Stop a job that has not ended, so that it releases its GPUs."""


class Collector(ABC, Generic[Log, V]):
    """One gate's way from a job to a verdict. A job without a log has a verdict too, and it is not a pass."""

    cause_of_loss = ""
    """Cause and fix, printed after "n lines were read" if the log says that there were more."""

    def __init__(self, job: Job, archive: Archive, progress: Callable[[str], None]) -> None:
        self.job = job
        self.archive = archive
        self.progress = progress

    @abstractmethod
    def read(self, lines: Iterable[bytes]) -> Log:
        """Read the lines of a log to their end."""

    @abstractmethod
    def judge(self, log: Log, outcome: JobOutcome, missing: Sequence[str] = ()) -> V:
        """Judge a log. `missing`: the parts of it that could not be read, one sentence each."""

    def progress_text(self, line: bytes) -> str | None:
        """The text to show of a line while a user waits; None for nothing."""
        return None

    @abstractmethod
    def report(self, verdict: V) -> str:
        """Write the files beside log and verdict. Returns a short text: the result, and where it is."""

    def stored(self, uid: str) -> V | None:
        """A verdict kept elsewhere, other than unknown, on the complete log of this run of the job."""
        return None

    def store(self, uid: str, verdict: V) -> None:
        """Keep a new verdict elsewhere too."""

    def nothing_kept(self) -> None:
        """Called where neither a log nor a verdict on this job is kept. It may raise to end the command."""

    def never_started(self, never: JobNeverStarted) -> JobOutcome:
        """The outcome of a job that exists but gives no log."""
        return JobOutcome(None, never.reasons)

    def run(self) -> V:
        """Collect and return the verdict. Log and verdict are kept in the archive. Raises as `job` does."""
        try:
            uid = self.job.uid()
        except JobNeverStarted as never:
            self.nothing_kept()
            return self._keep(self._without_log(JobOutcome(None, never.reasons)))
        if found := self.stored(uid):
            return self._keep(found)
        judged = self._judge_archived(uid)
        if judged is None:
            self.nothing_kept()
            judged = self._measure(uid)
        verdict = self._keep(judged)
        self.store(uid, verdict)
        return verdict

    def outcome_or_suspend(self, **wait: float) -> JobOutcome:
        """The outcome. A job without one is suspended, so that it releases its GPUs."""
        outcome = self.job.outcome(**wait)
        if outcome.succeeded is None:
            self.job.suspend()
        return outcome

    def _judge_archived(self, uid: str) -> V | None:
        """Judge the archived log of this job, if there is one: the expectation or the judge has changed."""
        if self.archive.complete_log_of != uid:
            return None
        self.progress(f"{self.job.name}: judging the archived log again")
        try:
            log = self.read(self.archive.log_lines())
        except (OSError, EOFError, ZstdError) as error:
            self.progress(f"{self.archive.log} cannot be read: {error}")
            return None
        return self.judge(log, self.job.outcome())

    def _measure(self, uid: str) -> V:
        try:
            log = self.job.log()
        except JobNeverStarted as never:
            return self._without_log(self.never_started(never))
        lost: list[str] = []
        with self.archive.new_log() as sink:
            recording = Recording(sink, self.progress, self.progress_text, self.cause_of_loss)
            read = self.read(recording.tee(_until_lost(log, lost)))
        outcome = self.outcome_or_suspend(wait_seconds=0) if lost else self.outcome_or_suspend()
        if not outcome.succeeded:
            outcome = JobOutcome(outcome.succeeded, (*recording.errors, *outcome.reasons))
        missing = [*lost, *recording.missing]
        if log.doubt and not recording.counted:
            missing.append(log.doubt)
        if not missing:
            self.archive.mark_complete(uid)
        return self.judge(read, outcome, missing)

    def _without_log(self, outcome: JobOutcome) -> V:
        return self.judge(self.read(()), outcome).without_log(outcome)

    def _keep(self, verdict: V) -> V:
        """Write the verdict beside the log, and announce it."""
        self.archive.save_verdict(verdict.model_dump(mode="json"))
        self.progress(f"{verdict.verdict}: {self.report(verdict)}")
        for reason in verdict.reasons:
            self.progress(f"  {reason}")
        return verdict


def _until_lost(log: JobLog, lost: list[str]) -> Iterator[bytes]:
    try:
        yield from log.lines()
    except LogLost as error:
        lost.append(str(error))
