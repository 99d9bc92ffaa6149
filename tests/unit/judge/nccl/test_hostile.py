"""No input breaks the reader, or keeps it from an end. bench/nccl_hostile.py prints what each costs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from bench.nccl_hostile import MANY, SHAPES
from busbar.judge.nccl import judge, judge_log, read_file
from busbar.judge.nccl.log import source, tables
from busbar.judge.nccl.log.evidence import KEEP_HOSTS, KEEP_LABELS
from busbar.judge.nccl.log.reader import read_blocks, read_lines
from busbar.judge.nccl.log.tables import MAX_TABLES
from tests.unit.judge.nccl.logs import WANT, Made


def test_a_line_of_any_shape_and_length_is_read_without_an_error_and_makes_no_pass() -> None:
    beginning = Made().lines()[:5]
    for line in SHAPES.values():
        assert not judge([*beginning, *(line(i, 10_000) for i in range(3))], WANT).passed
    for each in MANY.values():
        assert not judge([*beginning, *map(each, range(20))], WANT).passed


def test_deep_json_is_a_line_without_meaning() -> None:
    deep = '{"log":' + "[" * 7000
    assert judge([*Made().lines(), deep], WANT).reasons == []


def archive(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return zstandard.ZstdCompressor().compress(data)
    return gzip.compress(data)


@pytest.fixture
def log() -> bytes:
    return ("\n".join(Made().lines()) + "\n").encode()


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("missing", [1, 500])
def test_a_cut_archive_is_judged_as_far_as_it_goes(
    kind: str, missing: int, log: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "cut.log"
    # More than one block of Zstandard, so that the log itself can be read.
    noise = b"\n".join([random.Random(0).randbytes(100_000).hex().encode()] * 2)
    path.write_bytes(archive(kind, log + noise)[:-missing])
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
    ],
)
def test_a_form_that_is_not_read_is_named(pack: Callable[[bytes], bytes], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    path.write_bytes(pack(b"\x01\x02" * 500))
    check = judge_log(read_file(str(path)), WANT).check("source")
    assert (check.status, kind in check.reason) == ("unknown", True)
