"""The whole way of `busbar diagnose`: plan, job, the real sbatch script in a real bash, what is named.

srun is replaced: what a real one does with these arguments, only the lab shows.
"""

import base64
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from busbar.exits import NoVerdict
from busbar.fabric.diagnosis import Diagnosis, Findings, Scope, findings_of
from busbar.fabric.diagnosis.stages import places_of
from stacks.slurm.package import operations
from stacks.slurm.package.config import KEY, PROJECT, Slurm
from stacks.slurm.package.diagnosis import BySbatch
from stacks.slurm.package.reach import OverSsh
from stacks.slurm.tests.support import compute, configured, slurm, stack_file
from tests.support.bash import programs
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock
from tests.unit.fabric.diagnosis import site as of_k3s

# mpirun of that folder, here `ranks`, prints the tables: it gets the nodes as a hostfile.
SRUN = """#!/bin/bash
case $1 in
  --mpi=list) echo "none pmix" >&2; exit ;;
  --help) echo "$PYXIS"; exit ;;
esac
while [[ $1 == --* ]]; do
  case $1 in
    --nodelist=*) list=${1#*=} ;;
    --ntasks=*) tasks=${1#*=} ;;
  esac
  shift
done
[[ ! -e $FOLDER/refuses/${list:-none} ]] || exit 1
[[ $1 != true ]] || exit 0
[[ $1 != env ]] || { export "$2"; shift 2; }
hosts=$(mktemp)
tr , '\\n' <<<"$list" >"$hosts"
"$FOLDER/ranks" -np "$tasks" --hostfile "$hosts" "${@:5}"
"""
SCONTROL = '#!/bin/bash\n[[ "$1 $2" != "show hostnames" ]] || tr , "\\n" <<<"$3"\n'


