"""The command line without an engine: usage, and what works where pulumi is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from busbar.cli import build
from busbar.cli.stack.target import Options

PROJECT = Path(__file__).resolve().parents[4]

# Imports of pulumi fail as if it were not installed.
WITHOUT_PULUMI = "import sys; sys.modules['pulumi'] = None; from busbar.cli import main; main()"


def _busbar(
    *arguments: str,
    code: str = "from busbar.cli import main; main()",
    stdin: int = subprocess.DEVNULL,
    **environment: str,
) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_help_and_the_other_commands_do_not_import_pulumi() -> None:
    code, printed = _busbar("schema", code=WITHOUT_PULUMI)
    assert code == 0, printed
    code, printed = _busbar("up", "--help", code=WITHOUT_PULUMI)
    assert code == 0, printed


def test_help_documents_the_exit_codes() -> None:
    for command in ("up", "preview", "destroy", "status"):
        _, printed = _busbar(command, "--help", COLUMNS="200")
        assert "130: interrupted" in printed, command


@pytest.mark.parametrize("command", ["preview", "destroy"])
def test_the_help_of_a_command_that_reads_no_verdict_names_no_gate(command: str) -> None:
    _, printed = _busbar(command, "--help", COLUMNS="200")
    assert "gate" not in printed


@pytest.mark.parametrize("command", ["up", "destroy"])
def test_fifty_hosts_are_worked_on_at_once_whatever_this_machine_has(command: str) -> None:
    _, printed = _busbar(command, "--help", COLUMNS="200")
    assert "default: 50" in printed and "PULUMI_PARALLEL" in printed


def test_up_gets_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def up(_: object, options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr("busbar.cli.stack._commands", lambda: SimpleNamespace(up=up))
    for words in ("", "--yes --skip-preview --refresh --parallel 7 --converge w-1,,w-2"):
        assert CliRunner().invoke(build(), ["up", "dev", "-C", str(PROJECT), *words.split()]).exit_code == 0
    assert seen == [Options(), Options(True, True, True, 7, ("w-1", "w-2"))]


def test_without_the_package_pulumi_up_says_how_to_get_it() -> None:
    code, printed = _busbar("up", "dev", "--yes", code=WITHOUT_PULUMI)
    assert code == 64
    assert "Python package pulumi" in printed and "`pip install '.[stack]'`" in printed
    assert "Traceback" not in printed


def test_without_the_pulumi_command_up_says_how_to_install_it(tmp_path: Path) -> None:
    code, printed = _busbar("up", "dev", "--yes", PATH=str(tmp_path))
    assert code == 64
    assert "pulumi" in printed and "https://www.pulumi.com/docs/install/" in printed


@pytest.mark.parametrize("command", ["up", "destroy"])
def test_without_a_terminal_and_without_yes_nothing_is_started(command: str, tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    for stdin in (subprocess.DEVNULL, terminal):  # the question would go into a file
        code, printed = _busbar(command, "dev", stdin=stdin, PATH=str(tmp_path))
        assert (code, "--yes" in printed) == (64, True)
    os.close(ours)
    os.close(terminal)


@pytest.mark.parametrize("arguments", [("up",), ("up", "dev", "--nonsense"), ("destroy", "--parallel", "0")])
def test_bad_usage_exits_with_64(arguments: tuple[str, ...]) -> None:
    assert _busbar(*arguments)[0] == 64


@pytest.mark.parametrize(
    "command",
    ["up", "preview", "destroy", "status", "check-config", "preflight", "support-bundle"],
)
def test_every_command_exits_with_64_for_a_stack_that_does_not_exist(command: str) -> None:
    code, printed = _busbar(command, "nosuch")
    assert code == 64, printed
    assert "Pulumi.nosuch.yaml" in printed
