"""Stack files of every capability with a Pulumi project, and all JSON Schemas of stack files."""

import json
import pkgutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from busbar.capability import FOLDER, Capability, capabilities
from busbar.config import ConfigError
from busbar.config.stackfile import stack_schema
from tests.support.cli import busbar

WITH_PROJECT = [each for each in capabilities() if each.config]
STACKS = [(each, file) for each in WITH_PROJECT for file in (FOLDER / each.name).glob("Pulumi.*.yaml")]
of_each = pytest.mark.parametrize("capability", WITH_PROJECT, ids=lambda each: each.name)


def schema_of(capability: Capability) -> dict[str, Any]:
    schema = capability.stack_schema()
    assert schema
    return schema


@pytest.mark.parametrize(("capability", "file"), STACKS, ids=lambda each: each.name)
def test_a_stack_file_is_valid_described_and_names_its_schema(capability: Capability, file: Path) -> None:
    # The file of the lab's Slurm names a key that the lab makes.
    if not capability.host_roles or file.name != "Pulumi.dev.yaml":
        lines, warnings = capability.describe(file)
        assert lines and not warnings
    jsonschema.validate(yaml.safe_load(file.read_text()), schema_of(capability))
    assert file.read_text().startswith("# yaml-language-server: $schema=schema.json\n")


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        (stack_schema(), FOLDER.parent / "schema/cluster.schema.json"),
        *((schema_of(each), FOLDER / each.name / "schema.json") for each in WITH_PROJECT),
    ],
    ids=["core", *(each.name for each in WITH_PROJECT)],
)
def test_the_schema_is_current_sound_and_describes_every_key(schema: dict[str, Any], file: Path) -> None:
    assert schema == json.loads(file.read_text()), "run `make schema`"
    jsonschema.Draft202012Validator.check_schema(schema)
    undescribed = [
        f"{name}.{key}"
        for name, model in schema["$defs"].items()
        for key, value in model.get("properties", {}).items()
        if not value.get("description")
    ]
    assert undescribed == []


@of_each
def test_the_schema_refuses_an_unknown_key_as_the_program_does(capability: Capability) -> None:
    document = yaml.safe_load((FOLDER / capability.name / "Pulumi.dev.yaml").read_text())
    [data] = document["config"].values()
    data["clutser"] = {}
    with pytest.raises(jsonschema.ValidationError, match="clutser"):
        jsonschema.validate(document, schema_of(capability))
    with pytest.raises(ConfigError, match="clutser: unknown key"):
        pkgutil.resolve_name(str(capability.config)).load(data)


@of_each
def test_what_is_no_object_is_refused(capability: Capability) -> None:
    with pytest.raises(ConfigError, match=f"{capability.project}:{capability.name}: is not an object"):
        pkgutil.resolve_name(str(capability.config)).load(["x"])


@of_each
def test_check_config_names_misspelt_and_missing_keys(capability: Capability, tmp_path: Path) -> None:
    name, project = capability.name, capability.project
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(f"config: {{'{project}:{name[:-1]}': {{}}}}")
    result = busbar("check-config", str(file))
    assert result.exit_code == 64
    assert f"{project}:{name[:-1]}: unknown key; did you mean '{name}'?" in result.stdout
    assert f"{project}:{name}: missing: the object that describes " in result.stdout
