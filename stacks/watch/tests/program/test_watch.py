"""stacks/watch under mocks: what it puts on a cluster that passed, in which order."""

import json
from typing import Any

import pytest
import yaml

from stacks.watch.capability import CAPABILITY
from stacks.watch.tests.support import EXISTING, INSTALL, configured, outputs
from tests.program.harness import LOCAL, RELEASE, ROOT, Run
from tests.program.on_cluster import NAMESPACE, PASSWORD, created, run_on_cluster

DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
MONITOR = "kubernetes:monitoring.coreos.com/v1:ServiceMonitor"
RULE = "kubernetes:monitoring.coreos.com/v1:PrometheusRule"
SECRET = "kubernetes:core/v1:Secret"
PASS = json.dumps({"passed": True, "reasons": [], "nodes": 2})


def up(*, printed: str = PASS, change: dict[str, Any] | None = None, **config: Any) -> Run:
    """Run the program; `printed` by the check. `change`: outputs of the cluster to replace."""
    of_cluster = {**outputs(), **(change or {})}
    return run_on_cluster("watch", configured(**config), {"monitoring-check": printed}, of_cluster=of_cluster)


def command(run: Run, name: str) -> str:
    return str(run.named(name).inputs["create"]).partition("-m busbar ")[2]


def test_without_a_prometheus_only_the_exporters_their_series_and_the_counters_are_made() -> None:
    run = up()
    assert run.error is None
    assert {each.type for each in created(run)} == {
        LOCAL, DAEMON_SET, DEPLOYMENT, CONFIG_MAP, NAMESPACE, "kubernetes:core/v1:Service",
    }  # fmt: skip
    [counters] = run.of_type(CONFIG_MAP)
    assert counters.inputs["metadata"]["namespace"] == "gpu-operator"
    assert run.outputs["watch_passed"] is True


def test_node_problem_detector_is_made_where_it_is_enabled_without_waiting_for_the_exporters() -> None:
    run = up(node_problem_detector={"enabled": True})
    assert run.error is None
    made = {each.name: each for each in created(run) if each.name.startswith("node-problems-")}
    kinds = ("clusterrolebinding", "configmap", "daemonset", "serviceaccount")
    assert sorted(made) == [f"node-problems-{kind}" for kind in kinds]
    namespace, check = run.named("monitoring-namespace"), run.named("monitoring-check")
    for name, each in made.items():
        of_namespace = name != "node-problems-clusterrolebinding"
        assert each.request.deletedWith == (namespace.urn if of_namespace else "")
        assert run.waits_for(each, namespace) == of_namespace and not run.waits_for(each, check)


def test_an_existing_prometheus_gets_monitors_and_rules_with_its_label_after_the_survey() -> None:
    run = up(stack=EXISTING)
    assert run.error is None
    assert len(run.of_type(MONITOR)) == 3
    [rule] = run.of_type(RULE)
    assert rule.inputs["metadata"]["labels"]["release"] == "prometheus"
    assert run.of_type(RELEASE) == []
    assert command(run, "survey") == "step watch survey"


