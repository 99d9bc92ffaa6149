"""The configuration of stacks/watch: defaults, findings, schema, and the command that checks it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import ConfigError
from busbar.manifests.operators import MPI_OPERATOR
from stacks.watch.package.manifests import CRDS, STACK
from stacks.watch.tests.support import CLUSTER, INSTALL, configured, watch
from tests.support.cli import busbar


def test_only_the_cluster_must_be_named_and_no_prometheus_is_touched_by_default() -> None:
    assert watch().stack.mode == "none"
    assert not watch(stack={"repository": None}).stack.enabled
    assert watch(stack={"mode": "install"}).stack.enabled


@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ({"namespace": "kube-system"}, "namespace: 'kube-system' belongs to Kubernetes, and this is"),
        *(
            ({"namespace": name}, f"namespace: '{name}' belongs to an operator, and this is deleted with")
            for name in (MPI_OPERATOR.namespace, CRDS.namespace, STACK.namespace)
        ),
        ({"stack": {"mode": "existing"}}, "stack.release_label: missing: an existing Prometheus selects"),
        ({"stack": {**INSTALL, "release_label": "x"}}, "stack.release_label: 'x' is not used with"),
        ({"stack": {"release_label": "x"}}, "stack.release_label: 'x' is not used with stack.mode: none"),
        (
            {"stack": {"mode": "install", "repository": None, "crds_chart": "./crds"}},
            "stack.chart: 'kube-prometheus-stack' is a name, and stack.repository is not set",
        ),
        (
            {"stack": {"mode": "install", "repository": None, "chart": "oci://host/stack"}},
            "stack.crds_chart: 'prometheus-operator-crds' is a name, and stack.repository is not set",
        ),
        ({"missing_counters": ["symbol_error"]}, "missing_counters[0]: 'symbol_error' is not a series of"),
        ({"devices": "mlx5_[0-7"}, "devices: 'mlx5_[0-7' is not a regular expression: unterminated"),
        ({"devices": "(?!mlx5_4).*"}, "devices: '(?!mlx5_4).*' is not a regular expression: in a form that"),
        ({"max_age_hours": 0}, "max_age_hours: 0 is too small: expected at least 1"),
        ({"hung_power_fraction": 1}, "hung_power_fraction: 1 is too large: expected less than 1"),
        ({"check": {"run": 0}}, "check.run: 0 is too small: expected at least 1"),
    ],
)
def test_a_wrong_value_is_one_finding_with_its_path(values: dict[str, Any], finding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        watch(**values)
    [found] = map(str, caught.value.findings)
    assert found.startswith(finding)


def test_check_config_says_what_is_installed_and_warns_of_a_counter_that_no_rule_reads(
    tmp_path: Path,
) -> None:
    names = ("symbol_error_total", "symbol_errors_total", "state_id")
    given = configured(stack=INSTALL, missing_counters=[f"node_infiniband_{name}" for name in names])
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:watch": given}}))
    result = busbar("check-config", str(file))
    text = result.stdout + result.stderr
    assert result.exit_code == 0, text
    assert f"cluster {CLUSTER}, Prometheus: install, namespace busbar-watch\n" in text
    said = "missing_counters[1]: 'node_infiniband_symbol_errors_total' is read by no rule"
    assert f"{said}; did you mean 'node_infiniband_symbol_error_total'?" in text
    assert "missing_counters[2]: 'node_infiniband_state_id' is read by no rule" in text
    assert "missing_counters[0]" not in text
