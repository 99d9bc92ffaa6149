"""Digests, and names made from them: the same measurement has the same name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

# A worker's name is a DNS-1035 label of at most 63 characters: <job>-worker-<index below 100000>.
_JOB_NAME_LIMIT = 63 - len("-worker-99999")
_DIGEST_LENGTH = 10


def sha256(text: str) -> str:
    """sha256 (hex) of `text` in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: object) -> str:
    """sha256 (hex) of the JSON of `value`, independent of the order of its keys."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False))


def short(digest: str) -> str:
    """The part of a digest that goes into a name."""
    return digest[:_DIGEST_LENGTH]


def job_name(pool: str, content: Mapping[str, Any]) -> str:
    """`nccl-<pool>-<digest of content>`: a DNS-1035 label also with the operator's suffixes."""
    stem = f"nccl-{pool}"[: _JOB_NAME_LIMIT - _DIGEST_LENGTH - 1].rstrip("-")
    return f"{stem}-{short(digest(content))}"


_MODES = ("enforce", "audit", "warn")


def render_namespace(name: str, level: Literal["privileged", "baseline"] = "privileged") -> dict[str, Any]:
    """The Namespace. The level holds whatever the cluster's default is."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "busbar",
                **{f"pod-security.kubernetes.io/{mode}": level for mode in _MODES},
            },
        },
    }
