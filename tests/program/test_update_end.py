"""What is looked for on the cluster after the engine's deletions, and what fails the update."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from busbar.helm.installed import Expected
from busbar.kube.client import ApiError
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


def test_a_preview_looks_for_nothing() -> None:
    assert run(preview=True).looked_for == set()


def test_an_operator_that_is_not_configured_is_not_looked_for() -> None:
    disabled = {"enabled": False}
    assert "network-operator" not in {release for _, release in run(network_operator=disabled).looked_for}


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
        waits = ("gpu-operator-gpus", "network-operator-hcas")
        return [done.named(wait).request.replacement_trigger for wait in waits]

    first = triggers(1)
    assert triggers(1) == first
    assert all(new != old for new, old in zip(triggers(2), first, strict=True))
