"""What ends an update that cannot learn whether its servers and workers run, and what schedulers are told."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from busbar import config
from busbar.components.engine import node_steps
from busbar.finding import STACK_SHOWN
from busbar.hosts import scripts
from busbar.kube import batches, health, nodes
from busbar.kube.client import ApiError, UnknownAuthority
from busbar.kube.wait import TimedOut
from tests.support.clusters import site
from tests.unit.kube.node_cluster import Nodes, Scheduler, node, pod

CLUSTER = config.load(site(), root=Path())
REFUSED = ApiError("GET /api/v1/nodes", 403, "forbidden")


@pytest.fixture(autouse=True)
def update(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An update of the stack prod, whatever program has run in this process before; what it warns of."""
    said: list[str] = []
    monkeypatch.setattr(pulumi, "get_stack", lambda: "prod")
    monkeypatch.setattr(pulumi, "warn", said.append)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    return said


def raising(answer: Any) -> Any:
    """A function with this answer, which it raises where it is an error."""

    def answers(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return answers


READY = batches.Nodes(names=frozenset(["gpu-1"]), ready=frozenset(["gpu-1"]))


def end(monkeypatch: pytest.MonkeyPatch, workers: Any = READY, servers: Any = (), problems: Any = ()) -> None:
    """End an update whose cluster gives these answers."""
    monkeypatch.setattr(batches, "ask", raising(workers))
    monkeypatch.setattr(nodes, "ask_servers", raising([] if servers == () else servers))
    monkeypatch.setattr(health, "await_health", raising([*problems]))
    asyncio.run(node_steps.fail_unless_ready(CLUSTER, ["server-1"], ["gpu-1"], "a kubeconfig"))


@pytest.mark.parametrize(
    "answers",
    [
        {"workers": REFUSED},
        {"workers": TimedOut(20, "no answer", None)},
        {"servers": REFUSED},
        {"servers": TimedOut(60, "waiting for the API", REFUSED)},
    ],
)
def test_a_silent_api_fails_an_update(answers: dict[str, Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    [error] = answers.values()
    monkeypatch.setenv(STACK_SHOWN, "prod")
    with pytest.raises(pulumi.RunError) as caught:
        end(monkeypatch, **answers)
    unknown = f"it is unknown whether servers and workers are running: {error}"
    assert str(caught.value) == f"{unknown}. Fix: see what does not run: busbar verify prod"


def test_an_unusable_kubeconfig_is_a_warning(update: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    end(monkeypatch, workers=ValueError("a kubeconfig without a server"))
    unknown = "it is unknown whether servers and workers are running"
    assert update == [f"{unknown}: a kubeconfig without a server"]


def test_a_cluster_that_was_made_anew_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = TimedOut(20, "no answer", UnknownAuthority("GET /api/v1/nodes", None, "self-signed"))
    with pytest.raises(pulumi.RunError, match=r"Fix: busbar up \S+ --converge server-1, which reads"):
        end(monkeypatch, workers=anew)


def test_a_cluster_that_does_not_work_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pulumi.RunError, match=r"^cluster: no scheduler\. Fix: start one$"):
        end(monkeypatch, problems=[health.problem("no scheduler", "start one")])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The cluster of a worker with a pod, and with jobs of a scheduler; hooks are called directly."""
    cluster = Nodes(node("w-1", "b"), pods=(pod("app", "w-1"),))
    monkeypatch.setattr(pulumi, "ResourceHook", lambda name, callback: callback)
    monkeypatch.setattr(pulumi, "ErrorHook", lambda name, callback: callback)
    monkeypatch.setattr(pulumi.log, "info", lambda _: None)
    monkeypatch.setattr(pulumi.log, "error", cluster.log.append)
    monkeypatch.setattr(node_steps, "RestApi", lambda _: cluster)
    monkeypatch.setattr(node_steps, "drain_hooks", lambda api, on, why: [Scheduler(api, on, why, 20)])
    monkeypatch.setattr(node_steps, "SystemClock", lambda: cluster.clock)
    return cluster


def hooks(seconds: float = 60) -> Any:
    return node_steps.restart_hooks("pool", {"worker-w-1": "w-1"}, "KUBECONFIG", seconds=seconds)


def called(hook: Any, *errors: str) -> Any:
    return asyncio.run(hook(SimpleNamespace(name="worker-w-1", errors=errors)))


ASKS = f"exit status 1: running:\n{scripts.NOT_DRAINED}\nbusbar: w-1: it was not restarted"
DRAINED = ["w-1 drained by the scheduler: restart of K3s", "w-1 cordoned", "app evicted"]
BACK = ["w-1 uncordoned", "w-1 back in the scheduler"]


def test_a_worker_whose_agent_has_to_restart_is_drained_once_and_put_back(cluster: Nodes) -> None:
    binding = hooks()
    called(binding.before_update[0])
    assert called(binding.on_error[0], ASKS) is True
    assert cluster.log == DRAINED
    called(binding.after_update[0])
    assert cluster.log == DRAINED + BACK
    assert called(binding.on_error[0], ASKS, ASKS) is False, "no third run"


def test_a_worker_that_does_not_ask_is_not_drained(cluster: Nodes) -> None:
    binding = hooks()
    called(binding.before_create[0])
    assert called(binding.on_error[0], scripts.not_delivered("k3s-agent")) is False
    called(binding.after_create[0])
    assert cluster.log == []


def test_a_worker_whose_update_was_interrupted_or_fails_after_its_drain_is_put_back(cluster: Nodes) -> None:
    called(hooks().on_error[0], ASKS)
    called((binding := hooks()).before_update[0])
    assert cluster.log == DRAINED + BACK
    cluster.log.clear()
    called(binding.on_error[0], ASKS)
    assert called(binding.on_error[0], "not Ready", ASKS) is False
    assert cluster.log[-2:] == BACK


def test_an_agent_is_not_restarted_while_jobs_remain(cluster: Nodes) -> None:
    assert called(hooks(seconds=10).on_error[0], ASKS) is False
    assert "drain of w-1 timed out after 10 s: jobs of the scheduler; its agent was not" in cluster.log[2]
    assert cluster.log[-2:] == BACK
