"""`busbar accept` on the lab's cluster: a healthy one, and one whose GPUs are held."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stacks.training.tests.lab.test_training import FIRST_SECONDS, TRAINING
from tests.support.lab import PROJECT, Lab, gpu_holder, read_until

pytestmark = pytest.mark.drill

NAME = "drill-accept"
RUN_SECONDS = 600
NOBODY = 65534


class Site:
    """A stack of the lab's cluster, whose measurement waits half a minute for GPUs."""

    def __init__(self, lab: Lab, criteria: Path) -> None:
        self.lab, self.criteria = lab, criteria
        self.home = PROJECT / ".busbar" / NAME / "acceptance"

    def accept(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.lab.run(sys.executable, "-m", "busbar", "accept", *words, seconds=RUN_SECONDS)
        print(done.stdout, done.stderr)
        return done

    @property
    def words(self) -> tuple[str, ...]:
        return ("run", NAME, "--criteria", str(self.criteria))

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.accept(*self.words, *more)

    def kill_at(self, text: str) -> None:
        """Start a run, and kill it when it prints this."""
        process = subprocess.Popen(
            [sys.executable, "-m", "busbar", "accept", *self.words],
            env=self.lab.environment, cwd=PROJECT, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        read_until(process.stderr, text)
        process.kill()
        process.communicate(timeout=10)

    def folders(self) -> list[Path]:
        """The documents, the oldest first."""
        return sorted(path for path in self.home.iterdir() if path.is_dir() and path.name != "unfinished")

    def rows(self, folder: Path) -> dict[str, str]:
        found = json.loads((folder / "acceptance.json").read_text())["rows"]
        return {row["id"]: row["result"] for row in found}


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    file, kept = PROJECT / f"Pulumi.{NAME}.yaml", PROJECT / ".busbar" / NAME
    stack = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    validation = stack["config"]["busbar:cluster"]["validation"]
    validation.update(when_busy="wait", busy_deadline_seconds=30)
    file.write_text(yaml.safe_dump(stack), encoding="utf-8")
    kept.mkdir(parents=True)
    shutil.copy(PROJECT / ".busbar" / "dev" / "kubeconfig", kept)
    criteria = tmp_path_factory.mktemp("criteria") / "acceptance.yaml"
    made = Site(lab, criteria)
    rows = yaml.safe_load(made.accept("criteria", "--for", NAME).stdout)
    # TCP on a shared machine wavers, and the hosts have neither ibnetdiscover nor DCGM.
    rows["rows"] = [
        row for row in rows["rows"] if not row["id"].endswith(".spread") and "cabling." not in row["id"]
    ]
    criteria.write_text(yaml.safe_dump(rows))
    yield made
    lab.kubectl("delete pod training --ignore-not-found")
    assert lab.kubectl("get mpijobs,configmaps -A -l busbar/nccl-run -o name") == ""
    file.unlink()
    shutil.rmtree(kept)


def as_nobody(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run busbar as a user who has neither the site nor a home."""
    os.chown(folder, NOBODY, NOBODY)
    for path in folder.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    # The interpreter may be in a home that others cannot read.
    able = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *able]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*drop, sys.executable, "-m", "busbar", "accept", *words],
        cwd=folder, env=environment, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    return done


def test_a_busy_pool_gives_no_result_and_a_healthy_one_is_accepted(site: Site) -> None:
    site.lab.apply(gpu_holder("worker-1"))
    site.lab.kubectl("wait --for=condition=PodScheduled pod/training --timeout=60s")
    busy = site.run()
    assert busy.returncode == 2
    reason = "stage paths: timed out after 30 s: GPUs or HCAs are in use: default/training on worker-1"
    assert reason in busy.stderr
    site.lab.kubectl("delete pod training")
    done = site.run()
    assert done.returncode == 0
    assert "stage inventory" not in done.stderr, "it has ended in the first call"
    assert site.rows(site.folders()[-1])["collectives.lab.nodes"] == "pass"
    assert "simulator" in done.stdout.splitlines()[0]


def test_signed_by_two_it_is_verified_on_an_account_without_the_site(site: Site, tmp_path: Path) -> None:
    folder, lines = site.folders()[-1], []
    for who in ("seller", "buyer"):
        key = tmp_path / who
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
        lines.append(f'{who}@example.com namespaces="acceptance@busbar" {public}\n')
        assert site.accept("sign", str(folder), "--key", str(key)).returncode == 0
    elsewhere = Path("/tmp") / f"busbar-{NAME}"
    shutil.rmtree(elsewhere, ignore_errors=True)
    try:
        shutil.copytree(folder, elsewhere / "acceptance")
        (elsewhere / "signers").write_text("".join(lines))
        done = as_nobody(elsewhere, "verify", "acceptance", "--signers", "signers")
        assert done.returncode == 0
        assert "seller@example.com" in done.stdout and "buyer@example.com" in done.stdout
        assert "simulator" in done.stdout.splitlines()[0]
        log = next((elsewhere / "acceptance/evidence").rglob("nccl.log.zst"))
        log.write_bytes(log.read_bytes()[:-1] + b"x")
        refused = as_nobody(elsewhere, "verify", "acceptance", "--signers", "signers")
        assert (refused.returncode, "it was changed" in refused.stderr) == (1, True)
    finally:
        shutil.rmtree(elsewhere)


def test_a_run_of_stacks_training_that_takes_place_meanwhile_is_a_part_of_it(site: Site) -> None:
    found = yaml.safe_load(site.criteria.read_text())
    rows = ("collectives.lab.nodes", "training.")
    found["rows"] = [{**row, "required": True} for row in found["rows"] if row["id"].startswith(rows)]
    site.criteria.write_text(yaml.safe_dump(found))
    words = ("--training", str(TRAINING / ".busbar" / "dev" / "lab"))
    before = site.run(*words)
    # There is no proof, or that of a run before this acceptance.
    assert (before.returncode, "raise proof.run" in before.stderr) == (2, True)
    try:
        done = site.lab.run(sys.executable, "-m", "lab", "bringup", "training", seconds=FIRST_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert site.run(*words).returncode == 0
    finally:
        site.lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", "dev", cwd=TRAINING)
    assert site.rows(site.folders()[-1])["training.lab.checkpoint"] == "pass"
