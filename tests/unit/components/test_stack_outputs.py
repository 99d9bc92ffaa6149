"""What is exported where a step has failed: all outputs, or none of them."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from busbar.components.engine.stack import INCOMPLETE, UNFINISHED, export_all, fail_unless_made


def exported(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, preview: bool = False, step: Any = None
) -> dict[str, Any]:
    """What the SDK would send to the engine; None for a value that is not known."""

    async def scenario() -> dict[str, Any]:
        sent: dict[str, pulumi.Output[Any]] = {}
        monkeypatch.setattr(pulumi, "export", sent.__setitem__)
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
        steps: Any = [SimpleNamespace(stdout=step())] if step else []
        export_all({name: value() if callable(value) else value for name, value in values.items()}, steps)
        return {name: await value.future() for name, value in sent.items()}

    return asyncio.run(scenario())


def unknown() -> pulumi.Output[str]:
    """The output of a step that failed, or of one that a preview does not make."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    no: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    no.set_result(False)
    return pulumi.Output(set(), future, no)


def test_values_that_are_all_known_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported({"a": 1, "b": "two"}, monkeypatch) == {"a": 1, "b": "two"}


def test_one_value_that_is_not_known_keeps_all_from_being_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pulumi.RunError, match=re.escape(INCOMPLETE)):
        exported({"a": 1, "b": unknown}, monkeypatch)


def test_a_step_that_failed_keeps_all_from_being_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pulumi.RunError, match=re.escape(INCOMPLETE)):
        exported({"a": 1}, monkeypatch, step=unknown)


@pytest.mark.parametrize("preview", [False, True])
def test_a_step_that_failed_keeps_the_engine_from_deleting_what_is_no_longer_configured(
    monkeypatch: pytest.MonkeyPatch, preview: bool
) -> None:
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)

    async def scenario() -> None:
        made, failed = pulumi.Output.from_input("x"), unknown()
        steps: Any = [SimpleNamespace(stdout=made)]
        await fail_unless_made(steps)
        steps.append(SimpleNamespace(stdout=failed))
        await fail_unless_made(steps)

    with nullcontext() if preview else pytest.raises(pulumi.RunError, match=re.escape(UNFINISHED)):
        asyncio.run(scenario())


def test_a_preview_may_leave_values_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported({"a": 1, "b": unknown}, monkeypatch, preview=True) == {"a": 1, "b": None}


def test_a_secret_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[bool]:
        sent: dict[str, pulumi.Output[Any]] = {}
        monkeypatch.setattr(pulumi, "export", sent.__setitem__)
        export_all({"key": pulumi.Output.secret("x"), "plain": "y"})
        return [await sent[name].is_secret() for name in ("key", "plain")]

    assert asyncio.run(scenario()) == [True, False]
