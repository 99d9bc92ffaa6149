"""Taints of workers: which are set and removed, and which stay."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from busbar.exits import Failed
from busbar.kube import taints
from busbar.kube.client import ApiError
from busbar.kube.drain import VOLUMES
from busbar.kube.nodes import DRAINED, NODES, Note, take_out
from tests.unit.kube.node_cluster import CONFIG_MAPS, Contended, Nodes, asking, node, volume

GPU = "nvidia.com/gpu=present:NoSchedule"
RECORD = f"{CONFIG_MAPS}/{taints.RECORD}"


def apply(cluster: Nodes, **wanted: list[str]) -> list[str]:
    """Set the taints of workers, w_1 for the worker w-1."""
    spec = taints.TaintsSpec(taints={name.replace("_", "-"): found for name, found in wanted.items()})
    return taints.apply(cluster, spec, cluster.clock, lambda _: None)


QUARANTINE = "busbar/quarantine=true:NoSchedule"


def quarantine(cluster: Nodes, reason: str | None, *, cordon: bool = False) -> list[str]:
    """Put w-1 in quarantine, or with None end it. `cordon`: its pool has `quarantine_cordon`."""
    held = {"w-1": [QUARANTINE] if reason else []}
    reasons, names = ({"w-1": reason}, ["w-1"] * cordon) if reason else ({}, [])
    spec = taints.TaintsSpec(taints=held, quarantine=reasons, cordon=names)
    return taints.apply(cluster, spec, cluster.clock, lambda _: None, asking(cluster))


@pytest.fixture
def cluster() -> Nodes:
    """A worker without taints."""
    return Nodes(node("w-1", "b"))


def noted(cluster: Nodes) -> dict[str, str]:
    text = cluster.objects[f"{NODES}/w-1"]["metadata"]["annotations"].get("busbar/quarantine")
    return json.loads(text) if text else {}


def told(cluster: Nodes) -> list[str]:
    """What schedulers were told."""
    return [text for text in cluster.log if "scheduler" in text]


def test_a_quarantine_is_a_taint_and_its_reason_is_noted_with_the_time(cluster: Nodes) -> None:
    assert quarantine(cluster, "rail 3 slow") == ["w-1"]
    assert cluster.taints("w-1") == {QUARANTINE}
    assert noted(cluster)["why"] == "rail 3 slow"
    assert datetime.fromisoformat(noted(cluster)["since"]).utcoffset() == timedelta(0)


def test_a_quarantine_and_its_end_are_told_once_by_events_and_to_schedulers(cluster: Nodes) -> None:
    for reason in ("fan", "fan", None, None):
        quarantine(cluster, reason)
    found = [body for path, body in cluster.created if path == "/api/v1/namespaces/default/events"]
    assert [(each["type"], each["reason"], each["message"]) for each in found] == [
        ("Warning", "BusbarQuarantine", "fan"),
        ("Normal", "BusbarQuarantineEnded", "no quarantine any more"),
    ]
    about = [(each["involvedObject"]["kind"], each["involvedObject"]["name"]) for each in found]
    assert about == [("Node", "w-1")] * 2
    assert told(cluster) == ["w-1 drained by the scheduler: quarantine: fan", "w-1 back in the scheduler"]


def test_a_quarantine_keeps_its_time_until_it_has_another_reason(cluster: Nodes) -> None:
    before = Note("rail 3 slow", since="2026-01-01T00:00:00+00:00")
    quarantine(cluster, before.why)
    cluster.objects[f"{NODES}/w-1"]["metadata"]["annotations"]["busbar/quarantine"] = before.text
    assert (quarantine(cluster, before.why), noted(cluster)["since"]) == ([], before.since)
    assert quarantine(cluster, "fan") == ["w-1"]
    assert noted(cluster)["since"] != before.since


def test_a_worker_in_capital_letters_has_reason_and_cordon_of_its_quarantine_too(cluster: Nodes) -> None:
    spec = taints.TaintsSpec(taints={"W-1": [QUARANTINE]}, quarantine={"W-1": "fan"}, cordon=["W-1"])
    assert taints.apply(cluster, spec, cluster.clock, lambda _: None) == ["w-1"]
    assert cluster.taints("w-1") == {QUARANTINE}
    assert (cluster.seen().unschedulable, cluster.seen().quarantine) == (True, "fan")


def test_a_cordon_comes_and_goes_with_its_key_and_is_set_again_if_it_was_ended(cluster: Nodes) -> None:
    quarantine(cluster, "fan")
    assert quarantine(cluster, "fan", cordon=True) == ["w-1"]
    cluster.objects[f"{NODES}/w-1"]["spec"]["unschedulable"] = False
    assert quarantine(cluster, "fan", cordon=True) == ["w-1"]
    assert quarantine(cluster, "fan") == ["w-1"]
    assert (cluster.seen().unschedulable, cluster.seen().quarantine) == (False, "fan")


def test_a_reason_that_somebody_wrote_by_hand_is_overwritten(cluster: Nodes) -> None:
    cluster.objects[f"{NODES}/w-1"]["metadata"]["annotations"]["busbar/quarantine"] = "by hand"
    assert (quarantine(cluster, "fan"), noted(cluster)["why"]) == (["w-1"], "fan")


def record(cluster: Nodes) -> str:
    return str(cluster.objects[RECORD]["data"]["taints"])


def test_a_taint_that_is_added_to_a_pool_arrives_at_the_nodes_that_have_joined() -> None:
    cluster = Nodes(node("s-1", "a", server=True), node("w-1", "b"), node("w-2", "c", GPU))
    assert apply(cluster, w_1=[GPU], w_2=[GPU], w_9=[GPU]) == ["w-1"]
    assert (cluster.taints("w-1"), cluster.taints("s-1")) == ({GPU}, set())


OTHER = "site=x:NoSchedule"
CHANGES: dict[str, tuple[list[str], list[str], list[str], set[str]]] = {
    "one leaves the configuration": ([GPU, OTHER], [GPU], [], {OTHER}),
    "another value": (["a=1:NoSchedule"], ["a=1:NoSchedule"], ["a=2:NoSchedule"], {"a=2:NoSchedule"}),
    "another effect": (["b=:NoSchedule"], ["b=:NoSchedule"], ["b=:NoExecute"], {"b=:NoExecute"}),
}


@pytest.mark.parametrize(("before", "first", "then", "after"), CHANGES.values(), ids=CHANGES)
def test_taints_of_the_configuration_follow_it_and_those_of_others_stay(
    before: list[str], first: list[str], then: list[str], after: set[str]
) -> None:
    cluster = Nodes(node("w-1", "b", *before))
    assert (apply(cluster, w_1=first), apply(cluster, w_1=then)) == ([], ["w-1"])
    assert cluster.taints("w-1") == after


def test_a_taint_that_stays_keeps_the_time_at_which_it_came() -> None:
    cluster = Nodes(node("w-1", "b", "gone=:NoExecute"))
    found = cluster.objects[f"{NODES}/w-1"]["spec"]
    found["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    apply(cluster, w_1=[GPU])
    assert found["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def label(cluster: Nodes, *labels: str) -> dict[str, str]:
    """The labels of w-1 after these were set."""
    spec = taints.TaintsSpec(taints={"w-1": [GPU]}, labels={"w-1": [*labels]})
    taints.apply(cluster, spec, cluster.clock, lambda _: None)
    found: dict[str, str] = cluster.objects[f"{NODES}/w-1"]["metadata"]["labels"]
    return found


def test_labels_that_change_later_arrive_at_the_node_and_others_stay(cluster: Nodes) -> None:
    own = cluster.objects[f"{NODES}/w-1"]["metadata"]["labels"]
    own["site"] = "x"
    assert label(cluster, "zone=a", "rack=") == {"site": "x", "zone": "a", "rack": ""}
    del own["zone"]
    assert label(cluster, "zone=a", "rack=2") == {"site": "x", "zone": "a", "rack": "2"}
    cluster.log.clear()
    label(cluster, "zone=a", "rack=2")
    assert cluster.log == []
    assert label(cluster, "zone=a") == {"site": "x", "zone": "a"}
    assert (label(cluster), cluster.taints("w-1")) == ({"site": "x"}, {GPU})


def test_a_node_that_changes_at_the_same_time_is_read_again() -> None:
    cluster = Contended(node("w-1", "b"))
    apply(cluster, w_1=[GPU])
    assert (cluster.taints("w-1"), cluster.seen().unschedulable) == ({GPU}, True)


def test_a_node_that_is_gone_meanwhile_is_no_error(cluster: Nodes) -> None:
    cluster.failures = [None, None, ApiError("GET /", 404, "not found")]
    assert apply(cluster, w_1=[GPU]) == []


def test_taints_that_could_not_be_set_are_set_by_the_next_run() -> None:
    cluster = Nodes(node("w-1", "b", GPU))
    apply(cluster, w_1=[GPU])
    cluster.failures = [None, None, ApiError("GET /", 403, "not allowed")]
    with pytest.raises(ApiError, match="not allowed"):
        apply(cluster, w_1=[])
    assert record(cluster) == f"w-1 {GPU}\n"
    assert apply(cluster, w_1=[]) == ["w-1"]


def test_schedulers_keep_off_a_worker_after_its_quarantine_where_it_is_drained(cluster: Nodes) -> None:
    quarantine(cluster, "fan")
    take_out(cluster, "w-1", DRAINED, "driver 580", "anna@ops", datetime.now(UTC))
    quarantine(cluster, None)
    assert told(cluster)[-1].startswith("w-1 drained by the scheduler: driver 580")


def test_a_worker_with_data_of_a_claim_is_not_taken_out_before_anything_is_measured() -> None:
    cluster = Nodes(node("w-1", "b"), node("w-2", "c"))
    apply(cluster, w_1=[GPU], w_2=[])
    cluster.objects[f"{VOLUMES}/a"] = volume("data", "w-2")
    for _ in range(2):
        with pytest.raises(Failed, match=r"w-2 \(site/data\)\. Fix: copy what is needed"):
            apply(cluster, w_1=[])
    assert cluster.taints("w-1") == {GPU}, "nothing is changed"
    del cluster.objects[f"{VOLUMES}/a"]
    assert apply(cluster, w_1=[]) == ["w-1"]
