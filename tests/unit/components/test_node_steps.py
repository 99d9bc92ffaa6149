"""What ends an update that cannot learn whether its servers and workers run."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pulumi
import pytest

from busbar.components.engine import node_steps
from busbar.kube import batches, servers
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut

REFUSED = ApiError("GET /api/v1/nodes", 403, "forbidden")


@pytest.mark.parametrize(
    ("of_workers", "of_servers", "fails"),
    [
        (REFUSED, None, True),
        (TimedOut(20, "no answer", None), None, True),
        (ValueError("a kubeconfig without a server"), None, False),
        (None, REFUSED, True),
        (None, TimedOut(60, "waiting for the API", REFUSED), True),
    ],
)
def test_an_api_that_does_not_answer_fails_the_update_and_an_unusable_kubeconfig_is_a_warning(
    of_workers: Exception | None,
    of_servers: Exception | None,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(*_: Any, **__: Any) -> batches.Nodes:
        if of_workers:
            raise of_workers
        return batches.Nodes(names=frozenset(["gpu-1"]), ready=frozenset(["gpu-1"]))

    def ask_servers(*_: Any) -> str:
        if of_servers:
            raise of_servers
        return ""

    said: list[str] = []
    monkeypatch.setattr(batches, "ask", ask)
    monkeypatch.setattr(servers, "ask", ask_servers)
    monkeypatch.setattr(pulumi, "warn", said.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    text = f"it is unknown whether servers and workers are running: {of_workers or of_servers}"
    with pytest.raises(pulumi.RunError, match="unknown whether") if fails else nullcontext() as caught:
        asyncio.run(node_steps.fail_unless_ready(["server-1"], ["gpu-1"], "a kubeconfig"))
    assert [*said, *([str(caught.value)] if caught else [])] == [text]
