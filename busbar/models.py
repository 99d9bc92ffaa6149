"""Base classes of pydantic models: of a configuration, of results and requests, of the outputs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Base of results, and of what commands read on stdin: no unknown fields, not changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConfigModel(BaseModel):
    """Base of all parts of a configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # `pulumi config set --path` may store `1.30` or `0123` as a number: accept it as text.
        coerce_numbers_to_str=True,
        str_strip_whitespace=True,
    )


class OutputModel(BaseModel):
    """Base of the parts of the outputs: keys that a newer busbar has added are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)
