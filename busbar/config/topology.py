"""Where a worker is in the fabric, and the Node labels that tell schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from busbar.config.kubernetes_values import LabelValue
from busbar.models import ConfigModel

Place = Annotated[LabelValue, Field(min_length=1)]

# Keys of Topograph 1.0 (NVIDIA/topograph), which Kueue's and KAI's examples read; Kubernetes has none of its
# own (KEP-4962 was closed). The farthest level comes first.
LABELS: Mapping[str, str] = {
    "block": "fabric.topograph.run/tier-1",
    "rail_group": "fabric.topograph.run/tier-0",
    "nvlink_domain": "accelerator.topograph.run/domain",
}
# Hosts with the same place share switches; in an NVLink domain they need none.
SWITCHES = ("block", "rail_group")


class Topology(ConfigModel):
    """Names of the site's own; all workers of a pool have the same levels, or none."""

    rail_group: Place | None = Field(
        default=None,
        description="The leaf switches that its rails end at: hosts with the same ones are one hop apart on "
        "every rail (a scalable unit). In a fabric without rails: the leaf.",
    )
    block: Place | None = Field(default=None, description="The rail groups below the same spine switches.")
    nvlink_domain: Place | None = Field(
        default=None, description="The hosts whose GPUs share NVLink, such as the rack of a GB200 NVL72."
    )

    def labels(self) -> dict[str, str]:
        """The labels of the Node, the farthest level first."""
        values = {key: getattr(self, level) for level, key in LABELS.items()}
        return {key: value for key, value in values.items() if value is not None}
