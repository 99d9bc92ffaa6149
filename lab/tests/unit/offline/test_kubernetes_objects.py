"""The kubernetes plugin against a toy API server. What a real server makes of the requests is a lab test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.offline.plugins.kubernetes.provider import KubernetesProvider
from lab.offline.plugins.sdk.values import UNKNOWN, Secret, reveal
from lab.tests.unit.offline.plugin_engine import Engine, OperationFailed
from lab.tests.unit.offline.toy_api_server import ToyApiServer

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
CONFIG_MAP_PATCH = "kubernetes:core/v1:ConfigMapPatch"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
JOB = "kubernetes:batch/v1:Job"
NAMESPACE = "kubernetes:core/v1:Namespace"
THING = "kubernetes:example.org/v1:Thing"
THINGS = "/apis/example.org/v1"


@pytest.fixture
def api() -> Iterator[ToyApiServer]:
    server = ToyApiServer()
    yield server
    server.close()


@pytest.fixture
def kubernetes(api: ToyApiServer) -> Iterator[Engine]:
    engine = configured(api.kubeconfig)
    yield engine
    engine.close()


def configured(kubeconfig: str, **settings: str) -> Engine:
    variables = {"kubeconfig": kubeconfig, **settings}
    return Engine(
        KubernetesProvider(), {f"kubernetes:config:{key}": value for key, value in variables.items()}
    )


def config_map(data: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def deployment(**metadata: Any) -> dict[str, Any]:
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def job(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"backoffLimit": 0}}


def test_an_unnamed_object_is_named_after_the_resource_and_keeps_that_name(kubernetes: Engine) -> None:
    checked = kubernetes.check(CONFIG_MAP, config_map({"a": "1"}))
    assert checked["metadata"]["name"].startswith("it-")
    assert checked["metadata"]["annotations"] == {"pulumi.com/autonamed": "true"}
    assert checked["metadata"]["namespace"] == "default"
    again = kubernetes.check(CONFIG_MAP, config_map({"a": "2"}), checked)
    assert again["metadata"]["name"] == checked["metadata"]["name"]


def test_a_created_object_is_stored_with_its_live_form_and_its_inputs(
    kubernetes: Engine, api: ToyApiServer
) -> None:
    id, checked, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c", namespace="lab"))
    assert id == "lab/c"
    assert api.objects["/api/v1/namespaces/lab/configmaps/c"]["data"] == {"a": "1"}
    assert state["metadata"]["uid"].startswith("uid-")
    assert state["__inputs"] == checked
    assert not kubernetes.diff(CONFIG_MAP, state, checked, checked).changed


def test_an_object_that_exists_already_is_refused(kubernetes: Engine, api: ToyApiServer) -> None:
    kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c"))
    with pytest.raises(OperationFailed, match='configmaps "c" already exists'):
        kubernetes.up(CONFIG_MAP, config_map({"a": "2"}, name="c"))


def test_changed_data_of_a_named_config_map_is_a_replacement_that_deletes_first(kubernetes: Engine) -> None:
    _, checked, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c"))
    news = kubernetes.check(CONFIG_MAP, config_map({"a": "2"}, name="c"), checked)
    diff = kubernetes.diff(CONFIG_MAP, state, checked, news)
    assert (diff.replaces, diff.delete_before_replace) == (["data.a"], True)


def test_changed_data_of_an_autonamed_config_map_creates_first(kubernetes: Engine) -> None:
    _, checked, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}))
    news = kubernetes.check(CONFIG_MAP, config_map({"a": "2"}), checked)
    diff = kubernetes.diff(CONFIG_MAP, state, checked, news)
    assert (diff.replaces, diff.delete_before_replace) == (["data.a"], False)


def test_config_maps_may_be_made_mutable(api: ToyApiServer) -> None:
    engine = configured(api.kubeconfig, enableConfigMapMutable="true")
    try:
        _, checked, state = engine.up(CONFIG_MAP, config_map({"a": "1"}, name="c"))
        news = engine.check(CONFIG_MAP, config_map({"a": "2"}, name="c"), checked)
        assert engine.diff(CONFIG_MAP, state, checked, news).replaces == []
    finally:
        engine.close()


def test_an_update_applies_with_a_manager_of_its_own(kubernetes: Engine, api: ToyApiServer) -> None:
    id, checked, state = kubernetes.up(NAMESPACE, named_namespace({"one": "1"}))
    news = kubernetes.check(NAMESPACE, named_namespace({"two": "2"}), checked)
    state = kubernetes.update(NAMESPACE, id, state, news)
    live = api.objects["/api/v1/namespaces/n"]
    assert live["metadata"]["labels"] == {"two": "2"}, "a field that is left out now disappears"
    managers = [(item["manager"], item["operation"]) for item in live["metadata"]["managedFields"]]
    assert managers == [(state["__fieldManager"], "Apply")]


def named_namespace(labels: dict[str, str], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "n", "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def test_a_field_of_another_manager_is_a_conflict_unless_forced(
    kubernetes: Engine, api: ToyApiServer
) -> None:
    id, checked, state = kubernetes.up(NAMESPACE, named_namespace({"mine": "1"}))

    def kubectl_label(obj: dict[str, Any]) -> None:
        obj["metadata"]["labels"]["theirs"] = "x"
        fields: dict[str, Any] = {"f:metadata": {"f:labels": {"f:theirs": {}}}}
        owner = {"manager": "somebody", "operation": "Update", "fieldsV1": fields}
        obj["metadata"]["managedFields"].append(owner)

    api.change("/api/v1/namespaces/n", kubectl_label)
    wanted = {"mine": "1", "theirs": "y"}
    with pytest.raises(OperationFailed, match="field conflict detected") as failed:
        kubernetes.update(NAMESPACE, id, state, kubernetes.check(NAMESPACE, named_namespace(wanted), checked))
    assert failed.value.state is not None, "the object still exists and must stay in the state"
    forced = named_namespace(wanted, **{"pulumi.com/patchForce": "true"})
    kubernetes.update(NAMESPACE, id, state, kubernetes.check(NAMESPACE, forced, checked))
    assert api.objects["/api/v1/namespaces/n"]["metadata"]["labels"]["theirs"] == "y"


def test_a_patch_edits_an_object_and_gives_back_only_its_own_fields(
    kubernetes: Engine, api: ToyApiServer
) -> None:
    path = "/api/v1/namespaces/lab/configmaps/theirs"
    api.put(path, config_map({"kept": "1"}, name="theirs", namespace="lab", managedFields=[]))
    wanted = config_map({"added": "2"}, name="theirs", namespace="lab")
    id, _, state = kubernetes.up(CONFIG_MAP_PATCH, wanted)
    assert api.objects[path]["data"] == {"kept": "1", "added": "2"}
    kubernetes.delete(CONFIG_MAP_PATCH, id, state)
    assert api.objects[path]["data"] == {"kept": "1"}


def test_a_preview_is_a_trial_on_the_server(kubernetes: Engine, api: ToyApiServer) -> None:
    _, _, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c"), preview=True)
    assert state["metadata"]["uid"] == "trial"
    assert "/api/v1/namespaces/default/configmaps/c" not in api.objects


@pytest.mark.parametrize("namespace", ["missing", UNKNOWN])
def test_a_preview_passes_where_the_namespace_is_not_there_yet(kubernetes: Engine, namespace: Any) -> None:
    inputs = config_map({"a": "1"}, name="c", namespace=namespace)
    checked = kubernetes.check(CONFIG_MAP, inputs)
    assert kubernetes.create(CONFIG_MAP, checked, preview=True) == ("", checked)


def test_a_preview_of_an_object_whose_crd_is_not_there_yet_passes(kubernetes: Engine) -> None:
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {}}
    assert kubernetes.up(THING, thing, preview=True)[0] == ""


def test_creation_waits_for_a_kind_that_is_about_to_come(kubernetes: Engine, api: ToyApiServer) -> None:
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {}}
    api.later(0.4, lambda: api.kinds.update({THINGS: [("Thing", "things", False)]}))
    id, _, _ = kubernetes.up(THING, thing)
    assert id == "t", "a cluster-wide kind takes no namespace, though nobody knew at the time of the check"


def test_a_deployment_is_awaited(kubernetes: Engine, api: ToyApiServer) -> None:
    path = "/apis/apps/v1/namespaces/lab/deployments/d"

    def roll_out(obj: dict[str, Any]) -> None:
        obj["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
        obj["status"] = {
            "observedGeneration": 1,
            "updatedReplicas": 1,
            "readyReplicas": 1,
            "conditions": [{"type": "Available", "status": "True"}],
        }

    api.later(0.3, lambda: api.change(path, roll_out))
    _, _, state = kubernetes.up(DEPLOYMENT, deployment(name="d", namespace="lab"))
    assert state["status"]["readyReplicas"] == 1


def test_a_deployment_that_is_late_stays_in_the_state_with_the_reasons(
    kubernetes: Engine, api: ToyApiServer
) -> None:
    with pytest.raises(OperationFailed, match="'d' timed out waiting to be Ready") as failed:
        kubernetes.up(DEPLOYMENT, deployment(name="d", namespace="lab"), timeout=0.5)
    assert failed.value.state and failed.value.state["metadata"]["name"] == "d"
    assert "Minimum number of live Pods was not attained" in failed.value.reasons


def test_a_failed_job_ends_the_wait_at_once(kubernetes: Engine, api: ToyApiServer) -> None:
    def fail(obj: dict[str, Any]) -> None:
        reason = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "why"}
        obj["status"] = {"startTime": "now", "failed": 1, "conditions": [reason]}

    api.later(0.3, lambda: api.change("/apis/batch/v1/namespaces/lab/jobs/j", fail))
    with pytest.raises(OperationFailed, match="'j' was created but failed to initialize") as failed:
        kubernetes.up(JOB, job(name="j", namespace="lab"), timeout=60)
    assert "[BackoffLimitExceeded] why" in failed.value.reasons


def test_await_can_be_skipped(kubernetes: Engine) -> None:
    skipped = job(name="j", namespace="lab", annotations={"pulumi.com/skipAwait": "true"})
    assert kubernetes.up(JOB, skipped)[0] == "lab/j"


def test_a_wait_for_annotation_replaces_the_built_in_wait(kubernetes: Engine, api: ToyApiServer) -> None:
    condition = 'jsonpath={.status.conditions[?(@.type=="Complete" || @.type=="Failed")].status}=True'
    wanted = job(name="j", namespace="lab", annotations={"pulumi.com/waitFor": condition})

    def fail(obj: dict[str, Any]) -> None:
        obj["status"] = {
            "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
        }

    api.later(0.3, lambda: api.change("/apis/batch/v1/namespaces/lab/jobs/j", fail))
    assert kubernetes.up(JOB, wanted)[0] == "lab/j"


def test_delete_waits_for_finalizers_and_names_them_when_it_is_late(
    kubernetes: Engine, api: ToyApiServer
) -> None:
    id, _, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c", namespace="lab"))
    path = "/api/v1/namespaces/lab/configmaps/c"
    api.change(path, lambda obj: obj["metadata"].update(finalizers=["lab/slow"]))
    api.later(0.4, lambda: api.remove(path))
    kubernetes.delete(CONFIG_MAP, id, state)
    assert path not in api.objects


def test_deleting_what_is_gone_is_no_error(kubernetes: Engine, api: ToyApiServer) -> None:
    id, _, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c", namespace="lab"))
    api.remove("/api/v1/namespaces/lab/configmaps/c")
    kubernetes.delete(CONFIG_MAP, id, state)


def test_a_refresh_finds_drift_and_what_is_gone(kubernetes: Engine, api: ToyApiServer) -> None:
    id, checked, state = kubernetes.up(CONFIG_MAP, config_map({"a": "1"}, name="c", namespace="lab"))
    path = "/api/v1/namespaces/lab/configmaps/c"
    api.change(path, lambda obj: obj["data"].update(a="drifted"))
    fresh = kubernetes.read(CONFIG_MAP, id, state, checked)
    assert fresh is not None
    assert kubernetes.diff(CONFIG_MAP, fresh, checked, checked).details == {"data.a": "UPDATE_REPLACE"}
    api.remove(path)
    assert kubernetes.read(CONFIG_MAP, id, state, checked) is None


def test_secret_data_is_always_secret_in_the_state(kubernetes: Engine, api: ToyApiServer) -> None:
    api.kinds["/api/v1"].append(("Secret", "secrets", True))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}}
    _, checked, state = kubernetes.up("kubernetes:core/v1:Secret", secret)
    assert reveal(checked)["data"] == {"k": "dg=="}, "the server gives stringData back as data"
    assert isinstance(checked["data"], Secret) and isinstance(state["data"], Secret)
    assert isinstance(state["__inputs"]["data"], Secret)
    assert not kubernetes.diff("kubernetes:core/v1:Secret", state, checked, checked).changed


def test_a_secret_input_stays_secret_in_the_state(kubernetes: Engine) -> None:
    _, checked, state = kubernetes.up(CONFIG_MAP, config_map({"a": Secret("hush")}, name="c"))
    assert isinstance(checked["data"]["a"], Secret) and isinstance(state["data"]["a"], Secret)
    assert reveal(state)["data"] == {"a": "hush"}


def test_without_a_cluster_previews_pass_and_updates_say_why_not() -> None:
    engine = configured(ToyApiServerGone.kubeconfig)
    try:
        checked = engine.check(CONFIG_MAP, config_map({"a": "1"}, name="c"))
        assert engine.create(CONFIG_MAP, checked, preview=True)[0] == ""
        with pytest.raises(OperationFailed, match="configured Kubernetes cluster is unreachable"):
            engine.create(CONFIG_MAP, checked)
        with pytest.raises(OperationFailed, match="PULUMI_K8S_DELETE_UNREACHABLE"):
            engine.delete(CONFIG_MAP, "default/c", {**checked, "__inputs": checked})
    finally:
        engine.close()


def test_an_unreachable_object_may_be_dropped_from_the_state() -> None:
    engine = configured(ToyApiServerGone.kubeconfig, deleteUnreachable="true")
    try:
        state = config_map({}, name="c")
        engine.delete(CONFIG_MAP, "default/c", {**state, "__inputs": state})
    finally:
        engine.close()


class ToyApiServerGone:
    kubeconfig = """
