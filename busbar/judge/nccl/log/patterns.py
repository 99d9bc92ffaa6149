"""Named patterns of nccl-tests and NCCL, each beside an example of the line it reads.

Sources: NVIDIA/nccl-tests src/common.cu and src/util.cu; NVIDIA/nccl src/init.cc, src/transport/*.cc.
"""

from __future__ import annotations

import re
from typing import NamedTuple


def _ascii(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile PATTERN with the digits, letters and blanks of ASCII: the programs print no others."""
    return re.compile(pattern, re.ASCII | flags)


# bytes of each type that nccl-tests prints
BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float", "int"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
TYPES = "|".join(sorted(BYTES, key=len, reverse=True))

# ---- nccl-tests ------------------------------------------------------------------------------------------
# # nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
TESTS_VERSION = _ascii(r"#\s*(?:nccl|rccl)-tests version (\S+)(?:.* nccl-library=(\d{1,7}))?")
# # Collective test starting: all_reduce_perf
STARTING = _ascii(r"#\s*Collective test starting:\s*(\S+)")
# # Collective test concluded: all_reduce_perf
CONCLUDED = _ascii(r"#\s*Collective test concluded:\s*(\S+)")
# # nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 ..
# # nGpus(perProc) 1 minBytes 1 maxBytes 1073741824 step: 2(factor) ...          (a fork)
BANNER = _ascii(
    r"#.*\bminBytes (?P<min>\d+) maxBytes (?P<max>\d+) step: (?P<step>\d+)\((?P<by>factor|bytes)\)"
)
VALIDATION = _ascii(r"validation: (\d+)")
WARMUP = _ascii(r"\bwarmup iters: (\d+)")
ITERATIONS = _ascii(r"(?<!warmup )(?<!agg )\biters: (\d+)")
PER_PROCESS = _ascii(r"#\s*(?:nThread (?P<threads>\d+) )?nGpus(?:\(perProc\))? (?P<gpus>\d+) ")
# #  Rank  0 Group  0 Pid 1904979 on     gcn151 device  0 [0000:06:00] NVIDIA H100
# #   Rank  0 Pid 112424 on localhost device  0 [0x00] A100-SXM4-40GB
RANK = _ascii(
    r"#\s+Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)"
    r"\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]\s*(?P<gpu>.*)"
)
# # Reducing maxBytes to 26549638485 due to memory limitation
REDUCING = _ascii(r"#\s*Reducing maxBytes to (\d+)")
# #       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
HEADER = _ascii(
    r"#\s+size\s+count\s+type\b(?P<middle>(?:\s+\w+){0,2}?)\s+(?P<time>(?:cpu)?time)\s+algbw\s+busbw\s+"
    r"(?P<error>#wrong|error)\b"
)
# #        (B)    (elements)                               (us)  (GB/s)  (GB/s)         (us)  (GB/s) ..
UNITS = re.compile(r"#\s*\([^)]{1,9}\)\s+\(elements\)")
# the only units in which a table can be read
OTHER_UNIT = re.compile(r"\((?!(?:B|bytes|elements|us|GB/s|%)\))[^)]*\)")
# # Out of bounds values : 0 OK
OUT_OF_BOUNDS = _ascii(r"#\s*Out of bounds values\s*:\s*(\d+)(?:\s+(OK|FAILED)(?!\w))?")
# # Bitwise mismatches   : 0 OK                      nccl-tests >= 2.20 with its bitwise check
BITWISE = _ascii(r"#\s*Bitwise mismatches\s*:\s*(\d+)(?:\s+(OK|FAILED)(?!\w))?")
# # Avg bus bandwidth    : 96.4945
AVG = _ascii(r"#\s*Avg bus bandwidth\s*:\s*(\S+)(?:\s+(OK|FAILED)(?!\w))?")
#   2147483648     536870912     float     sum      -1    10317  208.15  390.29      0    10317  208.15 ...
ROW = _ascii(rf"(?<![\w.])(\d+)\s+(\d+)\s+({TYPES})(?=\s)(.*)$")
# the same row cut off after its root, with NCCL's text attached: `float     sum      -1gcn151:19:..`
ROW_START = _ascii(rf"(?<![\w.])(\d+)\s+(\d+)\s+({TYPES})(?=\s|$)(.*)$")


def row_start(text: str) -> re.Match[str] | None:
    """The first row in TEXT, as a match of ROW_START."""
    # looking for a type is quicker than trying every number
    return ROW_START.search(text) if ANY_TYPE.search(text) is not None else None


ANY_TYPE = _ascii(TYPES)
# 10317 | 208.15 | 1.2e+08 | N/A | nan | inf
VALUE = _ascii(r"^(?:[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?%?|N/A|-?nan|-?inf)$")
# ... 0 2026-05-05 06:16:47                 -S 1
STAMP = _ascii(r"\s\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S{0,40}$")

# 2026-05-05 06:16:47 | 2026-05-05T06:16:47Z | Mon Sep  2 10:00:00 2024
# for a block of lines; the pattern begins with a literal, so that a whole log is searched quickly
_DATE = re.compile(
    rb"20\d\d(?<!\d20\d\d)(?:-[01]\d-[0-3]\d[T ][0-2]\d:[0-5]\d:[0-5]\d(?!\d)|(?!\d)"
    rb"(?<=(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d [0-2]\d:[0-5]\d:[0-5]\d 20\d\d))"
)


def date_in(block: bytes) -> str | None:
    """The first date with a time in BLOCK, as printed."""
    found = _DATE.search(block)
    if found is None:
        return None
    begin = found.start() if len(found[0]) > 4 else found.end() - len("Mon Sep  2 10:00:00 2024")
    return block[begin : found.end()].decode("ascii")


# mpirun -np 2 ./build/all_reduce_perf -b 8 -e 256M       a shell line, an xtrace
COMMAND = _ascii(
    r"(?<!\w)((?:all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv"
    r"|hypercube)_perf(?:_mpi)?)(?!\w)"
)

# mpirun -np 16 | srun -n16 | srun --ntasks=16
ASKED_PROCESSES = _ascii(r"\b(?:mpirun|mpiexec|prterun|srun)\b.*\s(?:-np?|--ntasks)[ =]?(\d{1,6})\s")
# srun -N 2 | srun --nodes=2
ASKED_NODES = _ascii(r"\bsrun\b.*\s(?:-N|--nodes)[ =]?(\d{1,6})\s")
# all_reduce_perf -b 512M -e 8G
ASKED_LOW = _ascii(r"\s(?:-b|--minbytes)[ =]?(\d{1,15}[KMGkmg]?)(?:\s|$)")
ASKED_HIGH = _ascii(r"\s(?:-e|--maxbytes)[ =]?(\d{1,15}[KMGkmg]?)(?:\s|$)")

# ---- NCCL ------------------------------------------------------------------------------------------------
# NCCL version 2.19.3+cuda12.2                       bare, rank 0, NCCL <= 2.21
# ... NCCL INFO NCCL version 2.22.3+cuda12.6          each process, from 2.22
NCCL_VERSION = _ascii(r"(?:^|\s)(?:NCCL|RCCL) version[ :]+v?(\d+\.\d+[\w.+\-]*)")
# [0]mlx5_0_dma:1/IB: the interface of Data Direct (ConnectX-8); [0]mlx5_0:1:3:0/IB: with its rail and plane
HCA = _ascii(r"\[(?P<device>\d+)\]\s?(?P<name>[\w.\-]+?)(?:_dma)?:(?P<port>\d+)[:\d]*/(?P<layer>IB|RoCE)")
# Channel 07/0 : 6[6] -> 15[7] [receive] via NET/IBext/3/GDRDMA
# Ring 00 : 0 -> 1 [send] via NET/Socket/0         NCCL <= 2.4
# CollNet 00/0 : 3 [send] via COLLNET/SHARP/0
_EDGE = (
    rb"(?P<link>(?:Channel|Ring|Coll|CollNet|Tree) (?P<channel>\d{1,4})(?:/(?P<connection>\d{1,4}))? : "
    rb"(?P<source>\d{1,6})(?:\[\w{1,20}\])?(?: -> (?P<target>\d{1,6})(?:\[\w{1,20}\])?)?)"
    rb"(?: \[(?P<direction>send|receive)\])? via (?P<transport>.+)"
)
EDGE = re.compile(_EDGE, re.DOTALL)
# gcn151:1904979:1905031 [0] NCCL INFO Using network IB                 an edge, or any other message
INFO = b" NCCL INFO "
MESSAGE = re.compile(
    rb"(?!\d\d:\d\d:\d\d )(?P<host>[A-Za-z0-9_][\w.\-]{0,254}):(?P<pid>\d{1,20}):\d{1,20} \[-?\d{0,9}\]"
    rb" NCCL INFO (?:" + _EDGE + rb")?",
    re.DOTALL,
)
# NET/IBext/3/GDRDMA | NET/AWS Libfabric/0(8)/GDRDMA/Shared | P2P/CUMEM/read | SHM/direct/direct
# P2P/IPC/read comm 0x7f2e5c001000 nRanks 16       NCCL 2.12
TRANSPORT = _ascii(
    r"(?:(?P<net>NET|COLLNET)/(?P<name>[^/\n]+)/(?P<dev>\d{1,4})(?:\(\d{1,6}\))?(?P<gdr>/GDRDMA)?"
    r"(?P<pci>\(PCI\))?(?P<shared>/Shared)?"
    r"|(?P<p2p>P2P/(?:direct pointer|[A-Za-z]+)(?:/[A-Za-z]+)*)(?:/\d+\[\w+\])?"
    r"|(?P<shm>SHM(?:/[A-Za-z]+)*|direct shared memory))"
    r"(?: comm 0x[0-9a-f]+ nRanks \d+)?\.?\s*",
)
# texts that count as unread if they have no known form; each must contain its middle part
UNREAD = (
    # ... via NET/IBext/3                               a transport
    (r"\b", "via ", r"(?:NET|COLLNET|P2P|SHM|direct)\b"),
    (r"\[(?:send|receive)\] ", "via ", ""),
    # but not 0 : NET/0 GPU/0 GPU/7, as the subsystem GRAPH prints
    ("", "NET/", r"[A-Za-z][\w ]{0,39}/\d+(?![.\d])"),
    # Channel 00/0 : 0[0] -> 1[1]                       a link, but not Ring 00 : 15 -> 0 -> 7
    (r"(?<!\d)\d{1,9} : \d{1,9}(?:\[\w{1,20}\])?", " -> ", r"\d+(?!\d| -> [-\d/>\s]*$)"),
)
VIA_TRANSPORT = _ascii("|".join(before + re.escape(text) + behind for before, text, behind in UNREAD))
# worker-0:40:90 [0] ...                             a process of NCCL, whatever it says
PROCESS = _ascii(r"(?<![\w.\-])[A-Za-z0-9_][\w.\-]{0,254}:\d+:\d+ \[-?\d*\] ")
PROCESS_END = _ascii(r":\d+:\d+ \[")  # of each process: begins with a literal, so it is looked for quickly
LEVEL = _ascii(r"NCCL +(?:INFO|WARN)")


def names_transport(text: str) -> bool:
    """Whether TEXT names a transport or a link, in any form."""
    return any(word in text for _, word, _ in UNREAD) and VIA_TRANSPORT.search(text) is not None


def names_process(text: str) -> bool:
    """Whether TEXT contains a prefix with which processes of NCCL begin their messages."""
    return PROCESS_END.search(text) is not None and PROCESS.search(text) is not None


# nccl-gib-test-4w-3: Test CUDA failure common.cu:1030 'invalid device ordinal'
TEST_FAILURE = _ascii(r"Test (?:CUDA|NCCL|HIP|RCCL) failure \S{1,200}:\d+ '.*")
# [1764061200.2] [worker-1:43:0]  ucp_worker.c:1888 UCX  INFO  ep_cfg[3]: tag(tcp/eth0 tcp/eth1) rma(tcp/eth0)
UCX_OVER_TCP = _ascii(r"\bUCX +INFO .{0,200}?\((?:tcp/\S{1,40} ?){1,16}\)")
# worker-0   1/1   Running   0   61s   10.42.1.17   gpu-7               kubectl get pods -o wide
# Successfully assigned default/worker-0 to gpu-7                        an event of its scheduler
POD = _ascii(
    r"(?:^|\s)(?:(?P<pod>[\w.\-]+)\s+\d+/\d+\s+Running\s+\d+(?: \(\w+ ago\))?\s+\w+\s+[\da-f.:]+\s+"
    r"(?P<node>[\w.\-]+)"
    r"|Successfully assigned (?:[\w.\-]+/)?(?P<assigned>[\w.\-]+) to (?P<to>[\w.\-]+))"
)
# # busbar: open files on gpu-7: soft 1024, hard 524288
OPEN_FILES = _ascii(r"# busbar: open files on (?P<host>[\w.\-]+): (?P<limits>soft (?P<soft>\w+), hard \w+)$")
# # simulated: CPU program in place of nccl-tests
SIMULATED = _ascii(r"#\s*simulated:\s*(\S.*)")

# ---- messages of NCCL, and the process that printed each ---------------------------------------------------
# gcn151:1904979:1905031 [0] NCCL INFO Using network IB
# mycl-g2:353236:353423 [6] transport/net_ib.cc:2244 NCCL WARN NET/IB: Got completion ...
# NCCL INFO NCCL_TOPO_FILE set by environment to /opt/x.xml         (pasted without its process)
NAME = "NCCL "
WORDS = ("NCCL INFO ", "NCCL WARN ", "NCCL ATTN ", "NCCL ERROR ", "NCCL TRACE ", "NCCL CALL ", "NCCL DIAG ")
# (ncclIbGetDevices): a function, in front of WARN since 2.30.7; 12.345678: the time of a TRACE
_BETWEEN = r"(?:(?:\([\w:~<>,]{1,200}\)|\d+\.\d+) )?"
_PLACE = r"(?:(?:\S+|\w[\w:~<>*& ]{0,150}\([\w:~<>,*& ]{0,200}\)):\d+ )?"  # net.cc:12, or int f(fid_cq*):46
BEFORE = _ascii(
    r"(?:(?<![\w.\-])[.\-]*(?P<host>\w[\w.\-]*):(?P<pid>\d+)(?::\d+)? \[-?\d*\] )?"
    rf"(?<!\S)(?:\[?\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\]? )?{_BETWEEN}{_PLACE}{_BETWEEN}\Z"
)
LONGEST = 400  # host, process, time and source file fit into this


class Message(NamedTuple):
    """A message in a line: its `start`, where its text begins (`end`), level, host and pid as printed.

    Host and pid are None where they were not printed; else the host's name is at the start.
    """

    start: int
    end: int
    level: str
    host: str | None = None
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
    found = BEFORE.search(text, max(start, at - LONGEST), at)
    if found is None:
        return Message(at, end, level)
    start = found.start("host") if found["host"] else found.start()
    return Message(start, end, level, found["host"], found["pid"])
