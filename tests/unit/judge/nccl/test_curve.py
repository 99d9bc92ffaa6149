"""The whole curve is judged: a row that does not belong to it is refused, and the reason names its size."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, Verdict, judge
from busbar.judge.nccl.units import exact
from tests.unit.judge.nccl.logs import Made

WANT = Expectation(profile="h100-ib-8x400", nodes=2)
BOUNDED = settings(max_examples=12)
SIZES = [2**i for i in range(10, 34)]
LARGE = [s for s in SIZES if s >= 2**26]
SMALL = [s for s in SIZES[6:] if s < 2**26]


def changed(factors: dict[tuple[int, int], float], latency_us: float = 30.0) -> list[str]:
    """A log of 1 KiB to 8 GiB whose bandwidth follows a latency, multiplied by FACTORS of (size, half)."""
    made = Made()
    made.low, made.high = SIZES[0], SIZES[-1]
    out, speeds = [], []
    for line in made.lines():
        words = line.split()
        if line.lstrip()[:1].isdigit():
            size = int(words[0])
            for half in (0, 1):
                time = latency_us + float(words[5 + 4 * half])
                time /= factors.get((size, half), 1.0)
                algbw = size / time / 1000
                speeds.append(algbw * 1.875)
                words[5 + 4 * half : 8 + 4 * half] = [f"{time:.2f}", f"{algbw:.2f}", f"{speeds[-1]:.2f}"]
            line = "  ".join(words)
        if line.startswith("# Avg"):
            line = f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):g} "
        out.append(line)
    return out


def judged(factors: dict[tuple[int, int], float]) -> Verdict:
    return judge(changed(factors), WANT)


def test_the_curve_that_the_others_are_made_of_passes() -> None:
    assert judged({}).reasons == []


@BOUNDED
@given(seed=st.integers(0, 2**32))
def test_noise_of_a_healthy_run_is_no_failure(seed: int) -> None:
    rng = random.Random(seed)
    noise = {(size, half): rng.uniform(0.97, 1.02) for size in LARGE for half in (0, 1)}
    noise |= {(size, half): rng.uniform(0.85, 1.15) for size in SMALL for half in (0, 1)}
    # one or two slow messages in a row, as public logs have them
    slow = rng.choice(SMALL)
    noise |= {(size, rng.randrange(2)): 1 / rng.uniform(1, 25) for size in (slow, 2 * slow) if size in SMALL}
    noise |= {(size, half): 1 / rng.uniform(1, 40) for size in SIZES[:2] for half in (0, 1)}
    assert judged(noise).reasons == []


@BOUNDED
@given(factor=st.floats(1.15, 4.0))
def test_a_last_size_that_alone_is_fast_proves_no_bandwidth(factor: float) -> None:
    """Half of line rate everywhere, but for the row that is judged."""
    slow = {(size, half): 0.9 / factor for size in SIZES[:-1] for half in (0, 1)}
    verdict = judged(slow)
    assert not verdict.passed
    assert verdict.check("stability").status in ("fail", "unknown")


@BOUNDED
@given(last=st.sampled_from([2**27, 2**28]), factor=st.floats(0.02, 1 / 3))
def test_a_rise_at_a_third_of_its_speed_has_no_verdict(last: int, factor: float) -> None:
    """Below 256 MiB all messages are slow; the plateau is what it should be."""
    slow = {(size, half): factor for size in SIZES if 2**16 <= size < last for half in (0, 1)}
    check = judged(slow).check("stability")
    assert check.status in ("fail", "unknown")


@BOUNDED
@given(zeros=st.integers(1, 6), size=st.sampled_from(SMALL[:5]), factor=st.floats(0.02, 0.4))
def test_a_small_message_that_is_too_fast_is_refused_behind_rows_of_size_zero(
    zeros: int, size: int, factor: float
) -> None:
    """all_gather and the like print 0 bytes where a rank gets no element, some thousand times as fast."""
    lines = changed({(size, 0): 1 / factor})
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == [str(SIZES[0])])
    nothing = "0 0 float sum -1 0.10 0.00 0.00 0 0.09 0.00 0.00 0"
    check = judge([*lines[:at], *[nothing] * zeros, *lines[at:]], WANT).check("stability")
    assert check.code == "stability.latency" and exact(size) in check.reason
