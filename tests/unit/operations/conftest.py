"""No test logs in with the agent of whoever runs it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
