"""Every dashboard is one that Grafana can lay out, and every expression is valid and finds series."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.watch.package.manifests import dashboards
from stacks.watch.tests import support
from stacks.watch.tests.promtool import run
from stacks.watch.tests.support import watch
from stacks.watch.tests.unit.test_alerts import RECORDED

DASHBOARDS = {
    name: json.loads(text) for each in dashboards(watch()) for name, text in sorted(each["data"].items())
}
VARIABLES = {
    "$__rate_interval": "5m",
    "$__range": "1h",
    "$pool": "h100",
    "$node": "gpu-1",
    "$collective": "all_reduce",
}
DEVICE = 'node="gpu-1",job="busbar-rails",device="mlx5_0",port="1"'


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def named_expressions(variables: Mapping[str, str] = VARIABLES) -> dict[str, str]:
    """Dashboard, panel and letter of each -> the expression, with Grafana's variables replaced."""
    found = {}
    for name in DASHBOARDS:
        for panel in panels(name):
            for target in panel["targets"]:
                expr = target["expr"]
                for variable, value in variables.items():
                    expr = expr.replace(variable, value)
                assert "$" not in expr, expr
                found[f"{name.removesuffix('.json')}: {panel['title']}, {target['refId']}"] = expr
    return found


def expressions() -> list[str]:
    return list(named_expressions().values())


def series() -> dict[str, str]:
    """What a cluster of two nodes has: busbar's series, and of every other name one that counts."""
    samples = (str(each).rpartition(" ") for each in support.samples())
    found = {text: f"{value}x120" for text, _, value in samples}
    for name in set(re.findall(r"node_infiniband_\w+", " ".join(expressions()))):
        found[f"{name}{{{DEVICE}}}"] = "4x120" if name.endswith("_id") else "0+60000000000x120"
    found[f"node_infiniband_rate_bytes_per_second{{{DEVICE}}}"] = "5e10x120"
    found['node_infiniband_state_id{node="gpu-1",job="busbar-rails",device="storage",port="1"}'] = "4x120"
    for name in set(re.findall(r"DCGM_\w+", " ".join(expressions()))):
        # Slowed down all the time, in nanoseconds.
        values = "0+60000000000x120" if name.endswith(("_VIOLATION", "_NS")) else "1+60x120"
        found[f'{name}{{node="gpu-1",gpu="0",xid="79"}}'] = values
    labels = 'node="gpu-1",resource="nvidia_com_gpu"'
    found[f"kube_node_status_allocatable{{{labels}}}"] = "8x120"
    found['ALERTS{alertname="BusbarRailDown",alertstate="firing",node="gpu-1"}'] = "1x120"
    return found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_asks_the_chosen_datasource(name: str) -> None:
    for panel in panels(name):
        asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert panel["title"] and {each["uid"] for each in asked} == {"${datasource}"}
    assert [each["uid"] for each in DASHBOARDS.values()].count(DASHBOARDS[name]["uid"]) == 1


def are(folder: Path, values: Mapping[str, float]) -> None:
    """Expressions have these values after 90 minutes of `series`."""
    samples = [
        {"expr": expr, "eval_time": "90m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in values.items()
    ]
    given = [{"series": name, "values": values} for name, values in series().items()]
    tests = [{"interval": "1m", "input_series": given, "promql_expr_test": samples}]
    file, rules = folder / "test.yaml", folder / "recorded.yaml"
    rules.write_text(json.dumps({"groups": [{"name": "recorded", "rules": RECORDED}]}))
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = run("test", "rules", file)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_expression_finds_series_of_a_cluster_with_faults(tmp_path: Path) -> None:
    # promtool compares all samples: one that says whether there are any.
    are(tmp_path, {f"count({expr}) > bool 0": 1 for expr in expressions()})


def test_the_single_numbers_are_those_of_the_cluster(tmp_path: Path) -> None:
    """Two nodes with eight rails each, of which one is read, and a port for storage; one in quarantine, one
    drained; one alert."""
    numbers = {
        "fabric: Fabric passed, A": 1,
        "fabric: busbw, of the expected value, A": 0.9757,  # 390.28 of 400 GB/s
        "fabric: Rails that are not ACTIVE, A": 15,
        "fabric: Nodes in quarantine or drained, A": 2,
        "fabric: Alerts firing, A": 1,
        "node: Rails, A": 8,
        "node: Rails, B": 1,
        "node: In quarantine or drained, A": 0,
        "node: Alerts firing, A": 1,
        "node: Slowed down by heat and power (share of the time), A": 1,
        "node: Slowed down by heat and power (share of the time), B": 1,
        "node: Slowed down by heat and power (share of the time), C": 1,
    }
    exprs = {name.removeprefix("busbar-"): expr for name, expr in named_expressions().items()}
    are(tmp_path, {f"round(sum({exprs[name]}), 0.0001)": value for name, value in numbers.items()})
