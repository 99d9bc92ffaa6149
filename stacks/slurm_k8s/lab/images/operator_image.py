"""The images of the operator and its webhook: the real programs, built from their Go module."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images import binaries
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.slurm_k8s.lab.tools import TOOLS, VERSION

IMAGES = {tool.name: f"docker.io/busbar-lab/{tool.name}:{VERSION}" for tool in TOOLS}
# Its Dockerfile has this user.
_USER = "65532:65532"


def _images(work: Path, tools: Path) -> list[Image]:
    return [
        Image(
            image,
            files={f"bin/{name}": File(binaries.static(tools / name), 0o755)},
            folders=("tmp",),
            entrypoint=(f"/bin/{name}",),
            user=_USER,
        )
        for name, image in IMAGES.items()
    ]


ARCHIVE = Archive(
    "slurm-operator",
    lambda tools: key(Path(__file__), *(binaries.static(tools / tool.name) for tool in TOOLS)),
    _images,
)
