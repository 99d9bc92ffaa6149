"""The log of a training run: the program's records as values, and NCCL's messages read by busbar.judge.nccl.

The program is stacks/training/program; rank 0 prints one JSON object per line. A run consists of attempts:
torchrun restarts the ranks after one was killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from busbar.judge.nccl.log.reader import LogReader, ParsedLog
from busbar.judge.nccl.log.source import Source

SCHEMA = 1
"""The schema of the supported records, which this version of the program prints."""

RECORD = b'{"busbar_training":'
NCCL_HEAD = b'{"busbar_training_nccl":'
_BLOCK = 1 << 18
MAX_PROBLEMS = 8

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has characters that a terminal obeys")
    return text


Text = Annotated[str, AfterValidator(_printable)]


class Record(BaseModel):
    """Base of all records: exactly the fields that the program prints."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Start(Record):
    """The start of an attempt. `gradient_bytes`: size of one all-reduce of all gradients."""

    busbar_training: Literal["start"]
    schema_: int = Field(alias="schema")
    backend: Literal["nccl", "gloo"]
    world_size: Annotated[int, Field(ge=1)]
    gradient_bytes: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    torch: Text


class Host(Record):
    """The ranks of one pod: `ranks` of them, from `first_rank` on. `node` is empty outside of a cluster."""

    busbar_training: Literal["host"]
    node: Text
    pod: Text
    device: Text
    first_rank: Count
    ranks: Annotated[int, Field(ge=1)]


class Resume(Record):
    """The state after `step` was loaded. `files`: sha256 of the file as hosts see it -> number of hosts."""

    busbar_training: Literal["resume"]
    step: Count
    sha256: Text
    files: dict[Text, Count]


class Step(Record):
    """One step: mean loss of all ranks, and the number of ranks per digest of all gradients.

    A loss that is not finite is printed as a text.
    """

    busbar_training: Literal["step"]
    step: Count
    loss: float | Text
    distinct_losses: Count
    gradients: dict[Text, Count]


class Checkpoint(Record):
    """A checkpoint is on the disk."""

    busbar_training: Literal["checkpoint"]
    step: Count
    bytes: Count
    seconds: Seconds
    sha256: Text


class Kill(Record):
    """A rank is about to be killed."""

    busbar_training: Literal["kill"]
    rank: Count


class Timing(Record):
    """Samples in seconds, each of the slowest rank; `wrong`: elements of the all-reduce with a wrong sum."""

    busbar_training: Literal["timing"]
    bytes: Annotated[int, Field(ge=1)]
    step_s: Annotated[list[Seconds], Field(min_length=1)]
    compute_s: Annotated[list[Seconds], Field(min_length=1)]
    allreduce_s: Annotated[list[Seconds], Field(min_length=1)]
    wrong: Count


class End(Record):
    """The end of a complete run, with the number of ranks per digest of all parameters."""

    busbar_training: Literal["end"]
    step: Count
    parameters: dict[Text, Count]


AnyRecord = Annotated[
    Start | Host | Resume | Step | Checkpoint | Kill | Timing | End, Field(discriminator="busbar_training")
]
_RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


@dataclass
class Attempt:
    """The part of a run from one start of all ranks to the next.

    `nccl`: NCCL's messages up to the kill of a rank; later ones are the other ranks' reaction to the kill,
    and say nothing of the fabric. `nccl_ranks`: the ranks whose messages were printed.
    """

    start: Start
    nccl: ParsedLog
    hosts: list[Host] = field(default_factory=list)
    resume: Resume | None = None
    steps: list[Step] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    kill: Kill | None = None
    timing: Timing | None = None
    end: End | None = None
    nccl_ranks: set[int] = field(default_factory=set)


@dataclass
class TrainingLog:
    """A whole log. `before`: the lines before the first start. `problems`: one sentence each."""

    before: ParsedLog
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lines: int = 0

    def problem(self, text: str) -> None:
        """Note a problem, unless there are many."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def read_lines(lines: Iterable[bytes]) -> TrainingLog:
    """Read the lines of a log in one pass; NCCL's messages are not kept."""
    reader = _Reader()
    for line in lines:
        reader.line(line)
    reader.end_part()
    return reader.log


