"""The SDK's debug messages cost the engine a call each, so they are sent only where somebody wants them."""

from __future__ import annotations

import pytest

from busbar.components.engine import program
from tests.program.answers import healthy
from tests.program.harness import run_program
from tests.support.clusters import site


def test_the_engine_is_sent_no_debug_messages() -> None:
    cluster = site()
    run = run_program(cluster, healthy(cluster))
    assert run.error is None
    # The SDK registers the stack before it runs the program.
    assert [message for message in run.debug_messages if "pulumi:pulumi:Stack" not in message] == []


def test_a_person_who_looks_for_an_error_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(program.WANTED, "true")
    cluster = site()
    messages = run_program(cluster, healthy(cluster)).debug_messages
    assert any("resource registration successful" in message for message in messages)
