"""The images of the operator and its webhook: the real programs."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.slurm_k8s.lab.tools import TOOLS, checkout, version

# Its Dockerfile has this user.
_USER = "65532:65532"


def image(name: str) -> str:
    """The image of a program. Its tag is the release, which the chart of that release names."""
    return f"docker.io/busbar-lab/{name}:{version()}"


def _programs(tools: Path) -> dict[str, Path]:
    found = checkout()
    folder = found / "bin" if found else tools
    return {tool.name: folder / tool.name for tool in TOOLS}


def _images(work: Path, tools: Path) -> list[Image]:
    return [
        Image(
            image(name),
            files={f"bin/{name}": File(program, 0o755)},
            folders=("tmp",),
            entrypoint=(f"/bin/{name}",),
            user=_USER,
        )
        for name, program in _programs(tools).items()
    ]


ARCHIVE = Archive(
    "slurm-operator", lambda tools: key(Path(__file__), version(), *_programs(tools).values()), _images
)
