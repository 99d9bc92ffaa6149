"""The command line without an engine, and where pulumi is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from busbar.cli.main import main
from busbar.cli.stack import Options
from tests.support.cli import busbar

PROJECT = Path(__file__).resolve().parents[4] / "examples" / "consumer"


def test_up_gets_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def up(_: object, options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr("busbar.cli.stack.commands.up", up)
    for words in ("up", "up --yes --skip-preview --refresh --parallel 7 --converge w-1,,w-2", "preview"):
        assert busbar(*words.split(), "dev", "-C", str(PROJECT)).exit_code == 0
    assert seen == [Options(), Options(True, True, True, 7, ("w-1", "w-2")), Options(only_preview=True)]


@pytest.mark.parametrize(
    ("words", "ends"), [("schema", 0), ("up --help", 0), ("up dev --yes", 64)], ids=lambda value: str(value)
)
def test_only_what_needs_pulumi_imports_it_and_says_how_to_get_it(words: str, ends: int) -> None:
    without = "import sys; sys.modules['pulumi'] = None; from busbar.cli.main import main; main()"
    run = [sys.executable, "-c", without, *words.split()]
    done = subprocess.run(run, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ends, done.stderr
    if ends:
        assert "Python package pulumi" in done.stderr and "busbar docs sites 'A site" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("mode", "says"),
    [(None, "not on PATH"), (0o644, "Permission denied"), (0o755, "your current CLI version is 3.100.0")],
)
def test_without_a_pulumi_that_can_be_used_the_fix_says_where_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, says: str
) -> None:
    if mode:
        (tmp_path / "pulumi").write_text("#!/bin/sh\necho v3.100.0\n")
        (tmp_path / "pulumi").chmod(mode)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = busbar("up", "dev", "-C", str(PROJECT), "--yes")
    assert done.exit_code == 64
    assert says in done.stderr
    assert "Fix: install the Pulumi CLI (https://www.pulumi.com/docs/install/)" in done.stderr


def test_a_proxy_of_the_shell_is_not_used_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,localhost")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(sys, "argv", ["busbar", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "10.0.0.0/8,localhost,127.0.0.1"
