"""The wheel alone: what it brings, and what its commands do without the extra `stack`."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import zstandard
from packaging.requirements import Requirement

from busbar.capability import capabilities
from busbar.cli.ending import STACK_MODULES
from tests.support.wheel import PROJECT, Call, Installed
from tests.unit.judge.nccl.logs import Made

pytestmark = pytest.mark.slow

MAX_DISTRIBUTIONS = 20
MAX_BYTES = 45_000_000
PROFILE = ("--profile", "h100-ib-8x400", "--expect-nodes", "2")
PREFLIGHT: dict[str, object] = {"login": {}, "hosts": [], "requirements": {}}

# Commands that need the extra, of each kind.
NEED_STACK: dict[str, Call] = {
    "init": (("site",), None, 64),
    "check-config": (("dev",), None, 64),
    "preflight": ((), PREFLIGHT, 64),
    "nccl run": (("--kubeconfig", "kubeconfig"), None, 64),
    "up": (("dev", "--yes"), None, 64),
    "support-bundle": (("dev",), None, 64),
    "hosts keys": (("dev",), None, 64),
    "step": (("watch", "survey"), {"install": True}, 64),
    "remove host": ((), {}, 64),
}


def files(folder: str) -> set[str]:
    """All files below a folder of the project."""
    found = (path for path in (PROJECT / folder).rglob("*") if "__pycache__" not in path.parts)
    return {str(path.relative_to(PROJECT)) for path in found if path.is_file()}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "launcher.log"
    path.write_text("\n".join(Made().lines()))
    return path


def test_it_brings_no_more_than_reading_and_judging_logs_needs(installed: Installed) -> None:
    files = [file for each in installed.needed.values() for file in each.files or ()]
    size = sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())
    own = sum(path.stat().st_size for path in installed.site.joinpath("busbar").rglob("*") if path.is_file())
    assert len(installed.needed) + 1 <= MAX_DISTRIBUTIONS, sorted(installed.needed)
    assert size + own <= MAX_BYTES


def test_nothing_of_the_extra_is_among_it(installed: Installed) -> None:
    assert not {name.replace("-", "_") for name in installed.needed} & set(STACK_MODULES)


def test_the_message_about_the_extra_knows_all_of_its_packages() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = (Requirement(line).name.replace("-", "_").partition(".")[0] for line in extras["stack"])
    assert sorted(names) == sorted(STACK_MODULES)


def test_the_wheel_holds_every_data_file_of_the_package(wheel: Path) -> None:
    held, data = set(zipfile.ZipFile(wheel).namelist()), files("busbar")
    assert any(name.endswith(".css") for name in data)
    assert data <= held, sorted(data - held)


@pytest.mark.parametrize("folder", ["components", "host", "helm_values", "charts", "docs"])
def test_the_wheel_holds_what_lies_at_the_top_of_a_checkout(wheel: Path, folder: str) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(f"busbar/{folder}/")}
    assert held == {f"busbar/{name}" for name in files(folder)}


def test_the_wheel_has_no_package_but_busbar_and_its_capabilities(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"busbar", "stacks"}


def test_the_wheel_holds_every_capability_without_its_tests_and_its_lab(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("stacks/")}
    wanted = {"stacks/__init__.py", "stacks/py.typed"}
    for capability in capabilities():
        folder = f"stacks/{capability.name}"
        top = (".py", ".md", "/Pulumi.yaml", ".example.yaml", "/schema.json")
        wanted |= {name for name in files(folder) if name.count("/") == 2 and name.endswith(top)}
        for part in ("package", "charts", "host", "helm_values", "program"):
            wanted |= files(f"{folder}/{part}")
    assert held == wanted


def test_a_log_is_judged_and_every_report_is_written(installed: Installed, log: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "r.html", tmp_path / "r.svg"
    done = installed.busbar("nccl", "check", str(log), *PROFILE, "--html", str(page), "--svg", str(picture))
    assert done.returncode == 0 and done.stdout.startswith(b"PASS"), done.stderr
    assert page.stat().st_size and picture.stat().st_size


def test_the_profiles_are_listed(installed: Installed) -> None:
    done = installed.busbar("nccl", "profiles")
    assert done.returncode == 0 and b"h100-ib-8x400" in done.stdout, done.stderr


def test_a_compressed_log_needs_no_extra(installed: Installed, log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "launcher.log.zst"
    packed.write_bytes(zstandard.compress(log.read_bytes()))
    assert installed.busbar("nccl", "check", str(packed), *PROFILE).returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--profile", "nope"), ("--tolerance", "2"), ("--transport", "pigeon"), ("--html", "/nowhere/at/all"),
        ("/nowhere/at/all",), ("--no-such-option",),
    ],
)  # fmt: skip
def test_an_error_of_check_needs_no_extra(installed: Installed, log: Path, options: tuple[str, ...]) -> None:
    done = installed.busbar("nccl", "check", str(log), *options)
    assert done.returncode == 64 and done.stderr.strip()
    assert b"Python package" not in done.stderr


@pytest.mark.parametrize("command", sorted(NEED_STACK))
def test_a_command_that_needs_the_extra_says_how_to_install_it(installed: Installed, command: str) -> None:
    installed.says_how_to_install_the_extra(command, NEED_STACK[command])


def test_a_site_can_be_installed_from_its_folder_alone(
    installed_stack: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, elsewhere = tmp_path / "made", tmp_path / "elsewhere"
    assert installed_stack.busbar("init", str(made)).returncode == 0
    made.rename(elsewhere)
    monkeypatch.chdir(elsewhere)
    own, *pins = (elsewhere / "requirements.txt").read_text().splitlines()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--target", "target", own], check=True, timeout=120)
    assert (elsewhere / "target" / "busbar" / "docs" / "hosts.md").is_file()
    assert pins and all("==" in pin for pin in pins)
