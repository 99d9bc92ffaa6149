"""`busbar accept run --dcgm-image` on a cluster of a kubeconfig, whose hosts have no DCGM and get no login.

The images have the lab's simulator of dcgmi; pods, namespaces, devices and logs are real.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.build.recipe import key, lines
from lab.images import tree
from lab.images.archive import File, Image
from lab.images.catalog import NCCL, Archive
from lab.images.on_hosts import import_where_absent, k3s_hosts
from stacks.accept.tests.unit import made
from tests.support.lab import PROJECT, Lab, gpu_holder, read_until

pytestmark = pytest.mark.drill

RUN_SECONDS, GPUS = 400, 2
ENGINE = "#!/bin/bash\necho started >/run/nv-hostengine.pid\n"
WITHOUT = "docker.io/busbar-lab/nccl-tests:1"


IMAGE = "docker.io/busbar-lab/dcgm:good"


def _files() -> dict[str, File]:
    simulator = Path(__file__).with_name("dcgmi").read_bytes()
    programs = {"dcgmi": simulator, "nv-hostengine": ENGINE.encode()}
    found = {f"usr/local/bin/{program}": File(text, 0o755) for program, text in programs.items()}
    printed = File(made.diag(gpus=GPUS).encode())
    return found | {f"opt/dcgm/{worker}.json": printed for worker in ("worker-1", "worker-2")}


def _images(work: Path, tools: Path) -> list[Image]:
    # The workers have this layer.
    left_out = lines(NCCL / "left_out.txt")

    def keep(path: str) -> bool:
        return not any(fnmatch(path, pattern) for pattern in left_out)

    return [Image(IMAGE, tree=tree.ensure(work), keep=keep, files=_files())]


def _recipe(tools: Path) -> str:
    texts = [each.content for each in _files().values()]
    return key(*(each.decode() for each in texts if isinstance(each, bytes)))


class Site:
    """A cluster of a kubeconfig."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.environment = {**lab.environment, "PYTHONPATH": str(PROJECT)}

    def words(self, *words: str) -> list[str]:
        of = ("--kubeconfig", "kubeconfig", "--settings", "settings.yaml")
        return [sys.executable, "-m", "busbar", "accept", *words, *of]

    def accept(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(*words), cwd=self.folder, env=self.environment, text=True, capture_output=True,
            timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        return done

    def run(self, image: str) -> tuple[int, dict[str, Any], str]:
        """The exit code, the rows, and what was simulated."""
        done = self.accept("run", "--criteria", "acceptance.yaml", "--dcgm-image", image)
        folder = max(self.folder.glob(".busbar/*/acceptance/2*"))
        found = json.loads((folder / "acceptance.json").read_text())
        assert self.lab.kubectl("get namespaces,priorityclasses -l busbar/nccl-run -o name") == ""
        return done.returncode, {row["id"].split(".")[-1]: row for row in found["rows"]}, found["simulated"]


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("dcgm")
    stack = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text())
    validation = stack["config"]["busbar:cluster"]["validation"]
    settings = {name: value for name, value in validation.items() if name != "enabled"}
    (folder / "settings.yaml").write_text(
        yaml.safe_dump(settings | {"when_busy": "wait", "busy_deadline_seconds": 30})
    )
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", folder)
    workers = [host for host in k3s_hosts() if host.role == "worker"]
    import_where_absent(Archive("dcgm", _recipe, _images), IMAGE, workers)
    found = Site(lab, folder)
    rows = yaml.safe_load(found.accept("criteria").stdout)
    rows["rows"] = [row | {"required": True} for row in rows["rows"] if row["id"].startswith("stress.")]
    (folder / "acceptance.yaml").write_text(yaml.safe_dump(rows))
    yield found
    lab.kubectl("delete pod training --ignore-not-found")


def test_without_a_login_every_test_of_an_image_must_pass(site: Site) -> None:
    code, rows, simulated = site.run(IMAGE)
    assert (code, "busbar-lab simulator" in simulated) == (0, True)
    assert rows["diag"]["reason"].startswith("good on 2 nodes; image ")
    assert "sha256:" in rows["diag"]["reason"]


def test_an_image_without_dcgmi_is_not_run(site: Site) -> None:
    code, rows, _ = site.run(WITHOUT)
    assert (code, rows["diag"]["result"]) == (2, "not run")
    assert rows["diag"]["reason"].startswith("worker-1: dcgmi is not installed")


def test_while_pods_hold_gpus_no_pod_is_created_and_a_killed_run_is_finished_by_the_next(site: Site) -> None:
    site.lab.apply(gpu_holder("worker-1"))
    site.lab.kubectl("wait --for=condition=PodScheduled pod/training --timeout=60s")
    words = ("run", "--criteria", "acceptance.yaml", "--dcgm-image", IMAGE)
    busy = site.accept(*words)
    assert (busy.returncode, "held by default/training" in busy.stderr) == (2, True)
    assert "created" not in busy.stderr
    site.lab.kubectl("delete pod training")
    process = subprocess.Popen(
        site.words(*words), cwd=site.folder, env=site.environment, text=True,
        stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    read_until(process.stderr, "created Pod")
    process.kill()
    process.communicate(timeout=10)
    assert site.lab.kubectl("get namespaces -l busbar/nccl-run -o name") != ""
    code, rows, _ = site.run(IMAGE)
    assert (code, rows["diag"]["result"]) == (0, "pass")


def test_an_image_that_cannot_be_pulled_is_not_run(site: Site) -> None:
    code, rows, _ = site.run("registry.invalid/dcgm:1")
    assert (code, rows["diag"]["result"]) == (2, "not run")
    assert "ErrImagePull" in rows["diag"]["reason"] or "ImagePullBackOff" in rows["diag"]["reason"]
