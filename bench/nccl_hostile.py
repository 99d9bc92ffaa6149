"""CPU seconds and memory of a verdict on 200 kB of each hostile shape of line, and on 8,000 hosts.

    python bench/nccl_hostile.py

Beside them the factor by which a quarter of the bytes is faster: 4 is linear. A shape that costs many times
as much in long lines as in short ones is quadratic: lines are cut at 8 KiB when they are read. Slowest first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))
from busbar.judge.nccl import Expectation, judge
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
LINE = {"short lines": 200, "long lines": 8000}
INFO = "worker-0:40:90 [0] NCCL INFO "
EDGE = f"{INFO}Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"


def repeated(word: str, behind: str = "") -> Callable[[int, int], str]:
    """Lines of WORD again and again; they differ, so that none is remembered."""
    return lambda i, size: f"{i} " + word * (size // len(word)) + behind


SHAPES: dict[str, Callable[[int, int], str]] = {
    "blanks": repeated(" ", "x"),
    "a word": repeated("a"),
    "a word before a message": repeated("a", " NCCL INFO x"),
    "words": repeated("word "),
    "digits": repeated("1"),
    "numbers": repeated("1 "),
    "numbers before a type": repeated("1 ", "float"),
    "quotes": repeated("Test CUDA failure x:1 '"),
    "braces": lambda i, size: '{"log":' + "[" * size,
    "docker's braces": lambda i, size: '{"log":' * (size // 7),
    "brackets": repeated("[", "]<stdout>:"),
    "tags": repeated("[1,0]<stdout>:"),
    "colons": repeated("a:", " NCCL INFO x"),
    "processes": repeated("a:1:1 [0] "),
    "message words": repeated("NCCL INFO "),
    "glued messages": repeated(f"{INFO}x"),
    "glued edges": repeated(EDGE),
    "half edges": repeated("0 : 0[0"),
    "transports": repeated(" via NET/"),
    "dates": repeated("2024-01-01 00:00:00 "),
    "comments": repeated("# "),
    "escapes": repeated("\x1b["),
    "titles": repeated("\x1b]"),
    "trees": lambda i, size: f"{INFO}Trees " + "[0] 1/1/1->1->1 " * (size // 16),
    "rings": lambda i, size: f"{INFO}Channel 00/08 : " + "1 " * (size // 2),
    "completion errors": repeated("NCCL WARN Got completion from peer "),
    "signals": repeated("exited on signal "),
    "ends": repeated("exited with code 1 killed "),
    "words of ends": repeated("error exit code status connection time limit "),
    "assertions": repeated(" Assertion failed "),
    "programs": repeated("_perf"),
    "records": lambda i, size: f"{i}," + '"a",' * (size // 4),
    "open quotes": lambda i, size: f"a={i} " + 'msg="' * (size // 5),
    "strings": lambda i, size: '"' + "\\\\" * (size // 2) + '"' * (i % 2),
    "objects": lambda i, size: '{"a":' * (size // 5) + "1" + "}" * (size // 5),
    "braces behind words": repeated('a {"'),
    "numbers behind a host": lambda i, size: f"host-{i}: " + "1.5 " * (size // 4),
    "fields": repeated("a,"),
    "failed hosts": repeated("ssh: Could not resolve hostname "),
    **{
        f"blanks in {name}": lambda i, size, text=text: f"{text}{i}{' ' * size}x"  # type: ignore[misc]
        for name, text in {
            "a network": f"{INFO}Using network ",
            "a variable": f"{INFO}NCCL_X set by environment to ",
            "HCAs": f"{INFO}NET/IB : Using ",
            "a header": "# size count type ",
            "a row": "8 2 float sum -1",
            "a version": "NCCL version ",
        }.items()
    },
}
MANY: dict[str, Callable[[int], str]] = {
    "networks": lambda i: f"h:1:1 [0] NCCL INFO Using network n{i}",
    "hosts": lambda i: f"h{i}:{i}:1 [0] NCCL INFO Using network IB",
    "hosts with prefixes": lambda i: f"[1,{i}]<stdout>:h{i}:{i}:1 [0] NCCL INFO DMA-BUF is available",
    "glued hosts": lambda i: f"8 2 float sum -1h{i}:{i}:1 [0] NCCL INFO DMA-BUF is available",
    "edges of hosts": lambda i: f"h{i}:{i}:1 [0] {EDGE[19:].replace('0[0] ->', f'{i}[0] ->')}",
    "transports": lambda i: f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/n{i}/0",
    "warnings": lambda i: f"h:1:1 [0] x.cc:1 NCCL WARN something {i}",
    "ranks": lambda i: f"#  Rank {i} Group  0 Pid {i} on h{i} device  0 [0000:06:00] NVIDIA H100",
    "headers": lambda i: f"# size count type redop root time algbw busbw #wrong time algbw busbw #wrong {i}",
    "failures": lambda i: f"Test CUDA failure a.cu:{i} 'out of memory'",
    "HCAs of a host": lambda i: (
        f"w0:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_{i}:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    ),
    "rows": lambda i: f"{i} 2 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0",
    "unknown failures": lambda i: f"something failed {i}",
    "tables with messages": lambda i: [
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
        f"{i} 2 float sum -1 1.0 1.0 1.0 0 1.0 1.0 1.0 0",
        "h:1:1 [0] NCCL INFO Using network IB",
    ][i % 3],
    "facts": lambda i: f"h{i}:1:1 [0] NCCL INFO NCCL_X{i} set by environment to {i}",
    "pods": lambda i: f"w{i} 1/1 Running 0 1s 10.0.0.1 n{i}",
    "records": lambda i: json.dumps({"message": f"x {i}", "other": f"failed to {i}"}),
}


def of_width(shape: Callable[[int, int], str], width: int) -> Callable[[int], str]:
    return lambda i: shape(i, width)


def log(line: Callable[[int], str], size: int) -> Iterator[str]:
    """The beginning of a good log, then about SIZE bytes of LINE."""
    yield from Made().lines()[:5]
    written = 0
    for i in count():
        text = line(i)
        yield text
        written += len(text) + 1
        if written >= size:
            return


def cost(line: Callable[[int], str], size: int) -> float:
    """CPU seconds of one verdict."""
    before = process_time()
    judge(log(line, size), WANT)
    return process_time() - before


def memory(line: Callable[[int], str], size: int) -> float:
    """MiB of a process that makes one verdict, at most."""
    read, write = os.pipe()
    if not (child := os.fork()):
        judge(log(line, size), WANT)
        os.write(write, str(getrusage(RUSAGE_SELF).ru_maxrss).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as out:
        return int(out.read()) / 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=200_000)
    size = parser.parse_args().bytes
    shapes: dict[str, Callable[[int], str]] = {
        f"{name}, {kind}": of_width(shape, width)
        for name, shape in SHAPES.items()
        for kind, width in LINE.items()
    }
    hosts = {f"many {name}": line for name, line in MANY.items()}
    rows = [row(name, line, size) for name, line in {**shapes, **hosts}.items()]
    hosts_8000 = {f"8,000 lines of {name}": line for name, line in MANY.items()}
    for name, line in hosts_8000.items():
        width = sum(len(line(i)) + 1 for i in range(8000))
        rows.append(row(name, line, width))
    print(f"{'s':>7} {'x 1/4':>6} {'MiB':>5}  shape")
    for quarter, whole, most, name in sorted(rows, key=lambda row: -row[1]):
        print(f"{whole:7.2f} {whole / max(quarter, 0.001):6.1f} {most:5.0f}  {name}", flush=True)


def row(name: str, line: Callable[[int], str], size: int) -> tuple[float, float, float, str]:
    """CPU seconds of a quarter of SIZE and of all of it, and MiB."""
    most = memory(line, size)  # first: a process is not smaller than the one that it came from
    return cost(line, size // 4), cost(line, size), most, name


if __name__ == "__main__":
    main()
