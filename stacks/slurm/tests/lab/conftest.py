"""The lab's Slurm hosts with stack `dev` of stacks/slurm: `make up-slurm`, and what drills ask of them."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.lab import PROJECT, UP_SECONDS, Lab, brought_up, eventually

SLURM = PROJECT / "stacks" / "slurm"
CONTROLLER, LOGIN = "ctl-1", "login-1"
COMPUTE = ("compute-1", "compute-2", "compute-3")
HOSTS = (CONTROLLER, LOGIN, *COMPUTE)
READY_SECONDS = 300

Change = Callable[[dict[str, Any]], None]


@dataclass
class Site:
    """The cluster, its stack, and the host that commands of Slurm are given on."""

    lab: Lab
    changes: list[Path] = field(default_factory=list)

    def slurm(self, command: str, host: str = CONTROLLER) -> str:
        """What a shell command prints on a host, in a folder that every host has."""
        return self.lab.ssh(host, f"cd / && {command}")

    def states(self) -> dict[str, str]:
        """The state of each node, without Slurm's marks."""
        listed = self.slurm("sinfo -h -N -o '%N %T'").split("\n")
        return dict(line.split() for line in listed if line)

    def reason(self, node: str) -> str:
        """Why a node is drained or down, as Slurm says it."""
        return self.slurm(f"sinfo -h -N -n {node} -o %E").strip()

    def submit(self, script: str, options: str = "", host: str = LOGIN) -> str:
        """The id of a job that runs a shell text."""
        words = f"sbatch --parsable --chdir=/ --output=/dev/null {options} --wrap {shlex.quote(script)}"
        return self.slurm(words, host).strip()

    def job(self, number: str) -> str:
        """What sacct says of a job: its state, empty where it knows none."""
        return self.slurm(f"sacct -n -X -P -o State -j {number}").strip()

    def all_idle(self) -> bool:
        """Whether every node is free for jobs."""
        return self.states() == dict.fromkeys(COMPUTE, "idle")

    def wait_idle(self) -> None:
        """Wait until every node is free for jobs."""
        try:
            eventually(self.all_idle, READY_SECONDS, "all nodes are idle")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.slurm('sinfo -N -o %N,%T,%E')}") from None

    def changed(self, change: Change) -> Path:
        """A copy of Pulumi.dev.yaml in which `change` was made; for `--config-file`."""
        stack = yaml.safe_load((SLURM / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
        change(stack["config"]["busbar-slurm:slurm"])
        path = self.lab.temporary / f"Pulumi.slurm-{len(self.changes)}.yaml"
        path.write_text(yaml.safe_dump(stack), encoding="utf-8")
        self.changes.append(path)
        return path

    def up(self, change: Change | None = None, *arguments: str) -> tuple[int, str]:
        """An update, perhaps of a changed configuration: exit code and output; prints how long it took."""
        file = () if change is None else ("--config-file", str(self.changed(change)))
        began = time.monotonic()
        done = self.lab.up(*file, *arguments, cwd=SLURM)
        print(f"update {self.changes[-1].name if file else ''}: {time.monotonic() - began:.0f} s")
        return done.returncode, done.stdout + done.stderr

    def busbar(self, *words: str) -> tuple[int, str]:
        """`busbar WORDS...` in the folder of the stack: exit code and output; prints how long it took."""
        began = time.monotonic()
        done = self.lab.run(sys.executable, "-m", "busbar", *words, cwd=SLURM, seconds=UP_SECONDS)
        print(f"busbar {' '.join(words)}: {time.monotonic() - began:.0f} s")
        return done.returncode, done.stdout + done.stderr

    def logins(self) -> int:
        """How many SSH logins the compute hosts have accepted so far."""
        count = "journalctl --sync; journalctl -q -o cat | grep -c '^Accepted publickey' || true"
        return sum(int(self.lab.ssh(host, count)) for host in COMPUTE)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`make up-slurm`, and `make down` afterwards where nothing of the lab was up before."""
    yield from brought_up(tmp_path_factory, "slurm")


@pytest.fixture
def site(made: Lab) -> Iterator[Site]:
    """The usual cluster, all nodes idle; a drill puts back what it changed on hosts."""
    found = Site(made)
    stacks = json.loads(made.pulumi("stack", "ls", "--json", cwd=SLURM).stdout)
    assert any(stack["name"].rpartition("/")[2] == "dev" for stack in stacks)
    yield found
    if found.changes:
        code, text = found.up(unmeasured)
        assert code == 0, text


def unmeasured(slurm: dict[str, Any]) -> None:
    """The usual configuration without the measurement."""
    slurm["validation"]["enabled"] = False
