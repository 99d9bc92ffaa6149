"""The project as a wheel in an environment of its own, with what its metadata asks for and nothing else."""

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from busbar.release import closure

PROJECT = Path(__file__).resolve().parents[2]
KUBECONFIG = json.dumps({
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {}}],
    "current-context": "c",
})  # fmt: skip
# A command that needs the extra `stack`: arguments, stdin, exit code.
Call = tuple[tuple[str, ...], object, int]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel. `needed`: distributions that its installation adds, by name."""

    folder: Path
    site: Path
    needed: dict[str, Distribution]

    def busbar(
        self, *words: str, stdin: bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the console script of the environment, outside the checkout."""
        return subprocess.run(
            [self.folder / "bin/busbar", *words],
            env={"PATH": "/nowhere", "LC_ALL": "C.UTF-8", "COLUMNS": "200", **environment},
            cwd=self.folder, input=stdin, capture_output=True, timeout=120, check=False,
        )  # fmt: skip

    def says_how_to_install_the_extra(self, command: str, call: Call) -> None:
        """Assert that a command which needs the extra `stack` ends with one line on how to install it."""
        arguments, request, code = call
        (self.folder / "Pulumi.yaml").write_text("name: busbar\nruntime: python\n")
        (self.folder / "Pulumi.dev.yaml").write_text((PROJECT / "Pulumi.dev.yaml").read_text())
        (self.folder / "kubeconfig").write_text(KUBECONFIG)
        stdin = b"" if request is None else json.dumps(request).encode()
        done = self.busbar(*command.split(), *arguments, stdin=stdin, BUSBAR_KUBECONFIG=KUBECONFIG)
        said = done.stderr.decode()
        assert done.returncode == code, said
        *progress, error = said.splitlines()
        assert "busbar docs sites 'A site without a checkout'" in error and "Fix:" in error
        # Some say what they are going to do before they import what takes a while.
        assert "Traceback" not in said and len(progress) <= 1


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new environment; its dependencies are links to those of this one."""
    return _install(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="session")
def installed_stack(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The same with the extra `stack`, and beside a package `components` of another project."""
    made = _install(wheel, tmp_path_factory.mktemp("environment"), "stack")
    (made.site / "components").mkdir()
    (made.site / "components/__init__.py").write_text("raise ImportError('this is another project')\n")
    return made


def _install(wheel: Path, folder: Path, *extras: str) -> Installed:
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    install = ["--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    (info,) = site.glob("busbar_cluster-*.dist-info")
    needed = closure(PathDistribution(info), *extras)
    for each in needed.values():
        _link(each, site)
    return Installed(folder, site, needed)


def _link(each: Distribution, site: Path) -> None:
    for top in {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (site / top).exists():  # distributions share opentelemetry/
            (site / top).symlink_to(Path(str(each.locate_file(top))))
