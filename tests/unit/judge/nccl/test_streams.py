"""Logs come as files, pipes, compressed, huge, cut or damaged: all are read to an end."""

import bz2
import gzip
import io
import lzma
import random
import resource
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from bench.nccl_hostile import MANY, SHAPES
from busbar.judge.nccl import judge, judge_log, read_file, read_lines
from busbar.judge.nccl.log import source, tables
from busbar.judge.nccl.log.evidence import FACTS, KEEP_HOSTS, KEEP_LABELS
from busbar.judge.nccl.log.reader import ParsedLog, read_blocks
from busbar.judge.nccl.log.source import BLOCK, Source, SourceError
from busbar.judge.nccl.log.tables import MAX_TABLES
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

ZSTD = zstandard.ZstdCompressor(write_checksum=True)


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


MADE = (
    "a row interrupted by messages",
    "tags in the middle of rows",
    "the reference system, every line tagged",
    "every process ran alone, and none reached a row",
)


@pytest.mark.parametrize("name", MADE)
def test_any_size_of_block_gives_the_same_facts(name: str) -> None:
    data = Log(cases()[name]).text.encode()

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
    assert log.evidence.edges["P2P/CUMEM"].count == len(made.info)
    assert log.date == "2026-05-05 06:16:47"
    assert judge_log(log, WANT).reasons == []


@pytest.mark.parametrize("prefix", ["", "2026-11-25T10:00:{:02d}.123456789Z stdout F ", "[1,{}]<stdout>:"])
def test_messages_that_differ_only_in_numbers_are_each_read(prefix: str) -> None:
    made = Made()
    sizes = ["524288", "131072", "524288", "262144"]
    for host, size in enumerate(sizes):
        made.info.append(f"worker-{host}:40:90 [0] NCCL INFO Rank {host}: {size} Net devices")
        made.info.append(f"worker-{host}:40:90 [0] NCCL INFO NVLS Head  0:  0 {host}")
    lines = [prefix.format(n % 60) + line for n, line in enumerate(made.lines())]
    log = read_lines(lines)
    found = {
        size: {"worker-0", "worker-2"} if size == "524288" else {f"worker-{n}"}
        for n, size in enumerate(sizes)
    }
    assert log.evidence.facts["local Net devices"] == found
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


# ---- input of any shape. bench/nccl_hostile.py prints what each costs
def test_a_line_of_any_shape_and_length_is_read_without_an_error_and_makes_no_pass() -> None:
    beginning = Made().lines()[:5]
    for line in SHAPES.values():
        assert not judge([*beginning, *(line(i, 10_000) for i in range(3))], WANT).passed
    for each in MANY.values():
        assert not judge([*beginning, *map(each, range(20))], WANT).passed


def test_deep_json_is_a_line_without_meaning() -> None:
    deep = '{"log":' + "[" * 7000
    assert judge([*Made().lines(), deep], WANT).reasons == []


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("missing", [1, 500])
def test_a_cut_archive_is_judged_as_far_as_it_goes(
    kind: str, missing: int, made: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.log"
    # More than one block of Zstandard, so that the log itself can be read.
    noise = b"\n".join([random.Random(0).randbytes(100_000).hex().encode()] * 2)
    pack = zstandard.compress if kind == "zst" else gzip.compress
    path.write_bytes(pack(made.read_bytes() + noise)[:-missing])
    verdict = judge_log(read_file(str(path)), WANT)
    assert "ends early" in verdict.check("source").reason or "damaged" in verdict.check("source").reason
    assert verdict.check("source").status == "fail"
    assert verdict.check("busbw").status == "pass"


def test_an_endless_input_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_BYTES", 3 * 2**20)

    def endless() -> Iterator[bytes]:
        while True:
            yield (b"y" * 1023 + b"\n") * 8

    reading = source.Source()
    parsed = read_blocks(reading.blocks(endless()), reading)
    assert parsed.truncated == "it is longer than 3 MiB: the rest was not read"
    assert judge_log(parsed, WANT).check("source").status == "fail"


@pytest.mark.parametrize("most", [512, pytest.param(tables.MAX_ROWS, marks=pytest.mark.slow)])
def test_more_rows_than_any_run_has_are_not_all_kept(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ROWS", most)
    rows = (MANY["rows"](8 * i) for i in range(most + 2))
    log = read_lines([*Made().lines()[:5], *rows])
    assert sum(len(run.rows) for run in log.runs) == most
    assert log.long_lines == 2


def test_more_tables_than_any_log_has_are_not_all_kept_and_leave_no_verdict() -> None:
    header = next(line for line in Made().lines() if line.startswith("#       size"))
    log = read_lines([*Made().lines(), *[header] * 2 * MAX_TABLES])
    assert len(log.runs) == MAX_TABLES + 1
    assert log.long_lines > 0


def test_more_facts_than_hosts_print_keep_some_and_say_so() -> None:
    log = read_lines(MANY["facts"](i) for i in range(KEEP_HOSTS + 9))
    assert log.evidence.told == KEEP_HOSTS and "facts" in log.evidence.lost


@pytest.mark.parametrize("text", ["a", "ab", "OOM", "killed", "8"])
def test_a_short_line_says_what_its_word_says(text: str) -> None:
    verdict = judge([*Made().lines(), text], WANT)
    assert (bool(verdict.remarks) or not verdict.passed) is (text in ("OOM", "killed"))


def test_a_host_with_more_hcas_than_any_has_keeps_some_and_says_so() -> None:
    log = read_lines(map(MANY["HCAs of a host"], range(2000)))
    assert len(log.evidence.hca_links["w0"]) <= KEEP_LABELS and "hca_links" in log.evidence.lost


def test_noted_lines_leave_room_for_others() -> None:
    noted = [f"worker-1: probe {i} is not ready" for i in range(3000)]
    assert judge([*noted, *Made().lines()], WANT).passed
    assert judge([*noted, *Made().lines(), "worker-1 exited with code 3"], WANT).verdict != "pass"


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("launcher.log", data)
    return out.getvalue()


def tarred(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("binary.dat")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    ("pack", "kind"),
    [
        (zipped, "a zip archive"),
        (tarred, "a tar archive"),
        (bz2.compress, "compressed by bzip2"),
        (lzma.compress, "compressed by xz"),
        (lambda data: data.decode().encode("utf-16"), "text in UTF-16"),
        (lambda data: b"<!DOCTYPE html><pre>" + data, "a page of HTML"),
    ],
)
def test_a_form_that_is_not_read_is_named(pack: Callable[[bytes], bytes], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    path.write_bytes(pack(b"\x01\x02" * 500))
    check = judge_log(read_file(str(path)), WANT).check("source")
    assert (check.status, kind in check.reason) == ("unknown", True)
