"""Default versions of the software that stacks/slurm_k8s installs."""

from __future__ import annotations

from typing import Final

from busbar.versions import Default, split

# The charts, the operator and the images of Slurm (SlinkyProject/slurm-operator, CHANGELOG). 1.2 has mended
# two injections into slurm.conf, and a rolling update that drained all workers at once.
OPERATOR: Final = "1.2.1"
CHARTS: Final = "oci://ghcr.io/slinkyproject/charts"
IMAGES: Final = "ghcr.io/slinkyproject"
IMAGE_TAG: Final = "26.05-ubuntu26.04"
# The charts name `alpine:latest` for the containers that print log files and copy configurations.
SIDECAR_IMAGE: Final = "docker.io/library/alpine:3.22"

_BUILT: Final = ("1.2.1", "built from its source, in the lab, 2026-11-28")
_SLURM: Final = ("26.05", "that of Debian, in the lab, 2026-11-29")
DEFAULTS: Final = (
    *(
        Default("chart", name, OPERATOR, *_BUILT)
        for name in ("slurm-operator-crds", "slurm-operator", "slurm")
    ),
    *(Default("image", name, OPERATOR, *_BUILT) for name in ("slurm-operator", "slurm-operator-webhook")),
    *(Default("image", name, IMAGE_TAG, *_SLURM) for name in ("slurmctld", "slurmd", "slurmrestd", "login")),
    Default("image", *split(SIDECAR_IMAGE)),
)
