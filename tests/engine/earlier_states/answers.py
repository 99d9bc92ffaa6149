"""What new Commands print on a site that has been up for a while, by the modules of the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.program.answers import healthy


def answers(folder: Path) -> Callable[[Any], Mapping[str, Any]]:
    """From a new resource to its outputs; `folder` has cluster.json."""
    cluster = json.loads((folder / "cluster.json").read_text())
    names = [host["name"] for role in ("servers", "workers") for host in cluster["hosts"][role]]
    return healthy(cluster, with_k3s=names)
