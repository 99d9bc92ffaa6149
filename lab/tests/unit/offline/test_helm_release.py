"""What helm is told, and what a Release compares. That helm then does it is a lab test."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.offline.plugins.helm import charts, options
from lab.offline.plugins.helm.release import _names
from lab.offline.plugins.kubernetes.provider import KubernetesProvider
from lab.offline.plugins.sdk.resource import ProviderError
from lab.offline.plugins.sdk.values import UNKNOWN, Secret
from lab.tests.unit.offline.plugin_engine import Engine, OperationFailed
from lab.tests.unit.offline.toy_api_server import ToyApiServer

RELEASE = "kubernetes:helm.sh/v3:Release"
NO_CLUSTER = """
current-context: gone
contexts: [{name: gone, context: {cluster: gone, user: gone}}]
clusters: [{name: gone, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: gone, user: {token: t}}]
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec: {group: example.org, scope: Cluster, names: {kind: Thing, plural: things}}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    (folder / "crds").mkdir(parents=True)
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text("{apiVersion: v2, name: toy, version: 1.2.3}")
    (folder / "crds" / "things.yaml").write_text(CRD)
    (folder / "templates" / "broken.yaml").write_text("{{ not: yaml")
    return folder


@pytest.fixture
def kubernetes() -> Any:
    engine = Engine(KubernetesProvider(), {"kubernetes:config:kubeconfig": NO_CLUSTER})
    yield engine
    engine.close()


def packed(folder: Path) -> Path:
    archive = folder.parent / "toy-1.2.3.tgz"
    with tarfile.open(archive, "w:gz") as file:
        for source in sorted(folder.rglob("*.yaml")):
            data = source.read_bytes()
            info = tarfile.TarInfo(f"toy/{source.relative_to(folder)}")
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return archive


class NoHelm:
    """Stands where helm must not be needed."""

    def run(self, *words: str, **more: Any) -> str:
        raise AssertionError(f"helm was called with {words}")


@pytest.mark.parametrize("pack", [False, True])
def test_a_local_chart_is_read_without_helm(chart: Path, pack: bool) -> None:
    inputs = {"chart": str(packed(chart) if pack else chart)}
    helm: Any = NoHelm()
    assert charts.metadata(helm, inputs)["version"] == "1.2.3"
    assert [crd["metadata"]["name"] for crd in charts.crds(helm, inputs)] == ["things.example.org"]


def test_a_chart_may_list_an_equals_sign_in_a_crd(chart: Path) -> None:
    kind = "kind: CustomResourceDefinition\napiVersion: apiextensions.k8s.io/v1\n"
    crd = f"{kind}spec:\n  enum:\n  - '!='\n  - =\n"
    (chart / "crds").mkdir(exist_ok=True)
    (chart / "crds/matchers.yaml").write_text(crd)
    helm: Any = NoHelm()
    found = charts.crds(helm, {"chart": str(chart)})
    assert {"enum": ["!=", "="]} in [each["spec"] for each in found]
    assert _names(crd + "metadata: {name: matchers}\n") == {
        "CustomResourceDefinition/apiextensions.k8s.io/v1": ["matchers"]
    }


def test_a_missing_chart_is_named(tmp_path: Path) -> None:
    helm: Any = NoHelm()
    with pytest.raises(ProviderError, match="nowhere"):
        charts.metadata(helm, {"chart": str(tmp_path / "nowhere")})


def test_values_files_are_laid_under_the_values() -> None:
    files = [{"text": "a: {b: 1, c: [1, 2]}\nd: x"}, {"text": "a: {b: 2}"}]
    merged = options.merged({"valueYamlFiles": files, "values": {"a": {"c": [3]}}})
    assert merged == {"a": {"b": 2, "c": [3]}, "d": "x"}


def test_inputs_become_flags() -> None:
    inputs = {"atomic": True, "createNamespace": True, "timeout": 90, "maxHistory": 5, "cleanupOnFail": True}
    assert options.flags(inputs, upgrade=False) == [
        "--atomic",
        "--create-namespace",
        "--timeout",
        "90s",
        "--wait",
    ]
    assert options.flags(inputs, upgrade=True) == [
        "--atomic",
        "--cleanup-on-fail",
        "--timeout",
        "90s",
        "--wait",
        "--history-max",
        "5",
    ]
    assert "--wait" not in options.flags({"skipAwait": True, "waitForJobs": True}, upgrade=False)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"chart": "./toy", "version": "1"}, ["./toy", "--version", "1"]),
        ({"chart": "gpu", "repositoryOpts": {"repo": "https://h/x"}}, ["gpu", "--repo", "https://h/x"]),
        ({"chart": "gpu", "repositoryOpts": {"repo": "nvidia"}}, ["nvidia/gpu"]),
        ({"chart": "oci://h/gpu", "repositoryOpts": {"repo": "https://h"}}, ["oci://h/gpu"]),
    ],
)
def test_a_chart_is_found_where_the_inputs_say(inputs: dict[str, Any], words: list[str]) -> None:
    assert options.chart_argv(inputs) == words


