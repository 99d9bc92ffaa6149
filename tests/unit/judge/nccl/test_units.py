"""Numbers as people read them: no bandwidth that is not zero reads as zero."""

from __future__ import annotations

import pytest

from busbar.judge.nccl.units import exact, gbps, rate, share, short


@pytest.mark.parametrize(
    ("value", "column", "sentence", "beside_a_line"),
    [
        (390.28, "390.28", "390.28 GB/s", "390"),
        (400.0, "400.00", "400 GB/s", "400"),
        (46.9, "46.90", "46.9 GB/s", "46.9"),
        (0.7, "0.70", "0.7 GB/s", "0.7"),
        (0.02, "0.02", "0.02 GB/s", "0.02"),
        (0.018, "0.018", "0.018 GB/s", "0.018"),
        (0.00123456, "0.00123", "0.00123 GB/s", "0.00123"),
        (0.0, "0.00", "0 GB/s", "0"),
    ],
)
def test_a_bandwidth_reads_right_at_any_height(
    value: float, column: str, sentence: str, beside_a_line: str
) -> None:
    assert (rate(value), gbps(value), short(value)) == (column, sentence, beside_a_line)


def test_a_fraction_far_above_one_is_a_multiple() -> None:
    assert (share(0.9757), share(1.175), share(35.0), share(None)) == ("97.6 %", "117.5 %", "35x", "-")


def test_sizes_that_differ_never_read_the_same() -> None:
    assert exact(2**29) == "512 MiB" and exact(2**29 + 4) == "536870916 B" and exact(0) == "0 B"