@dataclass
class Site:
    """Compute hosts in one rail group, with 8 GPUs and 8 rails each, as busbar.fabric.slurm reaches them.

    `slow`: see mpirun there. `states`: node -> its state in Slurm and the reason, where it is not idle.
    `refusing`: nodes where no step starts. `silent`: hosts that are not responding. `busy`: nodes with jobs.
    `interrupted`: number of the job whose log is not read, because of `signal`.
    """

    folder: Path
    count: int = 4
    slow: Mapping[str, float] = field(default_factory=dict)
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    refusing: Sequence[str] = ()
    silent: Sequence[str] = ()
    busy: bool = False
    interrupted: int = 0
    validation: Mapping[str, Any] = field(default_factory=dict)
    log_folder, boot, signal = "/var/lib/busbar", "1", signal.SIGINT

    def __post_init__(self) -> None:
        self.clock, self.said = Clock(), list[str]()
        self.jobs: list[tuple[dict[str, str], str]] = []
        self.cancelled: list[str] = []
        self.hosts = compute(*[{"topology": {"rail_group": "su0"}}] * self.count)
        self.names = [f"gpu-{number + 1}" for number in range(self.count)]
        validation = {"profile": "h100-ib-8x400", **self.validation}
        self.slurm: Slurm = slurm(hosts=self.hosts, validation=validation)

    @property
    def scope(self) -> Scope:
        return Scope(
            pool="h100", nodes=tuple(self.names), hardware=self.slurm.pools["h100"],
            validation=self.slurm.validation_of("h100"),
            places=places_of(self.slurm.workers), folder=self.folder / "dev" / "h100" / "diagnosis",
        )  # fmt: skip

    def diagnose(self) -> Findings:
        runner = BySbatch(self.slurm, self.scope, cast(OverSsh, self), self.clock, self.said.append)
        state = Diagnosis(runner, self.scope, self.clock, self.said.append).run()
        return findings_of(state, self.scope)

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        if verb == "nodes":
            found = {name: self.states.get(name, ("idle", "")) for name in self.names}
            return {"nodes": {name: {"state": state, "reason": why} for name, (state, why) in found.items()}}
        if verb == "submit":
            script = (payload or {})["script"]
            self.jobs.append((values, script))
            self.log = b"" if self.busy else self._run(values["nodes"], script)
            return {"job_id": str(len(self.jobs))}
        if verb == "status":
            state = "PENDING" if self.busy else "COMPLETED"
            batch = self.jobs[-1][0]["nodes"].partition(",")[0]
            return {"known": True, "state": state, "reason": "Resources", "batch_host": batch}
        if verb == "read":
            if len(self.jobs) == self.interrupted:
                # A shell may have started these tests in its background, where SIGINT is ignored.
                if self.signal == signal.SIGINT:
                    raise KeyboardInterrupt
                signal.raise_signal(self.signal)
            return {"data": base64.b64encode(self.log[int(values["offset"]) :]).decode(), "free_bytes": 10**9}
        assert verb == "cancel"
        self.cancelled.append(values["job_id"])
        return {}

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        return {name: "is not responding" for name in nodes if name in self.silent}

    def daemons(self, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
        return {name: {"active": True, "boot": self.boot} for name in nodes if name not in self.silent}

    def _run(self, nodes: str, script: str) -> bytes:
        folder = self.folder / "bin"
        for each in ("nodes", "refuses"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        for name in self.names:
            (folder / "nodes" / name).write_text(name)
        for name in self.refusing:
            (folder / "refuses" / name).touch()
        (folder / "speed").write_text("".join(f"{key} {share}\n" for key, share in self.slow.items()))
        programs(folder, {"srun": SRUN, "scontrol": SCONTROL, "ranks": of_k3s.MPIRUN})
        environment = {
            **{"PATH": f"{folder}:{os.environ['PATH']}", "FOLDER": str(folder), "TMPDIR": str(self.folder)},
            **{"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodes, "NCCL_SOCKET_IFNAME": "lo"},
            **{"SLURM_JOB_NUM_NODES": str(len(nodes.split(","))), "PYXIS": ""},
        }
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr
        return done.stdout


def named(found: Findings) -> list[tuple[str, str]]:
    return [(row.cause, row.where) for row in found.rows]


def test_what_is_slow_is_named_and_no_healthy_node(tmp_path: Path) -> None:
    site = Site(tmp_path, slow={"gpu-3/2": 0.5, "alone/gpu-4": 0.5})
    found = site.diagnose()
    expected = [("rail", "gpu-3 rail 2 (mlx5_2)"), ("NVLink inside the node", "gpu-4")]
    assert (sorted(named(found)), found.exit_code) == (sorted(expected), 1)
    assert sorted(found.healthy) == ["gpu-1", "gpu-2"]
    values, script = site.jobs[0]
    assert (values["partition"], values["nodes"]) == ("h100", "gpu-1,gpu-2,gpu-3,gpu-4")
    assert "#SBATCH --exclusive\n" in script


def test_nodes_that_start_no_jobs_or_steps_are_left_out_with_the_reason(tmp_path: Path) -> None:
    site = Site(tmp_path, count=6, silent=("gpu-2",), refusing=("gpu-3",))
    site.states = {"gpu-1": ("drained", "bad fan")}
    found = site.diagnose()
    assert (named(found), found.exit_code, sorted(found.healthy)) == ([], 2, ["gpu-4", "gpu-5", "gpu-6"])
    assert found.absent == {
        "gpu-1": "it is drained: bad fan",
        "gpu-2": "it is not responding",
        "gpu-3": "no step of the job starts there. Fix: see slurmd's log on that host",
    }
    assert site.jobs[0][0]["nodes"] == "gpu-3,gpu-4,gpu-5,gpu-6"


def test_where_no_node_starts_jobs_none_is_submitted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.states = dict.fromkeys(site.names, ("drained", "bad fan"))
    with pytest.raises(NoVerdict, match="gpu-1: it is drained: bad fan"):
        site.diagnose()
    assert site.jobs == []


def test_jobs_of_users_are_waited_for_and_never_ended(tmp_path: Path) -> None:
    site = Site(tmp_path, busy=True)
    found = site.diagnose()
    assert (found.exit_code, {*site.cancelled}) == (2, {"1"})
    assert "job 1 timed out after 100 s: is pending: Resources. Fix: squeue" in found.stopped


def test_an_interruption_cancels_the_job_and_the_same_command_continues(tmp_path: Path) -> None:
    site = Site(tmp_path, slow={"gpu-3": 0.5}, interrupted=2)
    with pytest.raises(KeyboardInterrupt):
        site.diagnose()
    assert site.cancelled == ["2"]
    site.interrupted = 0
    assert named(site.diagnose()) == [("node", "gpu-3")]
    assert any("continuing: 6 groups have a result" in each for each in site.said)


@pytest.mark.slow
def test_results_from_before_a_reboot_are_not_continued(tmp_path: Path) -> None:
    site = Site(tmp_path, slow={"gpu-3": 0.5}, interrupted=2)
    with pytest.raises(KeyboardInterrupt):
        site.diagnose()
    site.interrupted, site.boot, site.slow = 0, "2", {}
    assert (named(site.diagnose()), "continuing" in " ".join(site.said)) == ([], False)


def test_sigterm_cancels_the_job_as_ctrl_c_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    made = Site(tmp_path, interrupted=1)
    made.signal = signal.SIGTERM
    path.write_text(stack_file(hosts=made.hosts))
    monkeypatch.setattr(operations, "over_ssh", lambda *_: nullcontext(made))
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = busbar("diagnose", str(path))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.exit_code, made.cancelled) == (130, ["1"]), done.stderr
    assert "What is known is kept: the same command continues" in done.stderr


@pytest.mark.slow
def test_a_slow_host_is_quarantined_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    made = Site(tmp_path, slow={"gpu-3": 0.5})
    content = configured(hosts=made.hosts, validation={"profile": "h100-ib-8x400"})
    path.write_text(yaml.safe_dump({"config": {f"{PROJECT}:{KEY}": content}}))
    monkeypatch.setattr(operations, "over_ssh", lambda *_: nullcontext(made))
    done = busbar("diagnose", str(path), "--quarantine")
    assert done.exit_code == 1, done.stderr
    written = yaml.safe_load(path.read_text())["config"][f"{PROJECT}:{KEY}"]["hosts"]["compute"]
    assert {each["name"] for each in written if "quarantine" in each} == {"gpu-3"}
    again = busbar("diagnose", str(path))
    assert "left out: gpu-3 is in quarantine: busbar diagnose " in again.stderr
    assert made.jobs[-1][0]["nodes"] == "gpu-1,gpu-2,gpu-4"


def test_an_image_is_given_to_every_step(tmp_path: Path) -> None:
    site = Site(tmp_path, busy=True, validation={"image": "/images/nccl.sqsh"})
    site.diagnose()
    script = site.jobs[0][1]
    assert "\nCONTAINER=(--container-image=/images/nccl.sqsh " in script
    assert script.count('+=("${CONTAINER[@]}")') == 2, (
        "of the ranks, and of the question whether a node answers"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--release"], "--release is for K3s"),
        (["--nodes", "gpu-2"], "--nodes: in quarantine, where Slurm starts no jobs: gpu-2"),
        (["--pool", "none"], "--pool none: expected one of h100"),
    ],
)
def test_what_cannot_be_diagnosed_is_bad_usage(tmp_path: Path, words: list[str], text: str) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    content = configured(hosts=compute({}, {"quarantine": "RMA"}))
    path.write_text(yaml.safe_dump({"config": {f"{PROJECT}:{KEY}": content}}))
    done = busbar("diagnose", str(path), *words)
    assert (done.exit_code, text in done.stderr) == (64, True), done.stderr
