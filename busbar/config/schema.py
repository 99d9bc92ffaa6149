"""The JSON Schema of a stack file, generated from the models, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from busbar.config.cluster import Cluster

SECRETS = {
    "sshPrivateKey": "Private key for all hosts, if neither ssh.key_file nor ssh.agent is used.",
    "sshPrivateKeyPassword": "Passphrase of the private key, if it has one.",
    "registryCredentials": 'Logins for registries as JSON: {"HOST": {"username": .., "password": ..}}.',
    "s3AccessKey": "Access key for the bucket of k3s.snapshots.s3.",
    "s3SecretKey": "Secret key for the bucket of k3s.snapshots.s3.",
}
"""The secrets of a stack: top-level keys `busbar:<key>`, declared in Pulumi.yaml, with descriptions."""

# A bound after one of our validators is rendered under pydantic's own name.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def stack_schema() -> dict[str, Any]:
    """The schema of `Pulumi.<stack>.yaml`: `busbar:cluster` and the secrets."""
    cluster = _tidy(Cluster.model_json_schema(ref_template="#/$defs/{model}"))
    definitions = cluster.pop("$defs")
    definitions["Cluster"] = cluster
    definitions["Secret"] = {
        "type": "object",
        "required": ["secure"],
        "additionalProperties": False,
        "properties": {"secure": {"type": "string", "description": "Ciphertext, written by Pulumi."}},
    }
    keys: dict[str, Any] = {"busbar:cluster": {"$ref": "#/$defs/Cluster"}}
    for name, description in SECRETS.items():
        keys[f"busbar:{name}"] = {
            "$ref": "#/$defs/Secret",
            "description": f"{description} Set it with `pulumi config set --secret busbar:{name}`.",
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stack of busbar: Pulumi.<stack>.yaml",
        "type": "object",
        "required": ["config"],
        "properties": {
            "config": {
                "description": "Configuration of the stack.",
                "type": "object",
                "required": ["busbar:cluster"],
                "properties": keys,
                "patternProperties": {"^(?!busbar:)": {"description": "Configuration of a provider."}},
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


def _tidy(node: Any, *, is_mapping_of_fields: bool = False) -> Any:
    """Remove titles and `default: null`, and name bounds as JSON Schema does."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if not is_mapping_of_fields:
            if key == "title" or (key == "default" and value is None):
                continue
            key = _KEYWORDS.get(key, key)
        if key == "default":
            tidy[key] = value
        else:
            fields = key in {"properties", "$defs"} and not is_mapping_of_fields
            tidy[key] = _tidy(value, is_mapping_of_fields=fields)
    return tidy
