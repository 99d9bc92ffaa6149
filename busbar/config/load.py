"""The door to the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError, sentence


def load(data: Mapping[str, Any]) -> Cluster:
    """Check the object `busbar:cluster` and return it typed.

    Raises `ConfigError` with every finding: each names the path, the value, and what is expected.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(["busbar:cluster: is not an object; see Pulumi.h100.example.yaml"])
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise ConfigError(sentence(detail, Cluster) for detail in error.errors()) from None
