"""The shared folder beside the checkout: real logs and published charts, which add to the tests.

A test marked `shared` reads that folder. Where it is missing such tests are skipped, and the last line of the
report counts them. BUSBAR_SHARED names another folder.
"""

import os
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("BUSBAR_SHARED") or PROJECT.parent / "shared")
LOGS, CHARTS = FOLDER / "nccl_logs", FOLDER / "charts"
REASON = f"{FOLDER} is missing or incomplete (nccl_logs, charts)"
FIX = "Fix: put the shared folder beside the checkout, or name it in BUSBAR_SHARED."


def present() -> bool:
    """Whether the logs and the charts are there."""
    return any(LOGS.glob("*.log")) and CHARTS.is_dir()


def log_names() -> list[str]:
    """Names of all real logs, without suffix; one placeholder where they are missing, for parametrize."""
    return sorted(p.stem for p in LOGS.glob("*.json")) or ["missing"]


def log(prefix: str) -> Path:
    """The real log whose name starts with PREFIX. Raises ValueError where there is not exactly one."""
    (found,) = LOGS.glob(f"{prefix}*.log")
    return found


def log_lines(prefix: str) -> list[bytes]:
    """The real log PREFIX as lines with their ends."""
    return log(prefix).read_bytes().splitlines(keepends=True)


def param(*values: Any) -> Any:
    """VALUES as a case of `parametrize` that needs the folder."""
    return pytest.param(*values, marks=pytest.mark.shared)


# ---- hooks (loaded by the conftest.py of the project) -----------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "shared: reads the shared folder beside the checkout")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs the folder where it is missing."""
    if item.get_closest_marker("shared") is not None and not present():
        pytest.skip(f"{REASON}. {FIX}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what was skipped for want of the folder."""
    skipped = [each for each in terminalreporter.getreports("skipped") if REASON in str(each.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of real logs and charts were skipped: {REASON}. {FIX}"
        )