class _Reader:
    """Reads lines into `log`, whose last attempt is the one that they belong to."""

    def __init__(self) -> None:
        self._nccl = _NcclPart()
        self.log = TrainingLog(before=self._nccl.finish())
        self._announced: tuple[int, int, int] | None = None  # rank, lines and bytes that follow

    def line(self, line: bytes) -> None:
        self.log.lines += 1
        # Another process of the pod may have left its line unfinished.
        at = max(line.find(RECORD), line.find(NCCL_HEAD))
        self._nccl.add(line if at < 0 else line[:at])
        if at < 0:
            return
        self._compare()
        if line.startswith(RECORD, at):
            self._record(line[at:])
        else:
            self._messages_follow(line[at:])

    def end_part(self) -> None:
        """Take what NCCL has written since the last start, unless a rank was killed since then."""
        self._compare()
        read = self._nccl.finish()
        if not self.log.attempts:
            self.log.before = read
        elif self.log.attempts[-1].kill is None:
            self.log.attempts[-1].nccl = read

    def _record(self, line: bytes) -> None:
        attempts, where = self.log.attempts, f"line {self.log.lines}"
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            self.log.problem(f"{where} is not a record: {error.errors()[0]['msg']}")
            return
        name = record.busbar_training
        if isinstance(record, Start):
            self.end_part()
            attempts.append(Attempt(record, self._nccl.finish()))
        elif not attempts:
            self.log.problem(f"{where}: a record before the first start")
        elif isinstance(record, Host):
            attempts[-1].hosts.append(record)
        elif isinstance(record, Step):
            attempts[-1].steps.append(record)
        else:
            if getattr(attempts[-1], name) is not None:
                self.log.problem(f"{where}: a second {name} after one start")
            setattr(attempts[-1], name, record)
            if isinstance(record, Kill):
                attempts[-1].nccl = self._nccl.finish()

    def _messages_follow(self, line: bytes) -> None:
        """Take the header of one rank's messages: the rank, and the number of lines and bytes."""
        try:
            head: Any = json.loads(line)
            self._announced = int(head["busbar_training_nccl"]), int(head["lines"]), int(head["bytes"])
        except (ValueError, KeyError, TypeError):
            self.log.problem(f"line {self.log.lines} is not the head of a rank's messages")
        self._nccl.lines = self._nccl.bytes = 0

    def _compare(self) -> None:
        """Compare the numbers in a header with the lines after it."""
        if self._announced is None:
            return
        (rank, lines, size), self._announced = self._announced, None
        found = self._nccl
        if not self.log.attempts or found.lines < lines or found.bytes < size:
            wrote = f"rank {rank} wrote {lines} lines ({size} bytes) of NCCL messages"
            self.log.problem(f"{wrote}, {found.lines} lines ({found.bytes} bytes) are there")
        else:
            self.log.attempts[-1].nccl_ranks.add(rank)


class _NcclPart:
    """Feeds the lines of one attempt to busbar.judge.nccl, in blocks; counts `lines` and `bytes`."""

    def __init__(self) -> None:
        self._reader = LogReader(measured=True)
        self._block = bytearray()
        self.lines = self.bytes = 0

    def add(self, line: bytes) -> None:
        """Take one line; an empty one is dropped."""
        if not line.strip():
            return
        whole = line.rstrip(b"\r\n") + b"\n"
        self._block += whole
        self.lines += 1
        self.bytes += len(whole)
        if len(self._block) >= _BLOCK:
            self._flush()

    def finish(self) -> ParsedLog:
        """Return the log that was read; the next line begins another part."""
        self._flush()
        read = self._reader.result(Source())
        self._reader = LogReader(measured=True)
        return read

    def _flush(self) -> None:
        if self._block:
            self._reader.block(bytes(self._block))
            self._block.clear()


def progress_text(line: bytes) -> str | None:
    """The progress text for a line: a start, a kill, every tenth step; None for any other line."""
    if not line.startswith(RECORD):
        return None
    try:
        record = _RECORD.validate_json(line)
    except ValidationError:
        return None  # the reader reports it
    match record:
        case Start():
            return f"{record.world_size} ranks start, {record.backend}"
        case Resume():
            return f"resumed from step {record.step}"
        case Kill():
            return f"rank {record.rank} is killed"
        case Step() if record.step % 10 == 0:
            return f"step {record.step}: loss {record.loss}"
        case _:
            return None
