"""Output that nobody takes any more does not end a command that changes a cluster."""

import os
import pty
import subprocess
import sys

import pytest

# Prints, waits until its output is gone, prints from a second thread too, and says on stderr that it goes on.
COMMAND = """
import sys, threading
from busbar.cli.stack.session import LastingConsole
console = LastingConsole(highlight=False)
console.print("begun")
sys.stdin.readline()
console.print("a row")
other = threading.Thread(target=console.print, args=["another row"])
other.start()
other.join()
console.print("the end")
print("goes on", file=sys.stderr)
sys.exit(3)
"""


def _read(descriptor: int) -> bytes:
    text = b""
    while b"begun" not in text:
        text += os.read(descriptor, 100)
    return text


@pytest.mark.parametrize("opened", [pty.openpty, os.pipe])
def test_a_command_goes_on_when_its_terminal_is_lost_or_its_reader_has_gone(opened: object) -> None:
    assert callable(opened)
    ours, theirs = opened()
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(theirs)
    assert b"begun" in _read(ours)
    os.close(ours)
    _, said = command.communicate("go\n", timeout=120)
    assert (command.returncode, said) == (3, "goes on\n")
