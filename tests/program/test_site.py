"""A site: a folder that `busbar init` made, and the installed wheel, without a checkout."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from busbar import __version__
from tests.program.harness import ROOT
from tests.support.clusters import site
from tests.support.wheel import Installed

pytestmark = pytest.mark.slow

# The mocks are those of this checkout, which is last on the path: busbar is the installed one.
BRING_UP = """
import json, sys
from pathlib import Path
import busbar
sys.path.append(sys.argv[1])
from tests.program.answers import healthy
from tests.program.harness import run_program
cluster = json.loads(sys.argv[2])
run = run_program(cluster, healthy(cluster), program=Path("__main__.py"))
chart = run.named("busbar-mpi-operator-release").inputs["chart"]
print(json.dumps({
    "error": repr(run.error), "passed": run.outputs["nccl_passed"], "busbar": busbar.__file__,
    "chart": chart, "has_chart": Path(chart, "Chart.yaml").is_file(),
}))
"""


@pytest.fixture(scope="module")
def folder(installed_stack: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sites") / "site"
    done = installed_stack.busbar("init", str(made), "--capability", "training")
    assert done.returncode == 0, done.stderr
    (made / ".venv").symlink_to(installed_stack.folder)
    return made


def test_a_site_has_a_program_an_example_a_schema_and_no_code_of_busbar(folder: Path) -> None:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    [wheel] = {name for name in found if name.endswith(".whl")}
    assert found - {wheel} == {
        *(".gitignore", "Pulumi.yaml", "Pulumi.h100.example.yaml", "__main__.py", "requirements.txt"),
        *("schema/cluster.schema.json", "training/Pulumi.yaml", "training/__main__.py"),
        *("training/Pulumi.h100.example.yaml", "training/Pulumi.roce.example.yaml", "training/schema.json"),
    }


def test_the_version_names_the_commit_that_was_built(installed_stack: Installed) -> None:
    words = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert installed_stack.busbar("--version").stdout.decode() == f"busbar {__version__} (commit {commit})\n"


def test_the_program_of_a_site_brings_a_cluster_up(folder: Path, installed_stack: Installed) -> None:
    cluster = site()
    done = subprocess.run(
        [".venv/bin/python", "-W", "ignore", "-c", BRING_UP, str(ROOT), json.dumps(cluster)],
        cwd=folder, env={**os.environ, "PULUMI_ERROR_OUTPUT_STRING": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["error"], found["passed"], found["has_chart"]) == ("None", True, True)
    assert Path(found["busbar"]).resolve().is_relative_to(installed_stack.site)
    assert found["chart"].endswith("/site-packages/busbar/charts/mpi-operator")


def test_the_program_of_a_capability_is_that_of_the_installed_package(folder: Path) -> None:
    # The frame runs what the program of the capability gives it.
    code = "import pulumi, sys; pulumi.run = lambda _: print(sys._getframe(2).f_code.co_filename)"
    program = f"{code}; import runpy; runpy.run_path('__main__.py', run_name='__main__')"
    done = subprocess.run(
        ["../.venv/bin/python", "-W", "ignore", "-c", program],
        cwd=folder / "training", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("/site-packages/stacks/training/__main__.py"), done.stderr