current-context: gone
contexts: [{name: gone, context: {cluster: gone, user: gone}}]
clusters: [{name: gone, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: gone, user: {token: t}}]
"""


def other_cluster() -> str:
    return ToyApiServerGone.kubeconfig.replace("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize(
    ("old", "new", "replaces"),
    [
        ({}, {"kubeconfig": other_cluster()}, ["kubeconfig"]),
        ({"clusterIdentifier": "x"}, {"kubeconfig": other_cluster(), "clusterIdentifier": "x"}, []),
        ({"clusterIdentifier": "x"}, {"kubeconfig": UNKNOWN, "clusterIdentifier": "x"}, []),
        ({}, {"kubeconfig": UNKNOWN}, ["kubeconfig"]),
        ({"clusterIdentifier": "x"}, {"clusterIdentifier": "y"}, ["clusterIdentifier"]),
        ({}, {"clusterIdentifier": "y"}, []),
        ({}, {"namespace": "other"}, []),
    ],
)
def test_a_changed_kubeconfig_replaces_unless_an_identifier_vouches(
    old: dict[str, Any], new: dict[str, Any], replaces: list[str]
) -> None:
    engine = configured(ToyApiServerGone.kubeconfig)
    try:
        base = {"kubeconfig": ToyApiServerGone.kubeconfig}
        diff = engine.diff_config(base | old, base | new)
        assert (diff.changed, diff.replaces) == (True, replaces)
    finally:
        engine.close()
