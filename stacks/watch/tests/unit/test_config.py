"""The configuration of stacks/watch: defaults, findings, schema, and the command that checks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from busbar.config import ConfigError
from busbar.manifests.operators import MPI_OPERATOR
from stacks.watch.package.config import CONFIG, read, stack_schema
from stacks.watch.package.manifests import CRDS, STACK
from stacks.watch.tests.support import CLUSTER, configured, watch
from tests.program.harness import ROOT
from tests.support.cli import busbar

STACKS = sorted((ROOT / "stacks" / "watch").glob("Pulumi.*.yaml"))


def findings(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        watch(**values)
    return [*map(str, caught.value.findings)]


def test_only_the_cluster_must_be_named_and_no_prometheus_is_touched_by_default() -> None:
    assert watch().stack.mode == "none"
    assert not watch(stack={"repository": None}).stack.enabled
    assert watch(stack={"mode": "install"}).stack.enabled


@pytest.mark.parametrize(
    ("values", "finding"),
    [
        ({"namespace": "kube-system"}, "namespace: 'kube-system' belongs to Kubernetes, and this one is"),
        *(
            ({"namespace": name}, f"namespace: '{name}' belongs to an operator, and this one is deleted with")
            for name in (MPI_OPERATOR.namespace, CRDS.namespace, STACK.namespace)
        ),
        ({"stack": {"mode": "existing"}}, "stack.release_label: missing: an existing Prometheus selects"),
        *(
            (
                {"stack": {"mode": mode, "release_label": "x"}},
                f"stack.release_label: 'x' is not used with stack.mode: {mode}",
            )
            for mode in ("none", "install")
        ),
        (
            {"stack": {"mode": "install", "repository": None, "crds_chart": "./crds"}},
            "stack.chart: 'kube-prometheus-stack' is a name, and stack.repository is not set",
        ),
        (
            {"stack": {"mode": "install", "repository": None, "chart": "oci://host/stack"}},
            "stack.crds_chart: 'prometheus-operator-crds' is a name, and stack.repository is not set",
        ),
        (
            {"missing_counters": ["symbol_error"]},
            "missing_counters[0]: 'symbol_error' is not a series of node_e",
        ),
        (
            {"devices": "mlx5_[0-7"},
            "devices: 'mlx5_[0-7' is not a regular expression: unterminated character set",
        ),
        (
            {"devices": "(?!mlx5_4).*"},
            "devices: '(?!mlx5_4).*' is not a regular expression: in a form that Go does",
        ),
        ({"cluster": "prod"}, "cluster: 'prod' is not a stack as ORGANIZATION/PROJECT/STACK"),
        ({"dashboard": True}, "dashboard: unknown key"),
        ({"max_age_hours": 0}, "max_age_hours: 0 is too small: expected at least 1"),
        ({"hung_power_fraction": 1}, "hung_power_fraction: 1 is too large: expected less than 1"),
        ({"check": {"run": 0}}, "check.run: 0 is too small: expected at least 1"),
    ],
)
def test_a_wrong_value_is_one_finding_with_its_path(values: dict[str, Any], finding: str) -> None:
    [found] = findings(**values)
    assert found.startswith(finding)


def test_what_is_no_object_is_named() -> None:
    with pytest.raises(ConfigError, match="busbar-watch:watch: is not an object"):
        CONFIG.load([])


def test_the_schema_that_is_checked_in_is_current() -> None:
    checked_in = json.loads((ROOT / "stacks" / "watch" / "schema.json").read_text())
    assert checked_in == stack_schema(), "run `make schema`"


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.name)
def test_every_stack_file_is_valid_and_accepted_by_the_schema(file: Path) -> None:
    assert read(file).cluster
    jsonschema.validate(yaml.safe_load(file.read_text()), stack_schema())


def test_check_config_says_what_is_installed(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:watch": configured(stack={"mode": "install"})}}))
    result = busbar("check-config", str(file))
    assert result.exit_code == 0, result.output
    assert [line.strip() for line in result.stdout.splitlines()] == [
        "OK  Pulumi.prod.yaml",
        f"cluster {CLUSTER}, Prometheus: install, namespace busbar-watch",
    ]


def test_check_config_warns_of_a_counter_that_no_rule_reads(tmp_path: Path) -> None:
    counters = [
        f"node_infiniband_{name}" for name in ("symbol_error_total", "symbol_errors_total", "state_id")
    ]
    file = tmp_path / "Pulumi.prod.yaml"
    config = configured(missing_counters=counters)
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:watch": config}}))
    result = busbar("check-config", str(file))
    assert result.exit_code == 0, result.output
    text = result.stdout + result.stderr
    for number, name, near in ((1, "symbol_errors_total", "symbol_error_total"), (2, "state_id", "")):
        said = f"missing_counters[{number}]: 'node_infiniband_{name}' is read by no rule"
        assert said + (f"; did you mean 'node_infiniband_{near}'?" if near else "") in text
    assert "missing_counters[0]" not in text


def test_check_config_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(yaml.safe_dump({"config": {"busbar-watch:wach": {}}}))
    result = busbar("check-config", str(file))
    assert result.exit_code == 64
    assert "busbar-watch:wach: unknown key; did you mean 'watch'?" in result.stdout
    assert "busbar-watch:watch: missing: the object that describes the monitoring" in result.stdout
