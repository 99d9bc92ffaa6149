"""`busbar watch`: what the engine runs, and the refresh that an operator runs."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from busbar.cli.stackfile import SecretError
from busbar.frame import CRDS
from busbar.kube.nodes import NODES
from stacks.watch.package import commands
from stacks.watch.tests.support import CLUSTER, Served, configured, outputs
from tests.program.answers import KUBECONFIG
from tests.support.cli import busbar
from tests.support.verdicts import failing

STORED = "/api/v1/namespaces/busbar-watch/configmaps/busbar-metrics"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Served:
    made = Served({NODES: [], CRDS: [], "/api/v1/namespaces/nccl/configmaps": []})
    made.server = "https://api"
    monkeypatch.setattr("busbar.kube.client.connect", lambda: made)
    monkeypatch.setattr(
        "busbar.kube.client.RestApi", lambda kubeconfig: made if kubeconfig == KUBECONFIG else None
    )
    return made


@pytest.fixture
def stack(tmp_path: Path) -> str:
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:watch": configured()}}))
    return str(file)


@pytest.fixture
def read_outputs(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Pulumi's answer to the question for the outputs of a stack."""
    monkeypatch.setattr(commands, "read_outputs", asked := Mock())
    return asked


def test_refresh_writes_the_series_of_the_cluster_as_its_stack_says_now_also_after_a_failure(
    api: Served, stack: str, read_outputs: Mock
) -> None:
    read_outputs.side_effect = [json.dumps({**outputs(failing()), "kubeconfig": KUBECONFIG})]
    result = busbar("watch", "refresh", stack)
    assert result.exit_code == 0, result.output
    read_outputs.assert_called_once_with(CLUSTER, Path(stack).parent)
    assert 'busbar_nccl_passed{pool="h100"} 0' in api.objects[STORED]["data"]["busbar.prom"]
    assert json.loads(result.stdout)["quarantined"] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SecretError("the outputs of stack x cannot be read"), "the outputs of stack x cannot be read"),
        ("{}", "contract_version is missing"),
        ("no stack", "Expecting value"),
    ],
)
def test_refresh_names_the_stack_whose_outputs_it_cannot_read(
    api: Served, stack: str, read_outputs: Mock, text: str | SecretError, reason: str
) -> None:
    read_outputs.side_effect = [text]
    result = busbar("watch", "refresh", stack)
    assert result.exit_code == 1
    assert f"error: {CLUSTER}: " in result.stderr and reason in result.stderr
    assert STORED not in api.objects


def test_a_survey_with_findings_ends_the_update_with_all_of_them(api: Served) -> None:
    given = json.dumps({"install": False})
    result = busbar("step", "watch", "survey", stdin=given)
    assert result.exit_code == 1
    assert "error: nothing was installed:\n  - stack.mode: is existing" in result.stderr
    for kind in ("servicemonitors", "prometheusrules"):
        name = f"{kind}.monitoring.coreos.com"
        api.objects[CRDS].append({"metadata": {"name": name}, "spec": {"group": "monitoring.coreos.com"}})
    done = busbar("step", "watch", "survey", stdin=given)
    assert (done.exit_code, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("stack", "sends_none"),
    [
        ({"mode": "install"}, True),
        ({"mode": "install", "values": {"alertmanager": {"config": {"receivers": []}}}}, False),
        ({"mode": "none"}, False),
    ],
)
def test_a_site_is_told_that_its_alerts_reach_nobody(
    tmp_path: Path, stack: dict[str, Any], sends_none: bool
) -> None:
    """The Alertmanager of kube-prometheus-stack has one receiver, which sends nothing."""
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:watch": configured(stack=stack)}}))
    lines, _ = commands.describe(file)
    assert any("alerts reach nobody" in line for line in lines) is sends_none
