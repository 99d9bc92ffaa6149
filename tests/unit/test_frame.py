"""The frame of capabilities: surveys, results that are a pass, workloads that are not ready, charts."""

import json
from typing import Any

import pytest

from busbar.capability import Gate
from busbar.exits import Failed
from busbar.finding import Finding
from busbar.frame import (
    CLASSES,
    CheckResult,
    InstalledChart,
    StackOutputs,
    not_of_release,
    refuse,
    storage_class,
    unready,
    without_class,
)
from busbar.kube.nodes import NODES
from tests.support import cli
from tests.support.kube_cluster import Cluster

GATE = Gate("probe_version", "probe_passed", "probe_reasons", "failed", "probe.run", "probe", contract=2)
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
FAST = {"metadata": {"name": "fast"}}
USUAL = {"metadata": {"name": "usual", "annotations": DEFAULT}}


@pytest.mark.parametrize(
    ("printed", "passed", "reasons"),
    [
        ('{"passed": true, "reasons": []}', True, []),
        ('{"passed": false, "reasons": ["a"]}', False, ["a"]),
        ('{"passed": true, "reasons": ["a"]}', False, ["a"]),
        ('{"passed": "true", "reasons": []}', False, None),
        ('{"passed": true}', False, None),
        ("Traceback", False, None),
        (None, False, None),
    ],
)
def test_only_a_plain_pass_is_one(printed: str | None, passed: bool, reasons: list[str] | None) -> None:
    found = CheckResult.read(printed, "probe check")
    assert found.passed is passed
    if reasons is None:
        assert found.reasons[0].startswith("the output of `busbar step probe check` cannot be read: ")
    else:
        assert found.reasons == reasons


def test_outputs_of_another_contract_or_without_a_field_are_not_read() -> None:
    given = {"probe_version": 2.0, "cluster_name": "site", "namespace": "probe"}
    assert StackOutputs.read(GATE, given).cluster_name == "site"
    with pytest.raises(ValueError, match=r"unsupported probe_version 1 \(supported: 2\)"):
        StackOutputs.read(GATE, {**given, "probe_version": 1})
    with pytest.raises(ValueError, match="namespace: Field required"):
        StackOutputs.read(GATE, {"probe_version": 2, "cluster_name": "site"})


@pytest.mark.parametrize(
    ("classes", "wanted", "found"),
    [
        ([FAST, USUAL], None, "usual"),
        ([FAST, USUAL], "fast", "fast"),
        ([FAST], None, "no StorageClass is the default one; the cluster has fast"),
        ([], "fast", "there is no StorageClass fast; the cluster has none"),
    ],
)
def test_a_missing_storage_class_is_found(classes: list[Any], wanted: str | None, found: str) -> None:
    api = Cluster({CLASSES: classes})
    chosen = storage_class(api, wanted)
    problems = [each.what for each in without_class(api, wanted, ("state", "storage_class"))]
    assert (problems or [chosen["metadata"]["name"] if chosen else ""]) == [found]


def test_objects_of_other_releases_and_of_none_are_named() -> None:
    ours, theirs = ({"meta.helm.sh/release-name": name} for name in ("probe", "other"))
    names = {"a": ours, "b": theirs, "c": None}
    objects = [{"metadata": {"name": name, "annotations": found}} for name, found in names.items()]
    assert not_of_release(objects, "probe") == ["b", "c"]


def test_a_step_with_obstacles_ends_with_all_of_them() -> None:
    refuse([])
    with pytest.raises(Failed) as caught:
        refuse([Finding(("a",), "is in the way", "remove it"), Finding(("b",), "is too")])
    assert str(caught.value) == "nothing was installed:\n  - a: is in the way. Fix: remove it\n  - b: is too"


@pytest.mark.parametrize(
    ("chart", "repository", "enabled", "fits"),
    [
        ("probe", None, True, False),
        ("probe", None, False, True),
        ("probe", "https://charts.example", True, True),
        ("./charts/probe", None, True, True),
        ("oci://registry/probe", None, True, True),
    ],
)
def test_a_chart_with_a_name_alone_needs_a_repository(
    chart: str, repository: str | None, enabled: bool, fits: bool
) -> None:
    given = InstalledChart(chart=chart, repository=repository, enabled=enabled)
    found = [str(each) for each in given.without_source("probe", "chart")]
    what = "probe.chart: 'probe' is a name, and probe.repository is not set"
    fix = "set it, or give a local path or an oci:// URL"
    assert found == ([] if fits else [f"{what}. Fix: {fix}"])


def workload(status: dict[str, int], **spec: int) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": spec, "status": status}


DAEMONS = workload({"desiredNumberScheduled": 3, "numberReady": 2})


def found_in(kind: str, found: Any, pods: Any = (), *nodes: Any) -> list[Finding]:
    """What `unready` finds in the namespace probe with one workload."""
    space, core = "/apis/apps/v1/namespaces/probe", "/api/v1/namespaces/probe"
    kinds = ("daemonsets", "deployments", "statefulsets")
    objects: dict[str, Any] = {f"{space}/{each}": [] for each in kinds}
    more = {f"{core}/pods": [*pods], f"{core}/events": [], NODES: [*nodes]}
    return [*unready(Cluster({**objects, f"{space}/{kind}": [found], **more}), ["probe"])]


@pytest.mark.parametrize(
    ("kind", "found", "said"),
    [
        ("deployments", workload({"readyReplicas": 2}, replicas=2), None),
        ("deployments", workload({}, replicas=0), None),
        ("deployments", workload({}), "Deployment probe/x has 0 of 1 pods ready"),
        ("statefulsets", workload({}, replicas=2), "StatefulSet probe/x has 0 of 2 pods ready"),
        ("daemonsets", workload({"desiredNumberScheduled": 3, "numberReady": 3}), None),
        ("daemonsets", DAEMONS, "DaemonSet probe/x has 2 of 3 pods ready"),
    ],
)
def test_workloads_without_all_their_pods_are_found(kind: str, found: Any, said: str | None) -> None:
    problems = found_in(kind, found)
    assert [each.what for each in problems] == ([said] if said else [])
    assert all(each.kind == "site" and "kubectl -n probe describe pods" in str(each.fix) for each in problems)


def test_the_pod_of_a_daemon_set_on_a_node_that_is_off_is_not_missed() -> None:
    owner = {"kind": "DaemonSet", "name": "x"}
    pods = [{"metadata": {"name": "x-1", "ownerReferences": [owner]}, "spec": {"nodeName": "gpu-1"}}]
    nodes = {
        ready: {"metadata": {"name": "gpu-1"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
        for ready in ("True", "Unknown")
    }
    assert found_in("daemonsets", DAEMONS, pods, nodes["Unknown"]) == []
    assert len(found_in("daemonsets", DAEMONS, pods, nodes["True"])) == 1


def test_a_step_that_no_capability_has_is_bad_usage_and_the_steps_are_named() -> None:
    done = cli.busbar("step", "probe", "check", stdin=json.dumps({}))
    assert done.exit_code == 64
    assert "step: probe check is not one of " in done.stderr
