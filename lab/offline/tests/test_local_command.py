"""local.Command: real processes, driven as the engine drives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.offline.tests.plugin_engine import Engine, OperationFailed

TOKEN = "command:local:Command"


def test_a_command_gets_its_folder_environment_and_stdin(command: Engine, tmp_path: Path) -> None:
    _, _, state = command.up(
        TOKEN,
        {"create": "pwd; echo $X; cat", "dir": str(tmp_path), "environment": {"X": "1"}, "stdin": "in"},
    )
    assert state["stdout"] == f"{tmp_path}\n1\nin"


def test_another_interpreter_gets_the_text_as_its_last_word(command: Engine) -> None:
    _, _, state = command.up(TOKEN, {"create": "print(6 * 7)", "interpreter": ["python3", "-c"]})
    assert state["stdout"] == "42"


def test_the_former_output_is_in_the_environment_of_the_next_run(command: Engine) -> None:
    id, checked, state = command.up(TOKEN, {"create": "echo first"})
    news = {**checked, "update": "echo was $PULUMI_COMMAND_STDOUT"}
    assert command.update(TOKEN, id, state, news)["stdout"] == "was first"
    silent = {**news, "addPreviousOutputInEnv": False}
    assert command.update(TOKEN, id, state, silent)["stdout"] == "was"


def test_a_failure_names_status_and_text(command: Engine) -> None:
    with pytest.raises(OperationFailed) as failed:
        command.up(TOKEN, {"create": "echo why >&2; exit 4"})
    assert str(failed.value) == 'exit status 4: running "echo why >&2; exit 4":\nwhy\n'


def test_a_missing_folder_is_a_failure(command: Engine) -> None:
    with pytest.raises(OperationFailed, match="No such file or directory"):
        command.up(TOKEN, {"create": "true", "dir": "/nowhere/at/all"})


def test_a_cancelled_command_ends_with_its_children(command: Engine, tmp_path: Path) -> None:
    command.cancel(0.5)
    with pytest.raises(OperationFailed, match="signal: killed"):
        command.up(TOKEN, {"create": "sleep 60 & sleep 60; wait", "dir": str(tmp_path)})


def test_a_refresh_sees_no_drift(command: Engine) -> None:
    id, checked, state = command.up(TOKEN, {"create": "date +%N"})
    assert command.read(TOKEN, id, state, checked) == state
