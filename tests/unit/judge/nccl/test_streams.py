"""Logs come as files, pipes, compressed, huge, cut; the result is the same, and memory stays small."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from busbar.judge.nccl import judge_log, read_file, read_lines
from busbar.judge.nccl.log.evidence import FACTS
from busbar.judge.nccl.log.reader import ParsedLog, read_blocks
from busbar.judge.nccl.log.source import BLOCK, Source, SourceError
from tests.support import shared
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.log"
    path.write_text("\n".join(Made().lines()) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".gz named .log"])
def test_compressed_logs_are_told_by_their_bytes(made: Path, tmp_path: Path, suffix: str) -> None:
    pack = ZSTD.compress if suffix == ".zst" else gzip.compress
    data = made.read_bytes()
    packed = pack(data[:1000]) + pack(data[1000:])  # as of two files that were put together
    path = tmp_path / ("packed.log" if "named" in suffix else f"packed{suffix}")
    path.write_bytes(packed)
    assert judge_log(read_file(str(path)), WANT).reasons == []


ZSTD = zstandard.ZstdCompressor(write_checksum=True)


MADE = (
    "a row interrupted by messages",
    "tags in the middle of rows",
    "the reference system, every line tagged",
    "every process ran alone, and none reached a row",
)


def content(name: str) -> bytes:
    """A made log, or the real one of that number."""
    return Log(cases()[name]).text.encode() if name in cases() else shared.log(name).read_bytes()


@pytest.mark.parametrize("name", [*MADE, shared.param("001")])
def test_any_size_of_block_gives_the_same_facts(name: str) -> None:
    data = content(name)

    def read(size: int) -> ParsedLog:
        source = Source()
        chunks: Iterator[bytes] = (data[i : i + size] for i in range(0, len(data), size))
        return read_blocks(source.blocks(chunks), source)

    whole = read(len(data))
    for size in (1, 7, 100, 4096, 65537):
        assert read(size) == whole


def test_lines_beyond_one_block_are_read_whole() -> None:
    made = Made()
    edge = "worker-0:40:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    made.info = [edge] * (2 * BLOCK // len(edge))
    log = read_lines(["2026-05-05 06:16:47", *made.lines(), "2026-05-06 06:16:47"])
    assert log.evidence.via["P2P/CUMEM"] == len(made.info)
    assert log.date == "2026-05-05 06:16:47"
    assert judge_log(log, WANT).reasons == []


@pytest.mark.parametrize("prefix", ["", "2026-11-25T10:00:{:02d}.123456789Z stdout F ", "[1,{}]<stdout>:"])
def test_messages_that_differ_only_in_numbers_are_each_read(prefix: str) -> None:
    made = Made()
    sizes = ["524288", "131072", "524288", "262144"]
    for host, size in enumerate(sizes):
        made.info.append(f"worker-{host}:40:90 [0] NCCL INFO P2P Chunksize set to {size}")
        made.info.append(f"worker-{host}:40:90 [0] NCCL INFO NVLS Head  0:  0 {host}")
    lines = [prefix.format(n % 60) + line for n, line in enumerate(made.lines())]
    log = read_lines(lines)
    found = {
        size: {"worker-0", "worker-2"} if size == "524288" else {f"worker-{n}"}
        for n, size in enumerate(sizes)
    }
    assert log.evidence.facts["P2P chunk size"] == found
    assert [run.rows for run in log.runs] == [run.rows for run in read_lines(made.lines()).runs]


def test_every_text_of_a_fact_is_found_whatever_the_numbers_are() -> None:
    assert [fact.contains for fact in FACTS if any(map(str.isdigit, fact.contains))] == []


def test_a_line_of_100_mb_is_cut_and_named(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = "\n".join(Made().lines()).encode()
    with path.open("wb") as out:
        out.write(lines + b"\n")
        for _ in range(100):
            out.write(b"x" * 10**6)
        out.write(b"\n" + lines[:50])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = judge_log(read_file(str(path)), WANT)
    assert verdict.check("source").reason.startswith("1 lines cannot be read whole")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024, (
        "memory must not follow the line"
    )


@pytest.mark.parametrize("path", ["/nowhere/log", "/"])
def test_an_unreadable_file_is_a_clear_error(path: str) -> None:
    with pytest.raises(SourceError, match=path):
        read_file(path)


def test_an_empty_log_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.touch()
    assert judge_log(read_file(str(path)), WANT).exit_code == 2