def test_check_settles_name_namespace_version_and_values(kubernetes: Engine, chart: Path) -> None:
    inputs = {"chart": str(chart), "values": {"a": Secret("hush")}, "compat": "true"}
    checked = kubernetes.check(RELEASE, inputs)
    assert checked["name"].startswith("it-")
    assert (checked["namespace"], checked["version"], checked["timeout"]) == ("default", "1.2.3", 300)
    assert isinstance(checked["values"]["a"], Secret)
    assert "compat" not in checked
    assert kubernetes.check(RELEASE, inputs, checked)["name"] == checked["name"]


def test_check_reports_a_chart_that_is_not_there(kubernetes: Engine) -> None:
    found = kubernetes.failures(RELEASE, {"chart": "./nowhere"})
    assert found == ['chart: path "./nowhere" not found; check the chart name and repository configuration.']


def test_the_chart_is_not_looked_for_while_an_input_is_unknown(kubernetes: Engine) -> None:
    checked = kubernetes.check(RELEASE, {"chart": "./nowhere", "values": {"a": UNKNOWN}})
    assert checked["values"] == {"a": UNKNOWN}


def released(checked: dict[str, Any], **live: Any) -> dict[str, Any]:
    return {**checked, "status": {"revision": 1}, "resourceNames": {}, "__inputs": Secret(checked), **live}


def test_a_release_changes_by_its_values_and_by_the_version_of_its_chart(
    kubernetes: Engine, chart: Path
) -> None:
    inputs = {"name": "r", "chart": str(chart), "values": {"a": 1, "gone": 1}}
    checked = kubernetes.check(RELEASE, inputs)
    state = released(checked)
    assert not kubernetes.diff(RELEASE, state, checked, checked).changed
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: toy, version: 2.0.0}")
    news = kubernetes.check(RELEASE, {**inputs, "values": {"a": 2}}, checked)
    diff = kubernetes.diff(RELEASE, state, checked, news)
    assert diff.details == {"values.a": "UPDATE", "values.gone": "DELETE", "version": "UPDATE"}
    assert diff.replaces == []


def test_a_new_name_is_a_replacement(kubernetes: Engine, chart: Path) -> None:
    checked = kubernetes.check(RELEASE, {"name": "r", "chart": str(chart)})
    news = kubernetes.check(RELEASE, {"name": "s", "chart": str(chart)}, checked)
    assert kubernetes.diff(RELEASE, released(checked), checked, news).replaces == ["name"]


def test_values_that_somebody_else_upgraded_to_are_drift(kubernetes: Engine, chart: Path) -> None:
    checked = kubernetes.check(RELEASE, {"name": "r", "chart": str(chart), "values": {"a": 1}})
    drifted = released(checked, values={"a": 7})
    assert kubernetes.diff(RELEASE, drifted, checked, checked).details == {"values.a": "UPDATE"}


HELM = """#!/bin/sh
echo "$1" >> '{calls}'
case $1 in
install) echo 'Error: INSTALLATION FAILED: cannot re-use a name that is still in use' >&2; exit 1 ;;
upgrade) echo 'Error: UPGRADE FAILED: another operation is in progress' >&2; exit 1 ;;
status) echo '{{"info": {{"status": "pending-install"}}}}' ;;
get) case $2 in
  metadata) echo '{{"name": "r", "namespace": "default", "chart": "toy", "version": "1.2.3", \
    "revision": 1, "status": "pending-install"}}' ;;
  *) echo '{{}}' ;;
  esac ;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def helm_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a `helm` on PATH that knows the release `r` as pending-install; the file lists its subcommands."""
    folder, calls = tmp_path / "bin", tmp_path / "helm-calls"
    folder.mkdir()
    (folder / "helm").write_text(HELM.format(calls=calls))
    (folder / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return calls


@pytest.fixture
def reachable() -> Iterator[Engine]:
    """The plugin, configured for a cluster that answers."""
    api = ToyApiServer()
    engine = Engine(KubernetesProvider(), {"kubernetes:config:kubeconfig": api.kubeconfig})
    yield engine
    engine.close()
    api.close()


def test_a_release_that_helm_knows_and_the_stack_does_not_is_refused_as_officially(
    reachable: Engine, chart: Path, helm_calls: Path
) -> None:
    with pytest.raises(OperationFailed, match="cannot re-use a name that is still in use"):
        reachable.up(RELEASE, {"name": "r", "chart": str(chart)})
    assert helm_calls.read_text().split() == ["install"], "recovery is the product's work, not the plugin's"


def test_an_upgrade_of_a_pending_release_fails_as_officially(
    reachable: Engine, chart: Path, helm_calls: Path
) -> None:
    checked = reachable.check(RELEASE, {"name": "r", "chart": str(chart)})
    with pytest.raises(OperationFailed, match="another operation is in progress"):
        reachable.update(RELEASE, "default/r", released(checked), {**checked, "values": {"a": 2}})
    assert not {"rollback", "uninstall"} & set(helm_calls.read_text().split())
