"""What ends an update that cannot learn whether its workers run."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pulumi
import pytest

from busbar.components.engine import node_steps
from busbar.kube import batches
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (ApiError("GET /api/v1/nodes", 403, "forbidden"), True),
        (TimedOut(20, "no answer", None), True),
        (ValueError("a kubeconfig without a server"), False),
    ],
)
def test_an_api_that_does_not_answer_fails_the_update_and_an_unusable_kubeconfig_is_a_warning(
    error: Exception, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: Any, **__: Any) -> None:
        raise error

    said: list[str] = []
    monkeypatch.setattr(batches, "ask", ask)
    monkeypatch.setattr(pulumi, "warn", said.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    text = f"it is unknown whether the workers' agents are running: {error}"
    with pytest.raises(pulumi.RunError, match="unknown whether") if fails else nullcontext() as caught:
        asyncio.run(node_steps.fail_unless_ready(["gpu-1"], "a kubeconfig"))
    assert [*said, *([str(caught.value)] if caught else [])] == [text]