def test_after_the_survey_crds_are_installed_before_prometheus_and_that_before_its_objects() -> None:
    run = up(stack=INSTALL)
    assert run.error is None
    survey = run.named("survey")
    assert [each.name for each in created(run) if each != survey and not run.waits_for(each, survey)] == []
    crds, stack = run.named("prometheus-crds-release"), run.named("prometheus-release")
    charts = crds.inputs["chart"], stack.inputs["chart"]
    assert charts == ("prometheus-operator-crds", "kube-prometheus-stack")
    assert crds.inputs["values"]["crds"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    values = stack.inputs["values"]
    exporter = values["prometheus-node-exporter"]
    assert exporter["tolerations"] == [{"operator": "Exists"}], "for NoExecute too"
    operator, [of_metrics] = values["prometheusOperator"], run.of_type(DEPLOYMENT)
    elsewhere = [operator, operator["admissionWebhooks"]["patch"], values["prometheus"]["prometheusSpec"]]
    elsewhere += [values["alertmanager"]["alertmanagerSpec"], values["grafana"], values["kube-state-metrics"]]
    elsewhere.append(of_metrics.inputs["spec"]["template"]["spec"])
    of_servers = yaml.safe_load((ROOT / "helm_values" / "gpu-operator.yaml").read_text())["operator"]
    assert [each.get("tolerations") for each in elsewhere] == [of_servers["tolerations"]] * len(elsewhere)
    assert run.waits_for(stack, crds)
    for each in [*run.of_type(MONITOR), *run.of_type(RULE)]:
        assert run.waits_for(each, stack), each.name


def test_the_password_of_grafana_is_made_and_nowhere_in_clear() -> None:
    run = up(stack=INSTALL)
    [secret] = run.of_type(SECRET)
    assert secret.inputs["stringData"] == {"admin-user": "admin", "admin-password": PASSWORD}
    password = run.named("prometheus-grafana-password").inputs
    assert (password["length"], password["special"]) == (32, False)
    # which makes the namespace
    assert run.waits_for(secret, run.named("prometheus-release"))
    for each in created(run):
        assert each.type == SECRET or PASSWORD not in str(each.inputs), each.name


def test_the_series_are_written_before_the_pod_that_serves_them_and_checked_at_the_end() -> None:
    run = up(stack=EXISTING)
    series, check = run.named("monitoring-series"), run.named("monitoring-check")
    assert (command(run, series.name), command(run, check.name)) == ("step watch write", "step watch check")
    assert CAPABILITY.waits == (check.name,)  # `up --converge cluster` runs it again.
    [deployment] = run.of_type(DEPLOYMENT)
    assert run.waits_for(deployment, series)
    for each in [deployment, *run.of_type(DAEMON_SET), *run.of_type(MONITOR), *run.of_type(RULE)]:
        assert run.waits_for(check, each), each.name


COMMANDS = ("survey", "monitoring-series", "monitoring-check")


def triggers(run: Run, name: str) -> Any:
    return run.named(name).inputs["triggers"]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        pytest.param(
            {"change": {"details": outputs(workers={"h100": 3})["details"]}},
            {"monitoring-series", "monitoring-check"},
            id="measured again",
        ),
        pytest.param({"check": {"run": 2}}, {"monitoring-check"}, id="number"),
        pytest.param(
            {"missing_counters": ["node_infiniband_local_ack_timeout_errors_total"]},
            {"monitoring-check"},
            id="rules",
        ),
        pytest.param({"devices": "mlx5_[0-7]"}, {"monitoring-check"}, id="exporters"),
        pytest.param({"stack": {**INSTALL, "storage_class": "fast"}}, {"survey"}, id="class"),
    ],
)
def test_a_command_runs_again_when_what_it_looks_at_has_changed(
    change: dict[str, Any], again: set[str]
) -> None:
    stack = INSTALL if "stack" in change else EXISTING
    before, after = up(stack=stack), up(**{"stack": stack, **change})
    changed = {name for name in COMMANDS if triggers(before, name) != triggers(after, name)}
    assert again <= changed
    assert "monitoring-series" not in changed - again


def test_what_is_in_the_namespace_goes_with_it_and_what_is_in_others_does_not() -> None:
    run = up(stack=EXISTING)
    namespace = run.named("monitoring-namespace")
    skipped = {each.request.deletedWith: set[str]() for each in run.custom}
    for each in run.custom:
        skipped[each.request.deletedWith].add(str((each.inputs.get("metadata") or {}).get("namespace")))
    # The commands are in no namespace: the series that one of them writes are in that.
    assert skipped[namespace.urn] == {"busbar-watch", "None"}
    assert skipped[""] == {"gpu-operator", "None"}
    # dcgm-exporter mounts its counters: without them none of its pods would start again.
    stay = [each.name for each in run.custom if each.request.retainOnDelete]
    assert stay == ["monitoring-busbar-dcgm-counters"]
    assert run.named("monitoring-series").request.deletedWith == namespace.urn


def test_where_the_verdict_lies_on_this_machine_writes_no_series_anew() -> None:
    def written(stack: str) -> dict[str, Any]:
        result = outputs()
        details = json.loads(json.loads(result["details"]))
        details["nccl"]["h100"]["verdict_file"] = f".busbar/{stack}/h100/verdict.json"
        run = up(change={"details": json.dumps(json.dumps(details))})
        return {name: run.named(name).inputs for name in ("monitoring-series", "monitoring-check")}

    assert written("site") == written("renamed")
