"""Ctrl-C while a child runs, with real signals and a real child."""

import os
import signal
import subprocess
import sys

import pytest

from busbar.cli.stack.engine import FORCED, GRACEFUL, KILLED, Interrupts

# Ends on the N-th SIGINT with exit code N; prints when it is ready and each signal. It waits for signals: a
# handler may be interrupted while it prints, and one that is due may wait in pause().
CHILD = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
for count in range(1, 100):
    signal.sigwait({signal.SIGINT})
    print(count, flush=True)
    if count == int(sys.argv[1]): sys.exit(count)
"""


def _child(ends_at: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(ends_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _signalled(times: int, ends_at: int, number: int) -> tuple[int, list[str]]:
    """Send busbar `times` signals while the child runs; its exit code and what was said."""
    said: list[str] = []
    with Interrupts(said.append) as interrupts, interrupts.passed_on(lambda: _child(ends_at)) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for sent in range(1, times + 1):
            os.kill(os.getpid(), number)
            if sent <= 2:
                assert child.stdout.readline() == f"{sent}\n"
        return child.wait(30), said


@pytest.mark.parametrize(
    ("number", "times", "ends_at", "code", "said"),
    [
        (signal.SIGINT, 1, 1, 1, [GRACEFUL]),
        (signal.SIGINT, 2, 2, 2, [GRACEFUL, FORCED]),
        (signal.SIGINT, 3, 9, -signal.SIGKILL, [GRACEFUL, FORCED, KILLED]),
        # A cancelled job, and a lost terminal.
        (signal.SIGTERM, 1, 1, 1, [GRACEFUL]),
        (signal.SIGHUP, 1, 1, 1, [GRACEFUL]),
    ],
)
def test_the_engine_ends_gracefully_and_then_is_killed(
    number: int, times: int, ends_at: int, code: int, said: list[str]
) -> None:
    assert _signalled(times, ends_at, number) == (code, said)


def test_one_that_comes_while_the_engine_is_started_reaches_it_too() -> None:
    def start() -> subprocess.Popen[str]:
        child = _child(1)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        os.kill(os.getpid(), signal.SIGINT)
        return child

    said: list[str] = []
    with Interrupts(said.append) as interrupts, interrupts.passed_on(start) as child:
        assert (child.wait(30), said) == (1, [GRACEFUL])


def test_a_lost_terminal_that_is_reported_twice_is_no_second_interrupt() -> None:
    """The shell says it, and the kernel again when the shell has ended."""
    said: list[str] = []
    with Interrupts(said.append) as interrupts, interrupts.passed_on(lambda: _child(2)) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        os.kill(os.getpid(), signal.SIGHUP)
        assert child.stdout.readline() == "1\n"
        os.kill(os.getpid(), signal.SIGHUP)
        assert said == [GRACEFUL]
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == 2
    assert said == [GRACEFUL, FORCED]


def test_without_a_child_an_interrupt_is_a_keyboard_interrupt_and_former_handlers_come_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), Interrupts(print):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is former
