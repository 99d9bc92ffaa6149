"""The private parts of Pulumi's SDK that components use still do what they are used for.

pyproject.toml allows only the minor releases of the SDK with which these tests have passed.
"""

import asyncio
from types import SimpleNamespace

import pytest
from pulumi.runtime import stack

from tests.program.answers import performed
from tests.support.clusters import site

NO_END = (
    "the SDK does not wait for the engine's end as it did: check_after_deletions (components/engine/"
    "helm.py) would not run, and an update that has lost its operators would pass"
)
NO_DEBUG = (
    "the SDK does not send its debug messages by pulumi.log.debug any more: leave_out_debug_messages "
    "(components/engine/stack.py) has no effect"
)


def test_a_program_ends_with_the_wait_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    async def wait() -> None:
        calls.append("wait")
        raise ValueError("of the wait")

    monkeypatch.setattr(stack, "_wait_for_shutdown", wait)
    with pytest.raises(ValueError, match="of the wait"):
        asyncio.run(stack.run_pulumi_func(lambda: calls.append("program")))
        pytest.fail(NO_END)
    assert calls == ["program", "wait"], NO_END


def test_the_wait_that_is_replaced_asks_the_engine_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(stack, "get_monitor", lambda: SimpleNamespace(SignalAndWaitForShutdown=asked.append))
    asyncio.run(stack._wait_for_shutdown())
    assert len(asked) == 1, NO_END


def test_the_engine_is_sent_no_debug_messages() -> None:
    messages = performed(site()).debug_messages
    # The SDK registers the stack before it runs the program.
    assert messages and all("pulumi:pulumi:Stack" in text for text in messages), NO_DEBUG
