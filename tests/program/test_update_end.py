"""What the end of an update asks the cluster, and what fails the update, also if nothing was to be done."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from busbar.helm.releases import Expected
from busbar.kube.batches import Nodes
from busbar.kube.client import ApiError
from tests.program import harness
from tests.program.answers import healthy
from tests.program.harness import RELEASE, Run, run_program
from tests.support.clusters import site


def run(preview: bool = False, **sections: Any) -> Run:
    cluster = site(**sections)
    return run_program(cluster, healthy(cluster), preview=preview)


def test_every_release_and_every_namespace_is_looked_for() -> None:
    done = run()
    assert done.error is None
    releases = [each.inputs for each in done.of_type(RELEASE)]
    assert {(each["namespace"], each["name"]) for each in releases} <= done.looked_for
    namespaces = {each.inputs["metadata"]["name"] for each in done.of_type("kubernetes:core/v1:Namespace")}
    assert {namespace for namespace, _ in done.looked_for} == namespaces


def test_a_preview_asks_the_cluster_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DEAD_SERVERS", {"server-2": "the Node is not Ready"})
    monkeypatch.setattr(harness, "AT_THE_END", Nodes(names=frozenset(), ready=frozenset()))
    done = run(preview=True)
    assert (done.looked_for, done.error) == (set(), None)


def test_an_operator_that_is_not_configured_is_not_looked_for() -> None:
    disabled = {"enabled": False}
    assert "busbar-network-operator" not in {
        release for _, release in run(network_operator=disabled).looked_for
    }


def test_what_is_missing_fails_the_update_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(_: Run, expected: Expected) -> list[str]:
        return ["Helm release a/b is not on the cluster"]

    monkeypatch.setattr(Run, "ask_installed", ask)
    done = run()
    assert isinstance(done.error, pulumi.RunError)
    assert "Helm release a/b is not on the cluster" in str(done.error)
    assert "Fix: `busbar up test --converge cluster`" in str(done.error)
    assert done.outputs["nccl_passed"] is True, "the outputs are kept"


def test_an_api_that_does_not_answer_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: Run, expected: Expected) -> list[str]:
        raise ApiError("GET /api/v1", None, "connection refused")

    monkeypatch.setattr(Run, "ask_installed", ask)
    done = run()
    assert isinstance(done.error, pulumi.RunError)
    assert "connection refused" in str(done.error)


def test_objects_of_a_fixed_name_are_deleted_before_they_are_replaced() -> None:
    """The provider adopts an object that exists: made first, the new one would be the former one."""
    done = run()
    named = [
        each for each in done.custom if "metadata" in each.inputs and each.inputs["metadata"].get("name")
    ]
    assert named
    assert [each.name for each in named if not each.request.deleteBeforeReplace] == []


def test_the_waits_for_devices_follow_the_installation_of_their_release() -> None:
    cluster = site()
    answer = healthy(cluster)

    def triggers(revision: int) -> list[object]:
        def found(args: Any) -> dict[str, Any]:
            more = {"status": {"revision": revision}} if args.typ == RELEASE else {}
            return {**answer(args), **more}

        done = run_program(cluster, found)
        waits = ("busbar-gpu-operator-gpus", "busbar-network-operator-hcas")
        return [done.named(wait).request.replacement_trigger for wait in waits]

    first = triggers(1)
    assert triggers(1) == first
    assert all(new != old for new, old in zip(triggers(2), first, strict=True))


def with_dead_servers(monkeypatch: pytest.MonkeyPatch, *dead: str, **sections: Any) -> Run:
    monkeypatch.setattr(harness, "DEAD_SERVERS", dict.fromkeys(dead, "the Node is not Ready"))
    return run(**sections)


def test_a_server_that_does_not_serve_fails_the_update_and_the_outputs_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = with_dead_servers(monkeypatch, "server-2", "server-3")
    assert str(done.error) == "server-2: the Node is not Ready\nserver-3: the Node is not Ready"
    assert done.outputs["nccl_passed"] is True


def test_a_server_that_this_configuration_removes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_dead_servers(monkeypatch, "server-2", "server-3", servers=1).error is None


def test_workers_that_are_not_ready_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    down = Nodes(names=frozenset(["gpu-1", "gpu-2"]), ready=frozenset(["gpu-1"]))
    monkeypatch.setattr(harness, "AT_THE_END", down)
    server, worker = str(with_dead_servers(monkeypatch, "server-3").error).splitlines()
    assert (server[:9], worker[:6]) == ("server-3:", "gpu-2:")


def with_gpu_1_ready(
    monkeypatch: pytest.MonkeyPatch, *, quarantined: bool = False, missing: str = "", **drained: str
) -> Run:
    """An update of three workers, of which only gpu-1 is Ready; `quarantined`: gpu-3; `missing`: no Node."""
    names = [name for name in ("gpu-1", "gpu-2", "gpu-3") if name != missing]
    known = {name.replace("_", "-"): reason for name, reason in drained.items()}
    state = Nodes(names=frozenset(names), ready=frozenset(["gpu-1"]), drained=known)
    monkeypatch.setattr(harness, "AT_THE_END", state)
    cluster = site(workers={"h100": 3})
    if quarantined:
        cluster["hosts"]["workers"][2]["quarantine"] = "RMA"
    return run_program(cluster, healthy(cluster))


def test_a_worker_that_was_drained_is_named_and_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    done = with_gpu_1_ready(monkeypatch, gpu_2="fan (by anna@ops)", gpu_3="driver 580")
    assert done.error is None
    assert [text for text in done.messages if "stays cordoned" in text] == [
        "gpu-2 stays cordoned, it was drained: fan (by anna@ops)",
        "gpu-3 stays cordoned, it was drained: driver 580",
    ]


def test_another_one_that_is_not_ready_fails_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    done = with_gpu_1_ready(monkeypatch, gpu_2="fan")
    assert str(done.error).startswith("gpu-3: the Node is not Ready. Fix: journalctl -u k3s-agent ")


def test_a_worker_whose_node_was_deleted_fails_the_update_with_the_fix_of_verify(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = with_gpu_1_ready(monkeypatch, missing="gpu-3", gpu_2="fan")
    assert str(done.error) == "gpu-3: no Node in the cluster. Fix: busbar up test --converge gpu-3"


def test_a_worker_in_quarantine_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_gpu_1_ready(monkeypatch, quarantined=True, gpu_2="fan").error is None
