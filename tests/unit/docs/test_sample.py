"""The log, the picture and the verdicts that the README shows are those of today's code."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.docs.pages import ROOT, Page
from tests.unit.judge.nccl.made.log import Log
from tests.unit.judge.nccl.made.spec import cases

SAMPLE = ROOT / "examples" / "nccl" / "h100-2-nodes.log"
README = Page("README.md")
[SHOWN] = [block for block in README.blocks("console") if SAMPLE.name in block]
COMMANDS = re.findall(r"^\$ (.+)$", SHOWN, re.MULTILINE)


def run(command: str, folder: Path = ROOT) -> str:
    command = command.replace("busbar ", f"{shlex.quote(sys.executable)} -m busbar ")
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "COLUMNS": "80"},
        capture_output=True, text=True, check=False, timeout=60,
    ).stdout  # fmt: skip


def test_the_sample_is_the_one_that_the_tests_make() -> None:
    assert SAMPLE.read_text() == Log(cases()["the sample of the README"]).text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_verdict_that_the_readme_shows_is_printed(command: str) -> None:
    shown = SHOWN.partition(f"$ {command}\n")[2].partition("\n$ ")[0]
    assert run(command).strip() == shown.strip()


def test_the_picture_is_the_one_that_the_command_writes(tmp_path: Path) -> None:
    [option] = [span for span in README.spans() if span.startswith("--svg")]
    run(f"{COMMANDS[0]} {option.replace('docs', str(tmp_path))}")
    assert (tmp_path / "report.svg").read_text() == (ROOT / "docs" / "report.svg").read_text()
