"""One command of the lab at a time."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.steps import LabError, locked

HOLDER = """
import sys, time
from pathlib import Path
from lab.steps import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_held_lock_is_an_error_at_the_deadline_and_free_once_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "lab"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(LabError, match="another process holds"), locked(path, deadline=0.3):
        pytest.fail("two holders of one lock")
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=60)
    with locked(path, deadline=60):
        assert path.exists()
