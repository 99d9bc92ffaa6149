"""No shape of input costs more than linear time, breaks the reader, or keeps it from an end.

Lines are cut at 8 KiB when they are read, so the same bytes in lines of 1 KiB and of 8 KiB must cost about
the same: a quadratic pattern costs 8 times as much. A log of four times the size costs four times as much.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, judge, judge_log, read_file
from busbar.judge.nccl.log import source
from busbar.judge.nccl.log.reader import read_blocks, read_lines
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
INFO = "worker-0:40:90 [0] NCCL INFO "
EDGE = f"{INFO}Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
SHORT, LONG = 1000, 8000
# far from 1, where the pattern is linear, and from 8, where it is quadratic
FACTOR, SLACK = 4.0, 0.05


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
}


PIECES = (" ", "a", "1", "[", "]", ":", "/", "#", "NCCL INFO ", "via ", "NET/", "\t", "'", "\x1b[")


def cost(lines: list[str]) -> float:
    """CPU seconds of a verdict, the least of three."""

    def once() -> float:
        before = process_time()
        judge([*Made().lines()[:5], *lines], WANT)
        return process_time() - before

    return min(once() for _ in range(2))


@pytest.mark.parametrize("shape", SHAPES)
def test_long_lines_cost_no_more_than_short_ones_of_the_same_bytes(shape: str) -> None:
    line, total = SHAPES[shape], 60_000
    short = [line(i, SHORT) for i in range(total // SHORT)]
    long = [line(i, LONG) for i in range(total // LONG)]
    assert cost(long) < FACTOR * cost(short) + SLACK


@pytest.mark.parametrize("what", MANY)
def test_four_times_the_lines_cost_about_four_times_as_much(what: str) -> None:
    few = [MANY[what](i) for i in range(400)]
    many = [MANY[what](i) for i in range(1600)]
    assert cost(many) < 2 * 4 * cost(few) + SLACK


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(words=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_no_repeated_words_make_a_long_line_costly(words: list[str]) -> None:
    line = repeated("".join(words), "x")
    short = [line(i, SHORT) for i in range(40)]
    long = [line(i, LONG) for i in range(5)]
    assert cost(long) < FACTOR * cost(short) + SLACK


def test_deep_json_is_a_line_without_meaning() -> None:
    deep = '{"log":' + "[" * 7000
    assert judge([*Made().lines(), deep], WANT).reasons == []


def archive(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return zstandard.ZstdCompressor().compress(data)
    return gzip.compress(data) if kind == "gz" else lzma.compress(data)


@pytest.fixture
def log() -> bytes:
    return ("\n".join(Made().lines()) + "\n").encode()


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_an_archive_is_read_like_its_content(kind: str, log: bytes, tmp_path: Path) -> None:
    path = tmp_path / "packed.log"
    path.write_bytes(archive(kind, log))
    assert judge_log(read_file(str(path)), WANT).reasons == []


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_two_archives_one_behind_the_other_are_one_log(kind: str, log: bytes, tmp_path: Path) -> None:
    path = tmp_path / "packed.log"
    path.write_bytes(archive(kind, log[:3000]) + archive(kind, log[3000:]))
    assert judge_log(read_file(str(path)), WANT).reasons == []


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
@pytest.mark.parametrize("missing", [1, 9, 500])
def test_a_cut_archive_is_judged_as_far_as_it_goes(
    kind: str, missing: int, log: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "cut.log"
    # More than one block of Zstandard, so that the log itself can be read.
    noise = "\n".join(f"{i * i * 7919 % 1_000_003}" for i in range(60_000)).encode()
    path.write_bytes(archive(kind, log + noise)[:-missing])
    verdict = judge_log(read_file(str(path)), WANT)
    assert "ends early" in verdict.check("source").reason or "damaged" in verdict.check("source").reason
    assert verdict.check("source").status == "fail"
    assert verdict.check("busbw").status == "pass"


def test_an_archive_cut_before_its_first_block_is_named_as_cut(log: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_bytes(archive("zst", log)[:-1])
    source_check = judge_log(read_file(str(path)), WANT).check("source")
    assert source_check.status == "unknown"
    assert "ends early" in source_check.reason


def test_an_endless_input_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 3 * 2**20)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"y\n" * 4096

    reading = source.Source()
    parsed = read_blocks(reading.blocks(endless()), reading)
    assert parsed.truncated == "it is longer than 3 MiB: the rest was not read"
    assert judge_log(parsed, WANT).check("source").status == "fail"


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=300), at=st.integers(0, 10**6))
def test_any_text_in_any_line_is_read_without_an_error(text: str, at: int) -> None:
    lines = Made().lines()
    at %= len(lines)
    where = at % (len(lines[at]) + 1)
    lines[at] = lines[at][:where] + text + lines[at][where:]
    read_lines(lines)
    judge(lines, WANT)
