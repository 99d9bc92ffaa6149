"""Notes of busbar on Nodes: for which a Node is cordoned, and whose a cordon is."""

from datetime import UTC, datetime

import pytest

from busbar.kube.nodes import CORDONED, DRAINED, NODES, QUARANTINE, Node, Note, put_back, take_out
from tests.unit.kube.node_cluster import Nodes, node

ALL = (CORDONED, QUARANTINE, DRAINED)
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.fixture
def cluster() -> Nodes:
    """A worker without notes."""
    return Nodes(node("w-1"))


def out(cluster: Nodes, key: str, *, cordon: bool = True) -> bool:
    return take_out(cluster, "w-1", key, "fan", "anna@ops", NOW, cordon=cordon)


def by_kubectl(cluster: Nodes, *, unschedulable: bool) -> None:
    """`kubectl cordon` or `kubectl uncordon`, and what the API notes about it."""
    found = cluster.objects[f"{NODES}/w-1"]
    found["spec"]["unschedulable"] = unschedulable
    manager = {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    found["metadata"]["managedFields"] = [manager] if unschedulable else []


def test_a_note_says_why_by_whom_since_when_and_that_it_came_with_a_cordon(cluster: Nodes) -> None:
    assert not out(cluster, DRAINED)
    assert cluster.seen().notes == {DRAINED: Note("fan", "anna@ops", "2026-11-28T12:00:00+00:00", True)}


@pytest.mark.parametrize("key", ALL)
def test_a_cordon_that_an_admin_has_set_before_ours_outlives_it(cluster: Nodes, key: str) -> None:
    by_kubectl(cluster, unschedulable=True)
    out(cluster, key)
    out(cluster, key)
    assert not put_back(cluster, "w-1", key)
    assert cluster.seen().cordoned_by_others and not cluster.seen().notes


@pytest.mark.parametrize("key", ALL)
def test_a_cordon_that_an_admin_has_set_after_ours_was_ended_outlives_it(cluster: Nodes, key: str) -> None:
    out(cluster, key)
    by_kubectl(cluster, unschedulable=False)
    by_kubectl(cluster, unschedulable=True)
    assert cluster.seen().cordoned_by_others
    assert not put_back(cluster, "w-1", key)
    assert cluster.seen().unschedulable


@pytest.mark.parametrize("manager", ["busbar", "ancient-changes"])
def test_a_cordon_of_ours_ends_whatever_the_api_has_kept_about_it(cluster: Nodes, manager: str) -> None:
    out(cluster, DRAINED)
    by_kubectl(cluster, unschedulable=True)
    cluster.objects[f"{NODES}/w-1"]["metadata"]["managedFields"][0]["manager"] = manager
    assert put_back(cluster, "w-1", DRAINED)


@pytest.mark.parametrize(("first", "last"), [(DRAINED, QUARANTINE), (QUARANTINE, DRAINED)])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_cordon_ends_with_the_last_note(cluster: Nodes, first: str, last: str, in_order: bool) -> None:
    out(cluster, first)
    out(cluster, last)
    ending = (first, last) if in_order else (last, first)
    assert not put_back(cluster, "w-1", ending[0])
    assert cluster.seen().cordons == {ending[1]}
    assert put_back(cluster, "w-1", ending[1])
    assert not cluster.seen().unschedulable


@pytest.mark.parametrize("key", [QUARANTINE, DRAINED])
def test_the_cordon_of_an_interrupted_update_ends_with_the_note_that_has_held_it_too(key: str) -> None:
    cluster = Nodes(node("w-1", cordoned=True))
    out(cluster, key)
    assert put_back(cluster, "w-1", key)
    assert not cluster.seen().cordons


def test_a_quarantine_without_a_cordon_leaves_that_of_an_update() -> None:
    cluster = Nodes(node("w-1", cordoned=True))
    out(cluster, QUARANTINE, cordon=False)
    put_back(cluster, "w-1", QUARANTINE)
    assert cluster.seen().cordons == {CORDONED}


def test_a_note_that_is_written_again_without_a_cordon_ends_it(cluster: Nodes) -> None:
    out(cluster, QUARANTINE)
    assert out(cluster, QUARANTINE, cordon=False)
    assert not cluster.seen().unschedulable and cluster.seen().quarantine == "fan"


@pytest.mark.parametrize("text", ["by hand", "[1]", "3", '{"reason": "fan"}'])
def test_a_note_of_another_shape_is_a_reason_and_holds_no_cordon(text: str) -> None:
    found = node("w-1")
    found["metadata"]["annotations"][DRAINED] = text
    found["spec"]["unschedulable"] = True
    assert (Node.of(found).drained, Node.of(found).cordoned_by_others) == (text, True)
