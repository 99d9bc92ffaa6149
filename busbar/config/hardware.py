"""The hardware of a host: what preflight looks for, and what a bandwidth is computed from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from busbar.config.network_values import HcaPattern
from busbar.config.values import Float, Int, NonEmpty
from busbar.models import ConfigModel


class Gpus(ConfigModel):
    """The GPUs of a host: all that is known of one whose rails do not count, or are those of a profile."""

    gpus: Annotated[Int, Field(ge=1, le=64)] = Field(description="GPUs per worker.")
    gpu_model: NonEmpty | None = Field(
        default=None, description="Text that the GPU's product name must contain, such as H100."
    )


class Hardware(Gpus):
    """What every host of a pool must have; preflight fails for a host that has less."""

    rails: Annotated[Int, Field(ge=1, le=64)] = Field(
        description="HCA ports per worker that carry NCCL traffic: active, and at rate_gbps."
    )
    rate_gbps: Annotated[Float, Field(gt=0, le=3200)] = Field(
        description="Rate of one rail in Gb/s: 400 for NDR."
    )
    link_layer: Literal["infiniband", "ethernet"] = Field(
        default="infiniband", description="Link layer of the rails; ethernet means RoCE."
    )
    ignore_hcas: list[HcaPattern] = Field(
        default=[],
        description="HCAs that are not rails (storage, management), such as mlx5_4; shell patterns work.",
    )

    @property
    def required(self) -> dict[str, Any]:
        """The fields of a Hardware, without those of a subclass: what preflight requires of a host."""
        return self.model_dump(include={*Hardware.model_fields})
