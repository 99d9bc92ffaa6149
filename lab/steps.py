"""What every command of the lab uses: steps printed with their times, external commands, locks."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
from rich.console import Console

CONSOLE = Console(highlight=False, soft_wrap=True)
STILL_RUNNING_SECONDS = 30
LOCK_SECONDS = 3600
_BEGAN = time.monotonic()


class LabError(Exception):
    """A command of the lab failed; the message names what, where, the reason and the fix."""


def log_line(text: str) -> None:
    """One line with the time since the command began."""
    CONSOLE.print(f"{time.monotonic() - _BEGAN:6.1f}   {text}", markup=False)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print `name` now, again every half minute, and its time at the end."""
    began = time.monotonic()
    ended = threading.Event()

    def remind() -> None:
        while not ended.wait(STILL_RUNNING_SECONDS):
            log_line(f"… {name}: {time.monotonic() - began:.0f} s so far")

    log_line(f"▸ {name}")
    reminder = threading.Thread(target=remind, name=f"step {name}", daemon=True)
    reminder.start()
    try:
        yield
    except BaseException:
        log_line(f"✗ {name}: failed after {time.monotonic() - began:.1f} s")
        raise
    finally:
        ended.set()
        reminder.join()
    log_line(f"✓ {name}: {time.monotonic() - began:.1f} s")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; the kernel releases it when the holder is killed.

    Waits at most LOCK_SECONDS for another holder, then raises LabError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        log_line(f"waiting for another lab command that holds {path}")
        try:
            lock.acquire(timeout=LOCK_SECONDS, poll_interval=0.2)
        except filelock.Timeout:
            raise LabError(
                f"timed out after {LOCK_SECONDS} s: another process holds {path}; find it with `fuser {path}`"
            ) from None
    try:
        yield
    finally:
        lock.release()


def run(
    command: Sequence[str | Path], *, deadline: float = 60, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command within `deadline` seconds; raises LabError with its output when it fails."""
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=deadline, check=False
        )
    except FileNotFoundError:
        raise LabError(f"{argv[0]}: no such command on this machine; install it and retry") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(argv)}` timed out after {deadline:.0f} s") from None
    if check and done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise LabError(f"`{' '.join(argv)}` failed with exit code {done.returncode}: {output}")
    return done


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    deadline: float,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> None:
    """Run a long command with its output in `log`; raises LabError with the last lines when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = [str(part) for part in command]
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd, env=env,
                timeout=deadline, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise LabError(f"{argv[0]}: no such command on this machine; install it and retry") from None
        except subprocess.TimeoutExpired:
            raise LabError(f"`{argv[0]} …` timed out after {deadline:.0f} s; its output: {log}") from None
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LabError(f"`{' '.join(argv)}` failed with exit code {done.returncode}; end of {log}:\n{tail}")
