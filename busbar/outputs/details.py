"""The output `details`: values per host, pool and message size, as one JSON text with a schema.

Pulumi's CLI prints every leaf of an output on a line of its own, also those of a text that is a JSON object
(pulumi/pulumi, pkg/backend/display/object_diff.go, decodeValue). A text that is a JSON string takes one line:
`details` is such a string, and the JSON object is in it.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from busbar import __version__
from busbar.config.stackfile import tidy
from busbar.models import OutputModel
from busbar.outputs.launch import PoolLaunch
from busbar.outputs.pool import PoolResult


class Node(OutputModel):
    """A host of the cluster."""

    name: str
    """Name of the host in the configuration, and of its Kubernetes Node if it has one."""
    role: Literal["lb", "server", "worker", "nfs"]
    """Role of the host in the cluster."""
    address: str
    """Address by which the other hosts reach it."""
    gpus: int
    """GPUs that preflight found."""
    rails: int
    """HCA ports that preflight found and chose for NCCL."""


class Details(OutputModel):
    """Values per host, pool and message size."""

    busbar_version: str | None = None
    """The busbar that wrote the outputs."""
    nodes: tuple[Node, ...]
    """All hosts, in the order of the configuration."""
    nccl: dict[str, PoolResult]
    """Pool -> its result; a pool that was not measured is absent."""
    pools: dict[str, PoolLaunch] = Field(default={})
    """Pool -> what a pod needs on its workers; a pool without workers is absent."""


def pack(nodes: list[Node], nccl: dict[str, PoolResult], pools: dict[str, PoolLaunch]) -> str:
    """The text of the output `details`."""
    details = Details(busbar_version=__version__, nodes=tuple(nodes), nccl=nccl, pools=pools)
    return json.dumps(details.model_dump_json(exclude_none=True))


def unpack(text: Any) -> dict[str, Any]:
    """The object that `Details` validates, from the text of the output. Raises ValueError."""
    try:
        return {**json.loads(json.loads(text))}
    except (TypeError, ValueError) as error:
        raise ValueError(f"details is not a JSON object in a JSON string: {error}") from None


def details_schema() -> dict[str, Any]:
    """The JSON Schema of the object in `details`."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Details"}
    return {**head, **tidy(Details.model_json_schema())}
