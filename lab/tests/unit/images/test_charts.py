"""The lab's charts take what busbar hands to NVIDIA's."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[4]
REAL = PROJECT.parent / "shared" / "charts"
CHARTS = ("gpu-operator", "network-operator")


def load(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every key of nested mappings, as a.b.c; lists and empty mappings are values."""
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{key}.")


@pytest.mark.parametrize("chart", CHARTS)
def test_every_value_that_busbar_sets_is_one_of_the_charts(chart: str) -> None:
    ours = set(paths(load(PROJECT / "helm_values" / f"{chart}.yaml")))
    theirs = set(paths(load(PROJECT / "lab" / "charts" / chart / "values.yaml")))
    assert ours - theirs == set()


@pytest.mark.parametrize("chart", CHARTS)
def test_the_values_are_ones_that_the_real_chart_knows(chart: str) -> None:
    real = sorted((REAL / chart).glob("*/values.yaml"))
    if not real:
        pytest.skip(f"the real values of {chart} are not beside this checkout")
    # `operator.version` is left to the chart's version there; sub-charts have values.yaml of their own.
    known = {"operator.version", "operator.imagePullPolicy", "sriov-network-operator.operator.cniBinPath"}
    known |= {f"node-feature-discovery.{part}.tolerations" for part in ("master", "gc")}
    known.update(path for file in real for path in paths(load(file)))
    unknown = set(paths(load(PROJECT / "lab" / "charts" / chart / "values.yaml"))) - known
    assert unknown == set()


def schema(file: Path) -> dict[str, Any]:
    properties = load(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert isinstance(properties, dict)
    return properties


def pruned(
    properties: Mapping[str, Any], real: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, set[str]]]:
    """Per object whose unknown fields our schema drops: the fields that only one of the two schemas keeps."""
    yield path or "the object", set(properties) ^ set(real)
    for name, child in properties.items():
        if "properties" in child:
            yield from pruned(child["properties"], real[name]["properties"], f"{path}.{name}".lstrip("."))


@pytest.mark.parametrize("chart", CHARTS)
def test_the_definition_of_the_policy_drops_the_fields_that_the_real_one_drops(chart: str) -> None:
    (ours,) = (PROJECT / "lab" / "charts" / chart / "crds").glob("*policies.yaml")
    found = sorted((REAL / chart).glob(f"*/crds/*_{ours.name}"))
    if not found:
        pytest.skip(f"the real CRDs of {chart} are not beside this checkout")
    real = {name: value for name, value in schema(found[-1]).items() if name in ("spec", "status")}
    differences = {path: names for path, names in pruned(schema(ours), real) if names}
    assert differences == {}, found[-1]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_says_that_it_is_a_simulator(chart: str) -> None:
    folder = PROJECT / "lab" / "charts" / chart
    assert "simulator" in load(folder / "Chart.yaml")["description"]
    assert "simulator" in (folder / "templates" / "NOTES.txt").read_text()
