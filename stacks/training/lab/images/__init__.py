"""Image archives of what training needs, beside those of lab/images."""

from __future__ import annotations

from lab.images.catalog import Archive
from stacks.training.lab.images import multus_image, torch_image, trainer_image, training_operator_image


def archives() -> tuple[Archive, ...]:
    """All archives; none is made unless it is asked for."""
    modules = (torch_image, trainer_image, training_operator_image, multus_image)
    return tuple(module.archive() for module in modules)
