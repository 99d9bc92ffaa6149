"""A long log that shows no row for a while still shows that it grows, and no more often than that."""

from __future__ import annotations

import io

from busbar.collect.collector import row_text
from busbar.judge.recording import Recording

LINE = b"nccl-worker-0:21:31 [0] NCCL INFO Using network Socket\n"


def test_every_twenty_thousand_lines_without_a_row_are_told_once() -> None:
    said: list[str] = []
    recording = Recording(io.BytesIO(), said.append, row_text)
    assert sum(1 for _ in recording.tee([LINE] * 40_001)) == 40_001
    assert [line.split(" lines")[0] for line in said] == ["20000", "40000"]
