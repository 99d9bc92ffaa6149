"""The schema of `Cluster` for programs in other languages, and the example that is written by it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pulumi.provider.experimental.util import camel_case

from busbar import outputs
from busbar.components.provider import Provider
from busbar.config import load

PROJECT = Path(__file__).resolve().parents[3]
CLUSTER = "busbar:index:Cluster"


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def schema(provider: Provider) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(provider.schema or "")
    return found


def arrived_at(provider: Provider, inputs: dict[str, Any]) -> Any:
    return provider.map_inputs(inputs, provider._component_defs["Cluster"])


def test_the_configuration_is_required_and_what_it_may_have_is_described(schema: dict[str, Any]) -> None:
    assert schema["resources"][CLUSTER]["requiredInputs"] == ["config"]
    without = {
        f"{kind}.{name}"
        for kind, each in schema["types"].items()
        for name, value in each["properties"].items()
        if not value.get("description")
    }
    assert without == set()


def test_keys_and_the_kubeconfig_are_secrets(schema: dict[str, Any]) -> None:
    resource = schema["resources"][CLUSTER]
    secret = {name for name, value in resource["inputProperties"].items() if value.get("secret")}
    assert secret == {
        "sshPrivateKey",
        "sshPrivateKeyPassword",
        "registryCredentials",
        "s3AccessKey",
        "s3SecretKey",
    }
    assert [name for name, value in resource["properties"].items() if value.get("secret")] == ["kubeconfig"]


def test_every_output_of_a_stack_is_one_of_the_component(schema: dict[str, Any]) -> None:
    names = {camel_case(name) for name in (*outputs.NAMES, "kubeconfig")}
    assert set(schema["resources"][CLUSTER]["properties"]) == names


def in_yaml() -> Any:
    example = yaml.safe_load((PROJECT / "examples/yaml/Pulumi.yaml").read_text())
    return example["resources"]["cluster"]["properties"]["config"]


def in_typescript() -> Any:
    return json.loads((PROJECT / "examples/typescript/cluster.json").read_text())


@pytest.mark.parametrize("example", [in_yaml, in_typescript])
def test_the_configuration_of_the_example_is_valid_and_arrives_with_the_names_of_the_stack_file(
    provider: Provider, example: Callable[[], Any]
) -> None:
    given = example()
    # The engine gives all numbers as floats.
    sent = json.loads(json.dumps(given), parse_int=float)
    arrived = arrived_at(provider, {"config": sent})["config"]
    assert arrived["pools"]["h100"] == {"gpus": 8, "rails": 8, "rate_gbps": 400, "gpu_model": "H100"}
    cluster = load(arrived, root=PROJECT, secret_keys={"sshPrivateKey"})
    assert [each.name for each in cluster.hosts.workers] == ["gpu-1", "gpu-2"]


def test_what_the_program_in_typescript_sets_and_reads_is_in_the_schema(schema: dict[str, Any]) -> None:
    program = (PROJECT / "examples/typescript/index.ts").read_text()
    resource = schema["resources"][CLUSTER]
    assert set(re.findall(r"cluster\.(\w+);", program)) < set(resource["properties"])
    assert {"config", "sshPrivateKey"} <= set(resource["inputProperties"])


def test_a_key_that_does_not_exist_stays_and_is_an_error_of_the_configuration(provider: Provider) -> None:
    arrived = arrived_at(provider, {"config": {"rateGbps": 1.0}, "colour": "red"})
    assert json.dumps(arrived) == '{"config": {"rateGbps": 1}, "colour": "red"}', (
        "a whole number is none with a point"
    )


def test_the_plugin_has_an_environment_of_its_own() -> None:
    """Pulumi rebuilds it with any python3 on PATH, from requirements.txt in the same folder."""
    plugin = PROJECT / "plugin"
    options = yaml.safe_load((plugin / "PulumiPlugin.yaml").read_text())["runtime"]["options"]
    assert (plugin / options["virtualenv"]).resolve().parent == plugin
    assert (plugin / "requirements.txt").is_file()
