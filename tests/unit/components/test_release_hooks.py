"""What the hooks on a Helm release hand to busbar.helm.releases, and what they say."""

import asyncio
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from busbar.components.engine import cluster
from busbar.components.engine.helm import create_recovery_hooks
from busbar.components.network_operator import check_change
from busbar.config import NetworkOperator
from busbar.exits import Failed
from busbar.finding import STACK_SHOWN
from busbar.helm import releases
from busbar.manifests.operators import HEAD
from tests.unit.helm.test_releases import deployed

RELEASE = ("gpu-operator-release", "gpu-operator", "operators", "KUBECONFIG")


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hooks warn of; hooks are called directly, and the API is the text of the kubeconfig."""
    said: list[str] = []
    monkeypatch.setattr(pulumi, "ResourceHook", lambda name, callback: callback)
    monkeypatch.setattr(pulumi, "ErrorHook", lambda name, callback: callback)
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    monkeypatch.setattr(cluster, "RestApi", lambda kubeconfig: kubeconfig)
    return said


def call(hooks: list[Callable[[Any], Any]] | None) -> None:
    [hook] = hooks or []
    asyncio.run(hook(None))


def test_a_recovery_before_an_upgrade_warns_and_one_before_an_installation_does_not(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(releases, "before_install", lambda *given: calls.append(given))
    monkeypatch.setattr(releases, "before_upgrade", lambda api, name, where: f"{api} {name} {where}")
    made = create_recovery_hooks(*RELEASE)
    call(made.before_create)
    assert (calls, warnings) == ([("KUBECONFIG", "gpu-operator", "operators")], [])
    call(made.before_update)
    assert warnings == ["KUBECONFIG gpu-operator operators"]


def test_a_check_that_refuses_recovers_nothing(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(api: Any) -> None:
        raise ValueError(f"{api} is not ready")

    def recover(*_: Any) -> None:
        raise AssertionError("nothing may be touched")

    monkeypatch.setattr(releases, "before_install", recover)
    monkeypatch.setattr(releases, "before_upgrade", recover)
    made = create_recovery_hooks(*RELEASE, before_change=refuse)
    for hook in (made.before_create, made.before_update):
        with pytest.raises(ValueError, match="KUBECONFIG is not ready"):
            call(hook)


def failed(*errors: str) -> bool:
    """True if the hook asks for another attempt after these errors, the newest last."""
    [hook] = create_recovery_hooks(*RELEASE).on_error or []
    on_error: Any = hook
    args = pulumi.ErrorHookArgs("urn", "id", RELEASE[0], "type", errors=[*errors])
    return bool(asyncio.run(on_error(args)))


def test_a_failed_install_names_its_hook_jobs(warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "hook_job_problems", lambda api, where: [f"{api} {where}: no node"])
    assert not failed("timed out waiting for the condition")
    assert warnings == ["KUBECONFIG operators: no node"]


UNKNOWN = (
    'unable to build kubernetes objects from release manifest: [resource mapping not found for name: "stack" '
    'namespace: "stack" from "": no matches for kind "Prometheus" in version "monitoring.coreos.com/v1"\n'
    "ensure CRDs are installed first]"
)


@pytest.mark.usefixtures("warnings")
def test_an_installation_is_repeated_when_all_servers_know_its_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "hook_job_problems", lambda *_: [])
    asked: list[Any] = []

    def await_kinds(connect: Any, kinds: Any, clock: Any) -> bool:
        asked.append(kinds)
        return len(asked) < 3

    monkeypatch.setattr(releases, "await_kinds", await_kinds)
    assert failed(UNKNOWN)
    assert asked == [{("Prometheus", "monitoring.coreos.com/v1")}]
    assert failed(UNKNOWN, UNKNOWN)
    assert not failed(UNKNOWN, UNKNOWN), "the servers do not come to know it"
    assert not failed(*[UNKNOWN] * 4), "three more attempts"


def test_pulumi_up_does_not_upgrade_over_a_major_release_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STACK_SHOWN, "prod")
    check_change(NetworkOperator(version="26.4.2"), deployed("26.1.2"))
    with pytest.raises(Failed, match=r"'26\.7\.0' cannot follow 26\.1\.2.* with: busbar up prod$"):
        check_change(NetworkOperator(version="26.7.0"), deployed("26.1.2"))


def test_a_policy_of_others_is_neither_merged_nor_deleted_later() -> None:
    path = "/apis/mellanox.com/v1alpha1/nicclusterpolicies/nic-cluster-policy"
    api = deployed("26.1.2")
    api.objects[path] = {"metadata": {"labels": HEAD["metadata"]["labels"]}}
    check_change(NetworkOperator(version="26.4.2"), api)
    api.objects[path] = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}
    with pytest.raises(Failed, match=r"busbar has not made it.*network_operator\.enabled: false"):
        check_change(NetworkOperator(version="26.4.2"), api)
