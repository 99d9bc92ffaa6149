"""The shapes of unusual lines, which decide only where they disturb the rows or end the run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from busbar.judge.nccl.log.records import LogLine

Sort = Literal["error", "warn", "kernel", "other"]  # who prints it: NCCL (two levels), the kernel, others
Decides = Literal["disturbed", "ended badly", "fault", ""]  # what it means for the run; "": a remark only


@dataclass(slots=True)
class Unusual:
    """A line that no rule knows, the first of `count` that differ only in numbers."""

    sort: Sort
    decides: Decides
    first: LogLine
    count: int = 1
    about_hardware: bool = True  # it names a GPU, an HCA or their software; a host's name may do as well


LEVELS: dict[str, Sort] = {"ERROR": "error", "WARN": "warn", "ATTN": "warn"}
LAST_WARNING = "# error: "  # the last one of NCCL, as nccl-tests 2.17.3 and later print it at the end
# [ 8812.11] mlx5_core 0000:5d:00.0: ..; gpu-a kernel: ..
KERNEL = re.compile(r"(?:^.{0,80}\bkernel: ?|^)(?:<\d+>)?\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? |\bkernel: ")
# drivers of GPUs, HCAs, bridges and memory, and watchdogs
DRIVER = re.compile(
    r"(?i)\bnvidia|\bNVRM\b|\bamdgpu|\bmlx[45]|\bbnxt|\birdma\b|\befa\b|\bib_\w|infiniband|\bice\b|pcie|\bAER\b|"
    r"\bDMAR\b|iommu|AMD-Vi|\bEDAC\b|\bmce\b|machine check|hardware error|memory failure|watchdog|lockup|"
    r"blocked for more|\brcu\b|\bhung\b|nvswitch|nvlink"
)
# not gpu-7, the name of a host, and not port 22
HARDWARE = re.compile(
    r"(?i)\bgpus?\b(?!-)|nvml|nvidia|nvlink|nvswitch|fabric|peermem|infiniband|rdma|\bhcas?\b|mlx\d|bnxt|"
    r"\befa|\broce|\becc\b|imex|dcgm|cuda|uncorrectable|\bport\b(?! \d{2})|"
    r"\bstate:(?! +Terminated)|slowdown|throttl|\bbrake\b|\bcable|\blinks?\b"
)
# what a program says of itself: warnings, commands, settings, tries, and libraries that carry no data of NCCL
OWN_TROUBLE = re.compile(
    r"(?i)^\+|^(?:export |declare -x )?\w+=|\bwarn|\bINFO\b|\bskip|fall(?:s|ing)? ?back|shared object|"
    r"\bdisabled\b|config|\bretr(?:y|ie)|\bwait|\bUCX\b|\blibfabric|\bOpen ?MPI\b|\bmca_|openib|help message"
)
# words that name a thing to look at, and no finding: "Checking NVLink errors"
NOUNS = re.compile(r"(?i)(?<![a-z])(?:errors?|failures?|faults?|timeouts?|limits?|replay|recovery)(?![a-z!])")
SEVERITY = re.compile(r"\bERROR\b[\]:]")
WORDS = (
    "fail|fails|failed|failing|failure|failures|error|errors|err|errno|fatal|fault|faulty|exception|"
    "panic|panicked|abort|aborted|aborting|kill|killed|killing|crash|crashed|died|dead|dumped|segfault|"
    "assertion|signal|terminated|terminating|termination|interrupted|stopped|gone|vanished|lost|"
    "missing|mismatch|mismatched|mismatches|refused|denied|unable|cannot|invalid|broken|dropped|closed|"
    "reset|disconnected|unreachable|unresponsive|unavailable|unhandled|unexpected|unexpectedly|"
    "abnormal|abnormally|evicted|eviction|preempted|preemption|cancelled|canceled|revoked|requeued|"
    "expired|exceeded|limit|timeout|oom|corrupt|corrupted|corruption|compromised|degraded|unhealthy|"
    "uncorrectable|replay|recovery|failover|pending|inactive|disabled|down|notready|polling|"
    "initializing|slowdown|throttled|throttling|brake|hung|stuck|deadlock|lockup"
)
PHRASES = (
    r"can.t|couldn.t|could not|gave up|no space left|out of memory|bad_alloc|non-?zero|timed? ?out|"
    r"shut(?:ting)? ?down|not (?:running|found|available|responding|healthy|ready|permitted)|"
    r"(?<!, )not active|(?<=, )active, not active|not active, active|"
    r"econn[a-z]+|sig(?:term|kill|segv|abrt|bus|int|hup)"
)
# a word of failure, a value that could not be read, or a part of a number that should be whole
FAILURE = re.compile(rf"(?i)(?<![a-z])(?:{WORDS}|{PHRASES})(?![a-z])|\bERR!|\b(\d+) of (?!\1\b)\d+")
# a value that says that all is well
WELL = re.compile(
    r"(?i)(?:[:=]\s*|\.\.\.? ?)"
    r"(?:0x0+|0+|no|none|n/a|false|ok|done|pass(?:ed)?|not active|off|on|enabled|\[ *\]|\{ *\})[\s,;.)|\"']*$"
)
COUNTER = re.compile(r"(?:=\s*|:\s+|[a-z]{2}[\"']?:)[\"']?(-?\d+(?:\.\d+)?)\b")
BESIDE = re.compile(
    r"(?i)(?:fail|err|kill|los|crash|abort|oom|dead|drop|missing|time.?out|hung|exceed)[a-z]*\W{1,4}(\d+)\b|"
    r"\b(\d+) (?:fail[a-z]*|errors?)"
)
NUMBER = re.compile(r"(?<![\w.:/-])-?\d+(?:\.\d+)?(?![\w:/-])")
HEADING = re.compile(
    r"[^\d:]*(?:\b(?:Errors|Failures|Faults|Reasons|Pages|Rows):?|: ?[\[{])"
    r"|(?:[a-z_.]+(?: \[\S+\])?(?:, |$)){3,}"  # the first line of a CSV
)
# bash: line 1:  41 Killed   ./all_reduce_perf -b 8, in any language
SHELL_END = re.compile(r"[^\s:]{1,200} ?: (?:\S+ \d+|\d+ \S+) ?: +\d{2,} +[^\d\s].*")
BACKGROUND_END = re.compile(r"\[\d+\][+-]? +(?:\d+ )?(?!Done\b(?!\()|Running\b)\S.*? {2,}\S.*")
# the program of a table, and what starts it
PROGRAM = re.compile(r"_perf\b|\b(?:mpirun|mpiexec|prterun|orterun|srun|torchrun)\b")
ENDED = re.compile(
    r"(?i)(?<![a-z])(?:exit(?:s|ed|ing)?|return(?:s|ed)?|died|finish(?:es|ed)|complet\w+|terminat\w+|end(?:s|ed)|stop(?:s|ped)|"
    r"received|got|caught|fail\w*|quit|kill\w*|error|rc|retcode|retval|exitcode)(?![a-z])"
)
CODE = re.compile(
    r"(?i)(?<![a-z])(?:exit(?:ed)?|code|status|rc|signal|errno|retcode|retval|exitcode)\b[\"')]?\W{0,4}"
    r"(?:(?:is|was|of|with) )?-?0*[1-9]\d*\b"
)
# the status of a request, and the end of a worker's sshd, whose pod is deleted, are no end of a program
NO_END = re.compile(r"\bHTTP\b|\b(?:GET|POST|PUT|HEAD) /|Received signal 15; terminating\.$")
LINES = r"(?:messages|lines|records|log|log entries|entries)"
LOST = r"(?:dropped|lost|missed|suppressed|skipped)"
MISSING = re.compile(
    rf"(?i)\b{LOST} \d+ {LINES}\b|\b\d+ {LINES} (?:were |have been )?{LOST}\b|\bbuffer (?:is |was )?full\b"
)
VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")
PREFIX = re.compile(r"^.{0,300}?NCCL (?:ERROR|WARN|ATTN) ")


def form(text: str) -> str:
    """TEXT without what differs from rank to rank: its process and place, and all numbers."""
    return VARIES.sub("#", PREFIX.sub("", text))


def sort_of(text: str, level: str | None) -> Sort | None:
    """The source that prints TEXT, if it is unusual wherever it stands."""
    if level is not None:
        return LEVELS.get(level)
    if text.startswith(LAST_WARNING):
        return "warn"
    kernel = KERNEL.search(text)
    return "kernel" if kernel is not None and DRIVER.search(text, kernel.end()) is not None else None


def is_end(text: str) -> bool:
    """True if a shell says in TEXT that a process ended by a signal or with an error."""
    return SHELL_END.fullmatch(text) is not None or BACKGROUND_END.fullmatch(text) is not None


def ends_the_run(text: str) -> bool:
    """True if TEXT says that the program or its launcher ended by a signal or with a code that is not 0."""
    if is_end(text):
        return PROGRAM.search(text) is not None
    return bool(CODE.search(text) and ENDED.search(text)) and NO_END.search(text) is None


def names_failure(text: str) -> bool:
    """True if TEXT has a word of failure and is neither a counter of 0 nor a heading."""
    if FAILURE.search(text) is None or HEADING.fullmatch(text) is not None:
        return False
    beside = ["".join(each) for each in BESIDE.findall(text)]
    counted = beside or COUNTER.findall(text)
    if not counted and WELL.search(text) is not None:
        return False
    counted = counted or NUMBER.findall(text)
    return not counted or any(float(number) for number in counted)


def is_fault(text: str) -> bool:
    """True if TEXT says that a GPU, an HCA or a link is not well, as a tool or a check prints it."""
    if HARDWARE.search(text) is None or OWN_TROUBLE.search(text) is not None or not names_failure(text):
        return False
    counted = BESIDE.search(text) or COUNTER.search(text)
    return bool(counted or SEVERITY.search(text) or FAILURE.search(NOUNS.sub("", text)))
