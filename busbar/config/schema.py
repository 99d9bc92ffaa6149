"""The JSON Schema of a stack file, generated from the models, for completion and checks in editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from busbar.config.cluster import Cluster

PROJECT = "busbar"
KEY = "cluster"

SECRETS = {
    "sshPrivateKey": "Private key for all hosts, if neither ssh.key_file nor ssh.agent is used.",
    "sshPrivateKeyPassword": "Passphrase of the private key, if it has one.",
    "registryCredentials": 'Logins for registries as JSON: {"HOST": {"username": .., "password": ..}}.',
    "s3AccessKey": "Access key for the bucket of k3s.snapshots.s3.",
    "s3SecretKey": "Secret key for the bucket of k3s.snapshots.s3.",
}
"""The secrets of a stack: top-level keys `busbar:<key>`, declared in Pulumi.yaml, with descriptions."""

_SECRET = {
    "type": "object",
    "required": ["secure"],
    "additionalProperties": False,
    "properties": {"secure": {"type": "string", "description": "Ciphertext, written by Pulumi."}},
}
# A bound after one of our validators is rendered under pydantic's own name.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def stack_schema() -> dict[str, Any]:
    """The schema of `Pulumi.<stack>.yaml`: `busbar:cluster` and the secrets."""
    return project_schema(PROJECT, KEY, Cluster, SECRETS)


def project_schema(
    project: str, key: str, model: type[BaseModel], secrets: Mapping[str, str]
) -> dict[str, Any]:
    """The schema of a stack file of `project`: `<project>:<key>` is a `model`; `secrets` are optional."""
    root = tidy(model.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = {**root.pop("$defs", {}), model.__name__: root}
    keys: dict[str, Any] = {f"{project}:{key}": {"$ref": f"#/$defs/{model.__name__}"}}
    for name, description in secrets.items():
        definitions["Secret"] = _SECRET
        how = f"Set it with `pulumi config set --secret {project}:{name}`."
        keys[f"{project}:{name}"] = {"$ref": "#/$defs/Secret", "description": f"{description} {how}"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A stack of {project}: Pulumi.<stack>.yaml",
        "type": "object",
        "required": ["config"],
        "properties": {
            "config": {
                "description": "Configuration of the stack.",
                "type": "object",
                "required": [f"{project}:{key}"],
                "properties": keys,
                "patternProperties": {f"^(?!{project}:)": {"description": "Configuration of a provider."}},
                "additionalProperties": False,
            },
            "secretsprovider": {"type": "string", "description": "Location of Pulumi's secrets key."},
            "encryptedkey": {"type": "string", "description": "Written by Pulumi."},
            "encryptionsalt": {"type": "string", "description": "Written by Pulumi (passphrase)."},
            "environment": {"description": "Pulumi ESC environments to import."},
        },
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }


def tidy(node: Any, *, is_mapping_of_fields: bool = False) -> Any:
    """Remove titles and `default: null`, and name bounds as JSON Schema does."""
    if isinstance(node, list):
        return [tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        if not is_mapping_of_fields:
            if key == "title" or (key == "default" and value is None):
                continue
            key = _KEYWORDS.get(key, key)
        if key == "default":
            made[key] = value
        else:
            fields = key in {"properties", "$defs"} and not is_mapping_of_fields
            made[key] = tidy(value, is_mapping_of_fields=fields)
    return made
