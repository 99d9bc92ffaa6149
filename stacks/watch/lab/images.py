"""The images of Alertmanager and node_exporter from Debian's packages, and of programs from their modules."""

from __future__ import annotations

from pathlib import Path

from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from stacks.watch.lab import debian
from stacks.watch.lab.tools import MONITORING as OPERATED
from stacks.watch.lab.tools import NODE_PROBLEM_DETECTOR, OPERATOR, PROMETHEUS, RELOADER

ALERTMANAGER, NODE_EXPORTER = (f"docker.io/busbar-lab/{name}:1" for name in ("alertmanager", "node-exporter"))
PROMETHEUS_IMAGE = "docker.io/busbar-lab/prometheus:1"
OPERATOR_IMAGE = "docker.io/busbar-lab/prometheus-operator:1"
RELOADER_IMAGE = "docker.io/busbar-lab/prometheus-config-reloader:1"
NODE_PROBLEM_DETECTOR_IMAGE = "docker.io/busbar-lab/node-problem-detector:1"
# Alertmanager ends without these.
_TEMPLATES = "usr/share/prometheus/alertmanager"
_USER = "65534:65534"


def archives() -> tuple[Archive, ...]:
    """All archives: Debian's programs, Prometheus with its operator, node-problem-detector."""
    return MONITORING, OPERATORS, NODE_PROBLEMS


def program_of(package: str) -> dict[str, File]:
    """The program of a package of Debian, and its libraries."""
    program = debian.ensure(package) / "usr" / "bin" / package
    libraries = {path: File(file, 0o755) for path, file in debian.libraries(program).items()}
    return {f"bin/{package}": File(program, 0o755), **libraries}


def _monitoring(work: Path, tools: Path) -> list[Image]:
    files = {path: file for package in debian.PACKAGES for path, file in program_of(package).items()}
    templates = (debian.ensure("prometheus-alertmanager") / _TEMPLATES).glob("*.tmpl")
    files |= {f"{_TEMPLATES}/{file.name}": File(file) for file in templates}
    # One set of files, and so one layer, under two names: each is started by its image's entry point.
    names = zip((ALERTMANAGER, NODE_EXPORTER), debian.PACKAGES, strict=True)
    return [
        Image(name, files=files, folders=("tmp",), entrypoint=(f"/bin/{program}",), user=_USER)
        for name, program in names
    ]


def _operator(work: Path, tools: Path) -> list[Image]:
    named = {OPERATOR_IMAGE: OPERATOR, RELOADER_IMAGE: RELOADER, PROMETHEUS_IMAGE: PROMETHEUS}
    return [
        Image(
            name,
            files={f"bin/{tool.name}": File(tools / tool.name, 0o755)},
            folders=("tmp",),
            entrypoint=(f"/bin/{tool.name}",),
            user=_USER,
        )
        for name, tool in named.items()
    ]


def _node_problems(work: Path, tools: Path) -> list[Image]:
    program = File(tools / NODE_PROBLEM_DETECTOR.name, 0o755)
    return [Image(NODE_PROBLEM_DETECTOR_IMAGE, files={NODE_PROBLEM_DETECTOR.name: program})]


MONITORING = Archive("monitoring", lambda tools: key(*debian.PACKAGES, Path(__file__)), _monitoring)
OPERATORS = Archive(
    "prometheus-operator",
    lambda tools: key(Path(__file__), *(tools / tool.name for tool in OPERATED)),
    _operator,
)
NODE_PROBLEMS = Archive(
    "node-problem-detector",
    lambda tools: key(Path(__file__), tools / NODE_PROBLEM_DETECTOR.name),
    _node_problems,
)
