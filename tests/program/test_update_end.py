"""What the end of an update asks the cluster, and what fails the update, also if nothing was to be done."""

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
    without = run(network_operator={"enabled": False}).looked_for
    assert "busbar-network-operator" not in {release for _, release in without}


def test_a_preview_asks_the_cluster_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "DEAD_SERVERS", {"server-2": "the Node is not Ready"})
    monkeypatch.setattr(harness, "AT_THE_END", Nodes(names=frozenset(), ready=frozenset()))
    done = run(preview=True)
    assert (done.looked_for, done.error) == (set(), None)


def test_objects_of_a_fixed_name_are_deleted_before_they_are_replaced() -> None:
    """The provider adopts an object that exists: made first, the new one would be the former one."""
    done = run()
    named = [each for each in done.custom if each.inputs.get("metadata", {}).get("name")]
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


MISSING = ["Helm release a/b is not on the cluster", "Helm release a/c is at revision 1, expected 3"]
NO_API = ApiError("GET /api/v1", None, "connection refused")


@pytest.mark.parametrize(
    ("answer", "said"),
    [(MISSING, MISSING), (NO_API, ["connection refused. Fix: see what does not run: busbar verify test"])],
)
def test_what_is_missing_or_not_known_fails_the_update_and_the_outputs_are_kept(
    monkeypatch: pytest.MonkeyPatch, answer: Any, said: list[str]
) -> None:
    def ask(_: Run, expected: Expected) -> list[str]:
        if isinstance(answer, ApiError):
            raise answer
        return list(answer)

    monkeypatch.setattr(Run, "ask_installed", ask)
    done = run()
    assert isinstance(done.error, pulumi.RunError)
    assert [text for text in said if text not in str(done.error)] == []
    assert done.outputs["nccl_passed"] is True


NOT_READY = "the Node is not Ready"
DEAD = [f"server-2: {NOT_READY}", f"server-3: {NOT_READY}"]
DOWN = f"{{}}: {NOT_READY}. Fix: journalctl -u k3s-agent "


@pytest.mark.parametrize(
    ("change", "ready", "drained", "errors"),
    [
        ("two dead servers", 3, {}, DEAD),
        ("which are removed", 3, {}, []),
        ("two dead servers", 2, {}, [*DEAD, DOWN.format("gpu-3")]),
        ("", 1, {"gpu-2": "fan (by anna@ops)", "gpu-3": "driver 580"}, []),
        ("", 1, {"gpu-2": "fan"}, [DOWN.format("gpu-3")]),
        ("no Node of gpu-3", 1, {"gpu-2": "fan"},
         ["gpu-3: no Node in the cluster. Fix: busbar up test --converge gpu-3"]),
        ("gpu-3 is in quarantine", 1, {"gpu-2": "fan"}, []),
    ],
)  # fmt: skip
def test_a_host_that_does_not_serve_fails_the_update_unless_somebody_has_said_that_it_may_be_off(
    monkeypatch: pytest.MonkeyPatch, change: str, ready: int, drained: dict[str, str], errors: list[str]
) -> None:
    """A cluster of three workers, of which so many are Ready."""
    names = [f"gpu-{number}" for number in (1, 2, 3)]
    known = frozenset(names[: 2 if "no Node" in change else 3])
    at_the_end = Nodes(names=known, ready=frozenset(names[:ready]), drained=drained)
    monkeypatch.setattr(harness, "AT_THE_END", at_the_end)
    if "servers" in change or "removed" in change:
        monkeypatch.setattr(harness, "DEAD_SERVERS", dict.fromkeys(("server-2", "server-3"), NOT_READY))
    cluster = site(servers=1 if "removed" in change else 3, workers={"h100": 3})
    if "quarantine" in change:
        cluster["hosts"]["workers"][2]["quarantine"] = "RMA"
    done = run_program(cluster, healthy(cluster))
    said = str(done.error).splitlines() if done.error else []
    assert [line[: len(text)] for line, text in zip(said, errors, strict=True)] == errors
    anew = ", with --converge gpu-3 where K3s is gone"
    assert [line.endswith(anew) for line in said] == [text == DOWN.format("gpu-3") for text in errors]
    assert done.outputs["nccl_passed"] is True
    out = [f"{name} is not waited for, it was drained: {reason}" for name, reason in drained.items()]
    assert [text for text in done.messages if "it was drained" in text] == out
