"""Objects of the operators' own kinds, from the manifests of busbar/manifests and of capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes


def create_custom_resource(
    name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions
) -> kubernetes.apiextensions.CustomResource:
    """Register the object of a manifest with apiVersion, kind, metadata and spec."""
    return kubernetes.apiextensions.CustomResource(
        name,
        api_version=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata=manifest["metadata"],
        spec=manifest["spec"],
        opts=opts,
    )
