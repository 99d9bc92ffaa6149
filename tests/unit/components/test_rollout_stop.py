"""After a failure no agent of the pool begins to restart; the hooks are called as the engine calls them."""

from __future__ import annotations

import pulumi
import pytest

from busbar.hosts.scripts import TURN_KEPT
from components.engine import rollout_stop
from components.engine.rollout_stop import RolloutStop

HOSTS = {"worker-a": "a", "worker-b": "b"}
KEPT = f"busbar: a: drain timed out after 20 s: site/web-1. Fix: retry\nbusbar: a: {TURN_KEPT}; more"


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> RolloutStop:
    for hook in ("ErrorHook", "ResourceHook"):
        monkeypatch.setattr(rollout_stop.pulumi, hook, lambda name, callback: callback)
    return RolloutStop("gpu", HOSTS)


def fails(stop: RolloutStop, name: str, *errors: str) -> bool:
    """Whether the engine is asked to retry; `errors`: the newest first."""
    return stop.note(pulumi.ErrorHookArgs("urn", "id", name, "type", errors=list(errors)))


def begins(stop: RolloutStop, name: str) -> None:
    stop.refuse(pulumi.ResourceHookArgs("urn", "id", name, "type"))


def test_agents_begin_while_none_has_failed(stop: RolloutStop) -> None:
    begins(stop, "worker-a")
    begins(stop, "worker-b")


def test_no_agent_begins_after_one_that_failed_during_its_turn(stop: RolloutStop) -> None:
    assert fails(stop, "worker-a", KEPT) is False
    with pytest.raises(
        RuntimeError, match=r"^b: a failed in this update; no other agent of pool gpu restarts"
    ):
        begins(stop, "worker-b")


@pytest.mark.parametrize(
    "error", ["dial tcp 10.0.0.21:22: i/o timeout", "busbar: a: the download failed. Fix: retry"]
)
def test_a_failure_before_its_turn_holds_no_other_agent_up(stop: RolloutStop, error: str) -> None:
    assert fails(stop, "worker-a", error) is False
    begins(stop, "worker-b")
