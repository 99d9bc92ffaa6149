"""Checks on the exchange of gradients: its result, and its time against the measured bus bandwidth."""

from __future__ import annotations

from statistics import median

from stacks.training.package.checks.context import Context
from stacks.training.package.checks.result import Check, failed, passed, unknown
from stacks.training.package.log import Timing

GB = 1e9


def busbw_factor(ranks: int) -> float:
    """busbw / algbw of an all-reduce (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks


def measured_busbw(timing: Timing, ranks: int) -> float:
    """GB/s of the all-reduce of all gradients, by the median of its times."""
    return busbw_factor(ranks) * timing.bytes / median(timing.allreduce_s) / GB


def expected_seconds(timing: Timing, ranks: int, busbw_gbps: float) -> float:
    """Time in seconds of the all-reduce at the bandwidth that nccl-tests measured."""
    return busbw_factor(ranks) * timing.bytes / (busbw_gbps * GB)


def allreduce(context: Context) -> Check:
    """Check that every element of every measured all-reduce had the right sum."""
    timing = context.timing
    if timing is None:
        return unknown("allreduce.not_measured", "no all-reduce was measured")
    if timing.wrong:
        return failed("allreduce.wrong", f"{timing.wrong} elements have a wrong sum")
    return passed("allreduce.correct", f"every sum is right in {len(timing.allreduce_s)} all-reduces")


def busbw(context: Context) -> Check:
    """Check that the all-reduce of the gradients reaches the expected part of the bandwidth in nccl-tests."""
    timing, want = context.timing, context.expectation
    if timing is None:
        return unknown("busbw.not_measured", "no all-reduce was measured")
    if want.world_size < 2:
        return unknown("busbw.not_measured", "one rank: nothing is exchanged")
    if timing.bytes < want.gradient_bytes:
        reason = f"the all-reduce carried {timing.bytes} bytes, expected at least {want.gradient_bytes}"
        return failed("busbw.not_measured", reason)
    if want.busbw_gbps is None:
        return unknown("busbw.no_expectation", "no measured bandwidth to compare with")
    found, limit = measured_busbw(timing, want.world_size), want.min_busbw_fraction * want.busbw_gbps
    took, expected = median(timing.allreduce_s), expected_seconds(timing, want.world_size, want.busbw_gbps)
    said = (
        f"the all-reduce of {timing.bytes} bytes took {took * 1e3:.3g} ms ({found:.4g} GB/s busbw); at the "
        f"measured {want.busbw_gbps:.4g} GB/s it takes {expected * 1e3:.3g} ms"
    )
    if found < limit:
        share = f"{want.min_busbw_fraction:g} of the measured busbw"
        return failed("busbw.too_low", f"{said}. Expected at least {share} ({limit:.4g} GB/s)")
    return passed("busbw.reached", said)
