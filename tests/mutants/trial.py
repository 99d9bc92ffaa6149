"""Runs the tests of an area in a copy of the checkout, with and without a mutant.

Each run is a fork of a process that has imported what the tests need from outside the checkout, and nothing
of the checkout itself: a run starts at once, and reads the sources anew.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import multiprocessing
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import pytest
from seeds import AREAS, PROJECT, Mutant

OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
OUTPUT = "mutants-output.txt"
# A test that a mutant sends into an endless loop. In CPU time: a busy machine must not catch mutants.
CPU_FACTOR, CPU_SECONDS = 5, 30
# A test that a mutant makes wait for ever.
WALL_SECONDS = 900

Outcome = Literal["caught", "timed out", "survived"]


@dataclass(frozen=True)
class TestFile:
    """A file of tests: what it takes without a mutant, and the functions of the area that it calls."""

    path: str
    cpu_seconds: float
    calls: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Baseline:
    """`modules`: those from outside the checkout that the tests import."""

    tests: list[TestFile]
    modules: list[str]


def use_copy(folder: str) -> None:
    """Make a copy of all files that git does not ignore, and work there: the checkout never changes."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, copy / name, follow_symlinks=False)
    os.chdir(copy)
    # The mode matters: a mutant written in the same second as the original is compiled anew all the same.
    compileall.compile_dir(copy, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    sys.dont_write_bytecode = False  # pytest compiles each test file once
    os.environ.pop("CI", None)  # with CI=true, tests of data beside the checkout fail; here they are skipped


def baseline(area: str) -> Baseline:
    """Run each test file of AREA without a mutant. Raises RuntimeError if one fails."""
    given = map(Path, AREAS[area]["tests"])
    files = {file for path in given for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    paths = sorted(map(str, files))
    tests, modules = [], set[str]()
    for path in paths:
        if path in _without(area):
            continue
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_observe, args=(area, path, sender))
        process.start()
        sender.close()
        try:
            seconds, calls, imported = receiver.recv()
        except EOFError:
            raise RuntimeError(f"{path} fails without a mutant:\n{Path(OUTPUT).read_text()}") from None
        process.join()
        tests.append(TestFile(path, seconds, calls))
        modules.update(imported)
        _import(sorted(modules))
    together = [test.path for test in tests]
    if _outcome(area, together, cpu_seconds=WALL_SECONDS) != "survived":
        raise RuntimeError(f"tests fail together without a mutant:\n{Path(OUTPUT).read_text()}")
    return Baseline(sorted(tests, key=lambda test: test.cpu_seconds), sorted(modules))


def attempt(area: str, mutant: Mutant, known: Baseline) -> Outcome:
    """Run the tests that call a function on the mutant's line, the quick ones first, until one fails."""
    reached = {(mutant.file, name) for name in mutant.functions}
    tests = [test for test in known.tests if reached & test.calls]
    if not tests:
        return "survived"
    _import(known.modules)
    limit = CPU_SECONDS + CPU_FACTOR * sum(test.cpu_seconds for test in tests)
    path = Path(mutant.file)
    original = path.read_text()
    path.write_text(mutant.code)
    try:
        return _outcome(area, [test.path for test in tests], round(limit))
    finally:
        path.write_text(original)


def _without(area: str) -> list[str]:
    without = AREAS[area].get("without", [])
    return without


def _import(modules: list[str]) -> None:
    for name in modules:
        # Pulumi's SDKs of providers replace their own modules while they are imported.
        if name not in sys.modules and not name.startswith("pulumi_"):
            # Some names are aliases that a module made of its own.
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _outcome(area: str, paths: list[str], cpu_seconds: int) -> Outcome:
    process = multiprocessing.get_context("fork").Process(target=_limited, args=(area, paths, cpu_seconds))
    process.start()
    process.join(WALL_SECONDS)
    if process.exitcode is None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return "timed out"
    if process.exitcode == -signal.SIGXCPU:
        return "timed out"
    return "caught" if process.exitcode else "survived"


def _limited(area: str, paths: list[str], cpu_seconds: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.exit(_pytest(area, paths))


def _pytest(area: str, paths: list[str]) -> int:
    """In a child: run pytest from the copy, and return its exit code."""
    sys.path.insert(0, os.getcwd())
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    deselected = [option for name in _without(area) for option in ("--deselect", name)]
    return int(pytest.main([*OPTIONS, *deselected, *paths]))


def _observe(area: str, path: str, sender: Connection) -> None:
    """In a child: send (CPU seconds, functions called, modules imported); nothing if a test fails."""
    called: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        called[id(frame.f_code)] = frame.f_code

    started = time.process_time()
    threading.settrace(note)
    sys.settrace(note)
    code = _pytest(area, [path])
    sys.settrace(None)
    if code:
        sys.exit(code)
    copy = os.getcwd()
    calls = {
        (os.path.relpath(code.co_filename, copy), code.co_qualname)
        for code in called.values()
        if code.co_filename.startswith(copy)
    }
    modules = [
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None)) and not file.startswith((copy, str(PROJECT / "tests")))
    ]
    sender.send((time.process_time() - started, frozenset(calls), modules))
