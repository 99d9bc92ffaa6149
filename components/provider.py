"""The component `Cluster` for programs in other languages: `pulumi package add` of this repository."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pulumi
from pulumi.provider import ConstructResult, main
from pulumi.provider.experimental.analyzer import ComponentDefinition
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.experimental.util import camel_case

from busbar import __version__
from busbar.components.cluster import Cluster
from busbar.components.engine import local_command
from busbar.components.engine.update_end import fail_unless_installed
from busbar.config import Cluster as Configuration

NAME = "busbar"
INTERPRETER = Path(".busbar/python")
"""A path in the folder of the program, in which the plugin's process runs too."""
_CONFIG = Configuration.model_json_schema()
_MODELS: Mapping[str, Any] = {**_CONFIG["$defs"], Configuration.__name__: _CONFIG}


def serve() -> NoReturn:
    """Serve the component until the engine ends the process."""
    main(Provider(), sys.argv[1:])
    raise SystemExit


class Provider(ComponentProvider):
    """A provider of one component. The gate fails its construction: a failed fabric gives no outputs."""

    def __init__(self) -> None:
        super().__init__([Cluster], NAME, version=__version__)
        self.schema = json.dumps(completed(json.loads(self.schema or "{}")))

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Any,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Register the component and all resources below it."""
        # The plugin's own folder has another name in each release, and a Command with a new text runs again.
        INTERPRETER.parent.mkdir(exist_ok=True)
        INTERPRETER.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        INTERPRETER.chmod(0o755)
        local_command.interpreter = str(INTERPRETER)
        return super().construct(name, resource_type, inputs, options)

    def map_inputs(self, inputs: Any, component_def: ComponentDefinition) -> Any:
        """The arguments by their names in Python. An unknown key stays, and is an error there."""
        names = component_def.inputs_mapping
        found = {names.get(key, key): value for key, value in inputs.items()}
        return {key: as_in_stack_files(value) if key == "config" else value for key, value in found.items()}

    def get_state(self, instance: Any, component_def: ComponentDefinition) -> dict[str, Any]:
        """The outputs, once the steps after them have succeeded."""
        finished: pulumi.Output[None] = pulumi.Output.from_input(_finish(instance))
        state = super().get_state(instance, component_def)
        return {key: pulumi.Output.all(value, finished)[0] for key, value in state.items()}


async def _finish(cluster: Cluster) -> None:
    # Only the program, another process, outlives the deletions: the next update says what they removed.
    await fail_unless_installed(cluster.kubeconfig, cluster.installed)
    await cluster.finish()


def completed(schema: dict[str, Any]) -> dict[str, Any]:
    """The analyser's schema, completed with what it cannot see: secret values, and the configuration."""
    resource = schema["resources"][f"{NAME}:index:Cluster"]
    for values in (resource["inputProperties"], resource["properties"]):
        for value in values.values():
            if value.get("description", "").startswith("Secret"):
                value["secret"] = True
    config = resource["inputProperties"]["config"]
    resource["inputProperties"]["config"] = {
        "description": config["description"],
        "plain": True,
        **_reference(Configuration.__name__),
    }
    schema["types"] = {
        _reference(name)["$ref"].removeprefix("#/types/"): {
            "type": "object",
            "description": model["description"],
            "properties": {
                camel_case(key): {"description": value["description"], **_as_pulumi(value)}
                for key, value in model["properties"].items()
            },
            "required": [camel_case(key) for key in model.get("required", ())],
        }
        for name, model in _MODELS.items()
    }
    return schema


def as_in_stack_files(value: Any, schema: Mapping[str, Any] = _CONFIG) -> Any:
    """A configuration with the names of a stack file; a key that no model has stays unchanged."""
    schema = _without_null(schema)
    schema = _MODELS.get(_model(schema), schema)
    if isinstance(value, list):
        return [as_in_stack_files(each, schema.get("items", {})) for each in value]
    if isinstance(value, dict):
        fields, more = schema.get("properties", {}), _values(schema)
        names = {camel_case(key): key for key in fields}
        renamed = {names.get(key, key): each for key, each in value.items()}
        return {key: as_in_stack_files(each, fields.get(key, more)) for key, each in renamed.items()}
    # All numbers arrive as floats.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_pulumi(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A type of JSON Schema as a Pulumi type; Any for several types, which the model tells apart."""
    schema = _without_null(schema)
    kind = schema.get("type", "string" if "enum" in schema else None)
    if "$ref" in schema:
        found = _reference(_model(schema))
    elif kind == "array":
        found = {"type": kind, "items": _as_pulumi(schema["items"])}
    elif kind == "object":
        found = {"type": kind, "additionalProperties": _as_pulumi(_values(schema))}
    else:
        found = {"type": kind} if isinstance(kind, str) else {"$ref": "pulumi.json#/Any"}
    return {"plain": True, **found}


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A union without null: its only type, a text for several kinds of text, else no type."""
    found = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    texts = all("enum" in each or each.get("type") == "string" for each in found)
    return found[0] if len(found) == 1 else {"type": "string"} if texts else {}


def _values(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The type of the values of an object with free keys."""
    found = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    return found[0] if isinstance(found[0], dict) else {}


def _model(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def _reference(model: str) -> dict[str, Any]:
    return {"$ref": f"#/types/{NAME}:index:{model.removesuffix('Config')}Config"}
