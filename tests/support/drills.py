"""The record of drills: tests/drills.jsonl has one line per drill, that of its latest pass.

Every drill that passes writes its line, in whichever way pytest is called. `make drills LIST=1` lists all
drills with their lines. A drill that needs what most machines lack says so: `drill(needs="a real K3s")`.
"""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
RECORD, PAGE = Path("tests/drills.jsonl"), Path("docs/evidence.md")
RECENT_DAYS = 60
REQUESTS = ("requests", "repeated")

_counted: Counter[str] = Counter()
_PHASES = pytest.StashKey[list[pytest.TestReport]]()
_WRITTEN = pytest.StashKey[int]()
_ERRORS = pytest.StashKey[list[str]]()


def count_requests(requests: int, repeated: int) -> None:
    """Add the requests of a load to those of the running test."""
    _counted.update(requests=requests, repeated=repeated)


def passes(root: Path) -> dict[str, dict[str, Any]]:
    """The recorded passes, by the name of the drill."""
    path = root / RECORD
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {each["drill"]: each for each in map(json.loads, lines)}


def commit(root: Path) -> str:
    """The commit of the work tree, with `+changes` if it has any besides the record and its page.

    Raises CalledProcessError or FileNotFoundError where there is none.
    """

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout

    own = [f":!{RECORD}", f":!{PAGE}"]
    changes = git("status", "--porcelain", "--", ".", *own)
    return git("rev-parse", "--short=8", "HEAD").strip() + ("+changes" if changes else "")


def state(drill: str, needs: str | None, known: Mapping[str, Mapping[str, Any]], today: date) -> str:
    """The section of the list that a drill belongs to."""
    if line := known.get(drill):
        old = date.fromisoformat(line["date"]) < today - timedelta(days=RECENT_DAYS)
        return f"passed, but not in the last {RECENT_DAYS} days" if old else "passed"
    return f"not run here: needs {needs}" if needs else "no pass recorded"


def listed(
    drills: Mapping[str, str | None], known: Mapping[str, Mapping[str, Any]], today: date
) -> Iterator[str]:
    """All drills by their states, and how many there are of each; `drills` has what each needs."""
    states = {drill: state(drill, needs, known, today) for drill, needs in drills.items()}
    counts = Counter(states.values())
    for title in sorted(counts):
        yield f"{title}:"
        for drill in (each for each, found in states.items() if found == title):
            yield f"  {_shown(known[drill])}  {drill}" if drill in known else f"  {drill}"
    yield f"{len(drills)} drills: " + ", ".join(f"{counts[title]} {title}" for title in sorted(counts))
    for drill in known.keys() - drills.keys():
        yield f"{RECORD} has a line for {drill}, which is no drill. Fix: delete the line"


def _shown(line: Mapping[str, Any]) -> str:
    return f"{line['date']}  {line['seconds']:>5} s  {line['commit']:16}"


def _needs(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("drill")
    return marker.kwargs.get("needs") if marker else None


def _record(item: pytest.Item, seconds: float) -> None:
    from lab.mirror import artifacts

    root = item.config.rootpath
    try:
        tree = commit(root)
    except (OSError, subprocess.CalledProcessError) as error:  # The drill has passed all the same.
        item.config.stash[_ERRORS].append(f"{item.nodeid}: {error}. Fix: run drills in a git clone")
        return
    line: dict[str, Any] = {
        "drill": item.nodeid,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": tree,
        "seconds": round(seconds),
    }
    if not artifacts.k3s_is_replaced():
        line["k3s"] = artifacts.k3s_version()
    if _counted["requests"]:
        line |= {name: _counted[name] for name in REQUESTS}
    known = passes(root) | {item.nodeid: line}
    text = "".join(f"{json.dumps(known[name])}\n" for name in sorted(known))
    (root / RECORD).write_text(text, encoding="utf-8")
    item.config.stash[_WRITTEN] += 1


# ---- hooks (loaded by the conftest.py of the project) -----------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make drills LIST=1`."""
    parser.addoption("--list-drills", action="store_true", help="list drills and their passes; run nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    about = "takes too long for `make test`; `make drills` runs it. `needs` is what most machines lack for it"
    config.addinivalue_line("markers", f"drill(needs=None): {about}")
    config.stash[_WRITTEN], config.stash[_ERRORS] = 0, []
    # Without it fixtures would leave their pods and files of stacks to the next drill.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """List the drills in place of running them."""
    if not session.config.getoption("--list-drills"):
        return None
    drills = {each.nodeid: _needs(each) for each in session.items if each.get_closest_marker("drill")}
    print()
    for line in listed(drills, passes(session.config.rootpath), datetime.now(UTC).date()):
        print(line)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a drill once its set-up, the test and what follows it have passed."""
    report = yield
    if item.get_closest_marker("drill"):
        phases = item.stash.setdefault(_PHASES, [])
        phases.append(report)
        if report.when == "teardown":
            if all(each.passed for each in phases):
                _record(item, next(each.duration for each in phases if each.when == "call"))
            _counted.clear()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was written, and what was not."""
    if written := config.stash[_WRITTEN]:
        terminalreporter.write_line(f"passes written to {RECORD}: {written}. `make docs` renews {PAGE}")
    for error in config.stash[_ERRORS]:
        terminalreporter.write_line(f"a pass was not written to {RECORD}: {error}", red=True)
