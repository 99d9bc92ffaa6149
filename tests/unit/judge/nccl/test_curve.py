"""The whole curve is judged: as a property of logs, and each limit at the limit and just beyond it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.judge.nccl import Verdict, judge
from busbar.judge.nccl.checks.bandwidth import curve, rise
from busbar.judge.nccl.expected.bounds import Rise, envelope
from busbar.judge.nccl.expected.system import System
from busbar.judge.nccl.log.records import Run
from busbar.judge.nccl.units import exact
from tests.unit.judge.nccl.logs import WANT, Made
from tests.unit.judge.nccl.tables import MIB, measurement, row, table

BOUNDED = settings(max_examples=12)
SIZES = [2**i for i in range(10, 34)]
LARGE = [s for s in SIZES if s >= 2**26]
SMALL = [s for s in SIZES[6:] if s < 2**26]


def changed(factors: dict[tuple[int, int], float], latency_us: float = 30.0) -> list[str]:
    """A log of 1 KiB to 8 GiB whose bandwidth follows a latency, multiplied by FACTORS of (size, half)."""
    made = Made(low=SIZES[0], high=SIZES[-1])
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


DIP, JUMP, LAST = "stability.dip", "stability.jump", "stability.last_sizes"
RISING, LATENCY = "stability.rising", "stability.latency"


def large(*busbw: float) -> Run:
    """Sizes from 64 MiB on, each measurement of a size alike."""
    return table(
        [row(64 * MIB << i, measurement(busbw=str(value)), line=i + 1) for i, value in enumerate(busbw)]
    )


def small(*times: float) -> Run:
    """Sizes from 1 KiB on, by their times in us."""
    return table([row(1024 << i, measurement(time=str(time)), line=i + 1) for i, time in enumerate(times)])


def code(run: Run) -> str | None:
    found = curve(run)
    return found.code if found else None


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        # a dip lies 15 % below a smaller and a larger size
        (large(100, 85, 100, 100), None),
        (large(100, 84.9, 100, 100), (DIP, 2)),
        (large(100, 100, 84.9, 100), (DIP, 3)),
        (large(100, 100, 80, 80, 100, 100), (DIP, 3)),
        # a curve may rise to its plateau
        (large(60, 100, 100, 100), None),
        (large(60, 70, 100, 100), None),
        # a jump lies 20 % above both neighbours
        (large(100, 120, 100, 100), None),
        (large(100, 120.1, 100, 100), (JUMP, 2)),
        (large(100, 100, 120.1, 100), (JUMP, 3)),
        (large(112, 125, 104, 104, 104), None),
        (large(104, 104, 104, 125, 112, 104, 104), None),
        (large(0, 100, 0), (JUMP, 2)),
        # the last two sizes agree within 10 %, and reach 80 % of the best
        (large(100), None),
        (large(100, 90), None),
        (large(100, 89.9), (LAST, 2)),
        (large(100, 100, 89.9), (LAST, 3)),
        (large(90, 100), None),
        (large(89.9, 100), (RISING, 2)),
        (large(100, 88, 80), None),
        (large(100, 88, 79.9), (DIP, 3)),
        # a message is too fast below half the time of each of the three before it
        (small(30, 30, 30, 30, 15), None),
        (small(30, 30, 30, 30, 14.9), (LATENCY, 5)),
        (small(30, 30, 30, 14.9, 14.9), None),
        (small(99, 30, 20, 30, 12), None),
        (small(99, 12, 30, 30, 30, 12), (LATENCY, 6)),
    ],
)
def test_a_row_beyond_a_limit_of_the_curve_is_shown(run: Run, expected: tuple[str, int] | None) -> None:
    found = curve(run)
    assert (found and (found.code, found.line)) == expected


def test_sizes_below_64_mib_are_no_part_of_the_plateau() -> None:
    run = large(100, 100)
    for factor, busbw in ((2, 300.0), (4, 1.0), (8, 300.0)):
        run.rows.append(row(64 * MIB // factor, measurement(busbw=str(busbw))))
    assert code(run) is None


def test_a_last_size_that_stands_twice_is_not_compared_with_itself() -> None:
    run = large(100, 100)
    run.rows.append(row(run.rows[-1].size, measurement(busbw="50")))
    assert code(run) is None


def test_a_failure_of_one_half_outweighs_a_doubt_about_the_other() -> None:
    rising, falling = measurement(busbw="80"), measurement(busbw="100")
    run = table([row(64 * MIB, rising, falling), row(128 * MIB, falling, rising)])
    assert code(run) == LAST


def test_the_order_of_the_rows_does_not_matter_and_each_operation_has_a_curve_of_its_own() -> None:
    run = large(60, 100, 100, 100)
    run.rows.reverse()
    assert code(run) is None
    run.rows += [row(64 * MIB << i, measurement(busbw="30"), redop="prod") for i in range(4)]
    assert code(run) is None


def test_small_messages_that_are_slower_than_larger_ones_are_a_doubt() -> None:
    alps = (138.7, 188.4, 351.2, 653.2, 914.5, 166.0, 212.2, 316.2)  # 64 KiB to 8 MiB on two hosts, Slingshot
    step, alone = curve(small(*alps)), curve(small(*alps[:6], 1240.0))
    assert step is not None and (step.status, step.code) == ("unknown", LATENCY)
    assert alone is not None and (alone.status, alone.code) == ("fail", LATENCY)


def slowly(*busbw: str) -> Run:
    """Sizes from 1 KiB on."""
    return table([row(1024 << i, measurement(busbw=b), line=i + 1) for i, b in enumerate(busbw)])


FLAT = {64 * MIB << i: Rise(1.0, 1.0) for i in range(8)}
LOW = {1024 << i: Rise(0.4, 0.0) for i in range(8)}


@pytest.mark.parametrize(
    ("known_good", "run", "line"),
    [
        (FLAT, large(100, 100, 100), None),
        (FLAT, large(75, 88, 100), None),
        (FLAT, large(74.9, 88, 100), 1),
        (FLAT, large(84, 99, 100), 1),
        (FLAT, large(85, 100, 100), None),
        (FLAT, large(100), None),
        ({}, large(10, 100), None),
        (LOW, slowly("31", "29", "29", "100"), None),
        (LOW, slowly("29", "29", "29", "100"), 3),
    ],
)
def test_a_rise_is_too_slow_far_below_all_known_good_curves(
    known_good: dict[int, Rise], run: Run, line: int | None
) -> None:
    found = rise(run, known_good)
    assert (found.line if found else None) == line
    assert found is None or (found.status, found.code) == ("unknown", "stability.slow_rise")


def test_five_known_good_curves_make_an_envelope_and_fewer_make_none() -> None:
    two = envelope(System("H200", 2, 8, 8, 400, 450), "all_reduce")
    assert 0 < two[64 * MIB].of_plateau < two[8192 * MIB].of_plateau < 1
    # three curves have 1 MiB, two have 16 GiB
    assert (min(two), max(two)) == (MIB, 8192 * MIB)
    assert envelope(System("H100", 3, 8, 8, 400, 450), "all_reduce") == {}
    assert envelope(System("H100", 2, 8, 8, 400, 450), "all_gather") == {}
    assert envelope(System("GB200", 2, 4, 4, 400, 900, nodes_per_domain=18), "all_reduce") == {}
    assert envelope(None, "all_reduce") == {}
