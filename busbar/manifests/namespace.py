"""Namespaces with the Pod Security level that their pods need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

_MODES = ("enforce", "audit", "warn")


def render(
    name: str,
    level: Literal["privileged", "baseline"] = "privileged",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The Namespace, with more `labels` if any. The level holds whatever the cluster's default is."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "busbar",
                **{f"pod-security.kubernetes.io/{mode}": level for mode in _MODES},
                **(labels or {}),
            },
        },
    }
