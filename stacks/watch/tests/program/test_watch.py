"""stacks/watch under mocks: what it puts on a cluster that passed, in which order; others are refused."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks

from stacks.watch.capability import CAPABILITY, GATE
from stacks.watch.tests.support import CLUSTER, EXISTING, INSTALL, configured, outputs
from tests.program.answers import KUBECONFIG
from tests.program.harness import LOCAL, PROVIDER, RELEASE, ROOT, STASH, Resource, Run, run_program, texts
from tests.support.verdicts import failing

DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
MONITOR = "kubernetes:monitoring.coreos.com/v1:ServiceMonitor"
RULE = "kubernetes:monitoring.coreos.com/v1:PrometheusRule"
SECRET = "kubernetes:core/v1:Secret"
PASSWORD = "MOCK-PASSWORD"
PASS = json.dumps({"passed": True, "reasons": [], "nodes": 2})
FAIL = json.dumps({"passed": False, "reasons": ["gpu-2 1/2"], "nodes": 1})


def up(
    of_fabric: dict[str, Any] | None = None,
    *,
    printed: str = PASS,
    more: dict[str, str] | None = None,
    preview: bool = False,
    change: dict[str, Any] | None = None,
    **config: Any,
) -> Run:
    """Run the program on the outputs of a stack; `printed` by the check. `change`: outputs to replace."""
    of_stack = {**outputs(of_fabric), "kubeconfig": KUBECONFIG, **(change or {})}
    state = {"outputs": of_stack, "secretOutputNames": ["kubeconfig"]}
    asked = {"busbar-watch:watch": json.dumps(configured(**config)), **(more or {})}
    return _run(json.dumps(state), printed, preview, json.dumps(asked))


@cache
def _run(state: str, printed: str, preview: bool, config: str) -> Run:
    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ == LOCAL:
            return {"stdout": printed if args.name == "monitoring-check" else "{}", "stderr": ""}
        if args.typ == "random:index/randomPassword:RandomPassword":
            return {"result": PASSWORD}
        return json.loads(state) if args.typ == "pulumi:pulumi:StackReference" else {}

    program, asked = ROOT / "stacks" / "watch" / "__main__.py", json.loads(config)
    return run_program({}, answer, preview=preview, program=program, project="busbar-watch", config=asked)


def created(run: Run) -> list[Resource]:
    return [each for each in run.custom if each.type not in ("pulumi:pulumi:StackReference", PROVIDER, STASH)]


def command(run: Run, name: str) -> str:
    return str(run.named(name).inputs["create"]).partition("-m busbar ")[2]


def test_without_a_prometheus_only_the_exporters_their_series_and_the_counters_are_made() -> None:
    run = up()
    assert run.error is None
    assert {each.type for each in created(run)} == {
        LOCAL, DAEMON_SET, DEPLOYMENT, CONFIG_MAP,
        "kubernetes:core/v1:Namespace", "kubernetes:core/v1:Service",
    }  # fmt: skip
    [counters] = run.of_type(CONFIG_MAP)
    assert counters.inputs["metadata"]["namespace"] == "gpu-operator"
    assert run.outputs["watch_passed"] is True


def test_node_problem_detector_is_made_where_it_is_enabled_without_waiting_for_the_exporters() -> None:
    run = up(node_problem_detector={"enabled": True})
    assert run.error is None
    made = [each for each in created(run) if each.name.startswith("node-problems-")]
    assert sorted(each.name for each in made) == [
        f"node-problems-{kind}" for kind in ("clusterrolebinding", "configmap", "daemonset", "serviceaccount")
    ]
    namespace = run.named("monitoring-namespace")
    for each in made:
        assert each.inputs["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "busbar"
        of_namespace = each.name != "node-problems-clusterrolebinding"
        assert each.request.deletedWith == (namespace.urn if of_namespace else "")
        assert run.waits_for(each, namespace) == of_namespace
        assert not run.waits_for(each, run.named("monitoring-check"))


def test_an_existing_prometheus_gets_monitors_and_rules_with_its_label_after_the_survey() -> None:
    run = up(stack=EXISTING)
    assert run.error is None
    assert len(run.of_type(MONITOR)) == 3
    [rule] = run.of_type(RULE)
    assert rule.inputs["metadata"]["labels"]["release"] == "prometheus"
    assert run.of_type(RELEASE) == []
    assert command(run, "survey") == "step watch survey"


def test_nothing_is_made_before_the_survey_has_ended() -> None:
    run = up(stack=INSTALL)
    survey = run.named("survey")
    for each in created(run):
        assert each.name == "survey" or run.waits_for(each, survey), each.name


def test_crds_are_installed_before_prometheus_and_that_before_its_objects() -> None:
    run = up(stack=INSTALL)
    assert run.error is None
    crds, stack = run.named("prometheus-crds-release"), run.named("prometheus-release")
    assert (crds.inputs["chart"], crds.inputs["version"]) == ("prometheus-operator-crds", "31.0.1")
    assert (stack.inputs["chart"], stack.inputs["version"]) == ("kube-prometheus-stack", "88.5.3")
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


def test_a_chart_of_a_folder_has_no_version_and_no_repository() -> None:
    release = up(stack={**INSTALL, "chart": "./charts/x"}).named("prometheus-release")
    assert "version" not in release.inputs
    assert "repositoryOpts" not in release.inputs


def test_the_series_are_written_before_the_pod_that_serves_them_and_checked_at_the_end() -> None:
    run = up(stack=EXISTING)
    series, check = run.named("monitoring-series"), run.named("monitoring-check")
    assert (command(run, series.name), command(run, check.name)) == ("step watch write", "step watch check")
    assert CAPABILITY.waits == (check.name,)  # `up --converge cluster` runs it again.
    [deployment] = run.of_type(DEPLOYMENT)
    assert run.waits_for(deployment, series)
    for each in [deployment, *run.of_type(DAEMON_SET), *run.of_type(MONITOR), *run.of_type(RULE)]:
        assert run.waits_for(check, each), each.name


def triggers(run: Run, name: str) -> Any:
    return run.named(name).inputs["triggers"]


def test_series_and_check_run_again_when_the_cluster_was_measured_again() -> None:
    before, after = up(), up(change={"details": outputs(workers={"h100": 3})["details"]})
    for name in ("monitoring-series", "monitoring-check"):
        assert triggers(before, name) == triggers(up(), name)
        assert triggers(before, name) != triggers(after, name)


@pytest.mark.parametrize(
    "change",
    [
        {"check": {"run": 2}},
        {"missing_counters": ["node_infiniband_local_ack_timeout_errors_total"]},
        {"devices": "mlx5_[0-7]"},
    ],
    ids=["number", "rules", "exporters"],
)
def test_the_check_runs_again_when_its_number_or_what_it_checks_changes_and_the_series_do_not(
    change: dict[str, Any],
) -> None:
    before, after = up(stack=EXISTING), up(stack=EXISTING, **change)
    assert triggers(before, "monitoring-check") != triggers(after, "monitoring-check")
    assert triggers(before, "monitoring-series") == triggers(after, "monitoring-series")


def test_a_result_is_asked_for_again_when_its_contract_changes() -> None:
    assert f"contract {GATE.contract}" in triggers(up(), "monitoring-check")


def test_the_survey_runs_again_for_another_storage_class() -> None:
    before, after = up(stack=INSTALL), up(stack={**INSTALL, "storage_class": "fast"})
    assert triggers(before, "survey") != triggers(after, "survey")


def test_what_is_in_the_namespace_goes_with_it_and_what_is_in_others_does_not() -> None:
    run = up(stack=EXISTING)
    namespace = run.named("monitoring-namespace")
    skipped = {each.request.deletedWith: set[str]() for each in run.custom}
    for each in run.custom:
        skipped[each.request.deletedWith].add(str((each.inputs.get("metadata") or {}).get("namespace")))
    # The commands are in no namespace: the series that one of them writes are in that.
    assert skipped[namespace.urn] == {"busbar-watch", "None"}
    assert skipped[""] == {"gpu-operator", "None"}
    assert run.named("monitoring-series").request.deletedWith == namespace.urn


def test_the_cluster_is_identified_by_its_id_and_a_namespace_is_claimed_before_it_is_adopted() -> None:
    run = up(change={"cluster_id": "a1"}, stack=INSTALL)
    [provider] = run.of_type(PROVIDER)
    assert run.named("cluster-id").inputs["input"]["id"] == provider.inputs["clusterIdentifier"] == "a1"
    for namespace in run.of_type("kubernetes:core/v1:Namespace"):
        assert list(namespace.request.hooks.before_create) == [f"{namespace.name}-claim"]


def test_where_the_verdict_lies_on_this_machine_writes_no_series_anew() -> None:
    def written(stack: str) -> dict[str, Any]:
        result = outputs()
        details = json.loads(json.loads(result["details"]))
        details["nccl"]["h100"]["verdict_file"] = f".busbar/{stack}/h100/verdict.json"
        run = up(change={"details": json.dumps(json.dumps(details))})
        return {name: run.named(name).inputs for name in ("monitoring-series", "monitoring-check")}

    assert written("site") == written("renamed")


def test_the_kubeconfig_is_secret_wherever_it_is() -> None:
    run = up(stack=INSTALL)
    for each in run.custom:
        if each.type != "pulumi:pulumi:StackReference":
            clear = [
                path for path, text, secret in texts(each.raw) if "MOCK-CLIENT-KEY" in text and not secret
            ]
            assert clear == [], each.name


def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created() -> None:
    run = up(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert f"run `pulumi up` on {CLUSTER}" in str(run.error)
    assert created(run) == []


def test_outputs_of_another_contract_are_refused_with_the_stack_s_name() -> None:
    run = up(change={"contract_version": 1})
    assert str(run.error).startswith(f"{CLUSTER}: unsupported contract_version 1")
    assert created(run) == []


def test_an_invalid_configuration_is_refused_before_the_cluster_is_asked() -> None:
    run = up(stack={"mode": "existing"}, more={"busbar-watch:stack": "x"})
    assert "busbar-watch:stack: unknown key" in str(run.error)
    assert run.custom == []
    assert "stack.release_label: missing" in str(up(stack={"mode": "existing"}).error)


def test_a_check_that_did_not_pass_fails_the_update_after_its_outputs_are_exported() -> None:
    run = up(printed=FAIL)
    assert isinstance(run.error, pulumi.RunError)
    assert "monitoring is not complete for cluster site:\n  - gpu-2 1/2" in str(run.error)
    assert run.outputs["watch_reasons"] == ["gpu-2 1/2"]


def test_without_the_gate_the_update_succeeds_and_says_what_is_missing() -> None:
    run = up(printed=FAIL, check={"enforce": False})
    assert run.error is None
    assert run.outputs["watch_passed"] is False


def test_a_preview_of_a_new_stack_needs_nothing_of_the_cluster() -> None:
    assert up(stack=INSTALL, preview=True).error is None
