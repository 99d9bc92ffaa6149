"""Base classes of pydantic models, and reading JSON that another program wrote and YAML of our own."""

from __future__ import annotations

import math
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError


class StrictModel(BaseModel):
    """Base of results and of commands' input on stdin: immutable, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConfigModel(BaseModel):
    """Base of all parts of a configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # `pulumi config set --path` may store `1.30` or `0123` as a number: accept it as text.
        coerce_numbers_to_str=True,
        str_strip_whitespace=True,
        # The text below a key is its description in schemas and messages.
        use_attribute_docstrings=True,
    )


class OutputModel(BaseModel):
    """Base of the parts of the outputs: keys that a newer busbar has added are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


def parse_yaml(text: str) -> Any:
    """The value of a file of busbar, by libyaml where PyYAML has it: it is 8 times as fast, but ends the
    process on deep nesting, so texts of others go to yaml.safe_load. Raises yaml.YAMLError."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def number(value: Any, *, digits: int | None = None) -> float | None:
    """A finite number as a float, rounded to `digits` decimals; None for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)


def problems(error: ValidationError) -> str:
    """The errors of a model, each with its path, if it has one, and the value that was found."""
    found = []
    for detail in error.errors():
        path = ".".join(map(str, detail["loc"]))
        found.append(f"{path}{': ' if path else ''}{detail['msg']}, got {detail['input']!r}")
    return "; ".join(found)
