"""The real engine on the lab's real hosts. What needs root says so, and in CI a lab left out is a failure."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import pytest
import yaml

if TYPE_CHECKING:
    from lab.mirror.artifacts import K3sRelease

PROJECT = Path(__file__).resolve().parents[2]
SNAPSHOTS = "/var/lib/rancher/k3s/server/db/snapshots"
SERVERS = ("server-1", "server-2", "server-3")
WORKERS = ("worker-1", "worker-2")
KUBECONFIG = PROJECT / ".busbar" / "dev" / "kubeconfig"
UP_SECONDS = 900
COMMAND_SECONDS = 300
RECOVERY_SECONDS = 180


def _why_not() -> str | None:
    if sys.platform != "linux":
        return "the lab needs Linux"
    if os.geteuid() != 0:
        return "the lab needs root: it boots hosts, mounts and a bridge"
    return None


@dataclass
class Lab:
    """The lab as a user has it: `python -m lab`, and `pulumi` with the lab's environment."""

    environment: dict[str, str]
    printed: str
    temporary: Path
    stacks: list[Path] = field(default_factory=list)

    def run(
        self, *command: str, cwd: Path = PROJECT, seconds: int = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd, env=self.environment, text=True, capture_output=True, timeout=seconds,
            check=False,
        )  # fmt: skip

    def pulumi(
        self, *arguments: str, cwd: Path = PROJECT, seconds: int = UP_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return self.run("pulumi", *arguments, "--non-interactive", cwd=cwd, seconds=seconds)

    def up(self, *arguments: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
        words = ("up", "--yes", "--skip-preview", "--suppress-progress", "--stack", "dev", *arguments)
        return self.pulumi(*words, cwd=cwd)

    def updated(self, *arguments: str, cwd: Path = PROJECT) -> str:
        """Return the output of an update, which must succeed."""
        done = self.up(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def outputs(self, cwd: Path = PROJECT) -> dict[str, Any]:
        done = self.pulumi("stack", "output", "--json", "--stack", "dev", cwd=cwd)
        assert done.returncode == 0, done.stderr
        outputs = json.loads(done.stdout)
        assert isinstance(outputs, dict)
        return outputs

    def ssh(self, host: str, command: str) -> str:
        done = self.run(sys.executable, "-m", "lab", "ssh", host, command)
        assert done.returncode == 0, f"{host}: {command}: {done.stderr}"
        return done.stdout

    def kubectl(self, *arguments: str) -> str:
        return self.ssh("server-1", "k3s kubectl " + " ".join(arguments))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change these objects in the cluster."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        encoded = base64.b64encode(text.encode()).decode()
        self.ssh("server-1", f"echo {encoded} | base64 -d | k3s kubectl apply -f -")

    def boot(self, *arguments: str) -> None:
        """Boot the hosts that are off; `arguments` are those of `python -m lab up`."""
        done = self.run(sys.executable, "-m", "lab", "up", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def save_snapshot(self, server: str) -> str:
        """The name of a new snapshot of etcd on this server."""
        # Not those that K3s takes on its schedule.
        drills = f"ls {SNAPSHOTS} | grep ^drill- || true"
        before = set(self.ssh(server, drills).split())
        self.ssh(server, "k3s etcd-snapshot save --name drill")
        [name] = set(self.ssh(server, drills).split()) - before
        return name

    def restore(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "busbar", "restore", "dev", *arguments)
        return self.run(*words, seconds=UP_SECONDS)

    def config_with(self, change: Callable[[dict[str, Any]], None]) -> Path:
        """A copy of Pulumi.dev.yaml in which `change` was made to the cluster; for `--config-file`."""
        stack = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
        change(stack["config"]["busbar:cluster"])
        path = self.temporary / f"Pulumi.changed-{len(self.stacks)}.yaml"
        path.write_text(yaml.safe_dump(stack), encoding="utf-8")
        self.stacks.append(path)
        return path

    def etcd(self, server: str, path: str, body: str = "{}") -> str:
        """What etcd of this server answers over HTTP; empty without an answer."""
        folder = "/var/lib/rancher/k3s/server/tls/etcd"
        login = f"--cacert {folder}/server-ca.crt --cert {folder}/client.crt --key {folder}/client.key"
        ask = f"curl -s --max-time 5 {login} -d '{body}' https://127.0.0.1:2382{path}"
        return self.ssh(server, f"{ask} || true")

    def busbar(self, *words: str) -> str:
        """The stdout of a command of busbar, which must succeed."""
        done = self.run(sys.executable, "-m", "busbar", *words, seconds=UP_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def as_usual(self) -> None:
        """An update with the usual configuration, as `busbar up` does it."""
        self.busbar("up", "dev", "--yes", "--skip-preview")

    def make_anew(self) -> None:
        """Another cluster on the same hosts, for what cannot be taken back."""
        self.busbar("destroy", "dev", "--yes")
        self.as_usual()

    def uids(self, kind: str) -> dict[str, str]:
        """Name -> uid: an object that was deleted and made again has another one."""
        found = json.loads(self.kubectl(f"get {kind} -A -o json"))["items"]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    def conditions(self, node: str) -> dict[str, str]:
        """Type -> status of the conditions of a Node."""
        found = json.loads(self.kubectl(f"get node {node} -o json"))["status"]["conditions"]
        return {each["type"]: each["status"] for each in found}

    def voters(self) -> set[str]:
        """The servers that vote, as etcd says: EtcdIsVoter of their Nodes comes seconds later."""
        answer = self.etcd("server-1", "/v3/cluster/member/list")
        assert answer.startswith('{"header"'), answer
        members = json.loads(answer)["members"]
        # K3s names a member after its Node, with 8 digits; one that has never started has no name.
        return {each.get("name", "").rpartition("-")[0] for each in members if not each.get("isLearner")}

    def await_voters(self) -> None:
        """Wait until every server answers and votes; the Node of one that boots may still say so."""

        def all_vote() -> bool:
            try:
                answers = [self.ssh(server, "k3s kubectl get --raw=/readyz").strip() for server in SERVERS]
                return answers == ["ok"] * len(SERVERS) and self.voters() == set(SERVERS)
            except AssertionError:  # one is not responding yet
                return False

        eventually(all_vote, RECOVERY_SECONDS, "three servers that answer and vote")

    def last_start(self, worker: str) -> list[int]:
        """Begin and end of the agent's last start, in microseconds since the machine of all hosts booted."""
        times = ("InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
        return [int(self.ssh(worker, f"systemctl show -p {time} --value k3s-agent")) for time in times]

    def logins(self) -> dict[str, int]:
        """How many SSH logins each host has accepted so far, with that of this question."""
        count = "journalctl --sync; journalctl -q -o cat -t sshd | grep -c '^Accepted ' || true"
        return {host: int(self.ssh(host, count)) for host in ("lb-1", *SERVERS, "worker-1", "worker-2")}


def gpu_holder(worker: str, *, name: str = "training", namespace: str = "default") -> dict[str, Any]:
    """A pod of a user that holds a GPU of this worker, in any namespace: also at the level `restricted`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": worker},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}
            },
            "containers": [
                {
                    "name": "train",
                    "image": "busbar-lab/nccl-tests:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }  # fmt: skip


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`make up`, and `make down` afterwards; a lab that was up before is used as it is and left alone."""
    yield from brought_up(tmp_path_factory)


def brought_up(tmp_path_factory: pytest.TempPathFactory, *capability: str) -> Iterator[Lab]:
    """The same with the arguments of `python -m lab bringup`, for capabilities with hosts of their own."""
    if why := _why_not():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    status = [sys.executable, "-m", "lab", "status"]
    was_up = not subprocess.run(status, cwd=PROJECT, capture_output=True, check=False).returncode
    done = subprocess.run(
        [sys.executable, "-m", "lab", "bringup", *capability],
        cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600, check=False,
    )  # fmt: skip
    print(done.stdout)
    if done.returncode != 0:
        command = [sys.executable, "-m", "lab", "logs"]
        logs = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True, check=False)
        what = "-".join(("make up", *capability))
        pytest.fail(
            f"`{what}` failed ({done.returncode})\n{done.stdout}\n{logs.stdout[-20000:]}", pytrace=False
        )
    from lab.engine.environment import environment

    temporary = tmp_path_factory.mktemp("stacks")
    made = Lab({**os.environ, **environment()}, done.stdout, temporary)
    yield made
    shutil.rmtree(temporary, ignore_errors=True)
    if not was_up:
        down = made.run(sys.executable, "-m", "lab", "down")
        # The next file would take what is left for its own lab.
        assert down.returncode == 0, down.stdout + down.stderr


@pytest.fixture(scope="session")
def real_k3s() -> str:
    """The version of the real K3s that the hosts get; without one the test is skipped.

    `usefixtures` names it where no host shall be booted then: `lab` is made after it.
    """
    from lab.mirror import artifacts

    if artifacts.k3s_is_replaced():
        pytest.skip(f"needs a real K3s: set {artifacts.K3S_VARIABLE} to one (lab/README.md)")
    return artifacts.k3s_version()


@pytest.fixture(scope="session")
def next_k3s(real_k3s: str) -> K3sRelease:
    """The real K3s that the hosts can be upgraded to; without one the test is skipped."""
    from lab.mirror import artifacts

    found = artifacts.next_k3s()
    if found is None:
        name = artifacts.NEXT_K3S_VARIABLE
        pytest.skip(f"needs a real K3s after {real_k3s}: set {name} to one (lab/README.md)")
    return found


@pytest.fixture
def upgrade(lab: Lab, next_k3s: K3sRelease) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Changes the stack to the next K3s. Then the cluster is made anew: a minor one cannot go back."""
    from lab.build.official import architecture
    from lab.mirror.artifacts import sha256

    def change(cluster: dict[str, Any]) -> None:
        cluster["k3s"] |= {"version": next_k3s.version, "sha256": {architecture(): sha256(next_k3s.binary)}}

    yield change
    lab.make_anew()


class Change(Protocol):
    """An update with a changed configuration and without the measurement; returns what it printed."""

    def __call__(
        self, change: Callable[[dict[str, Any]], None], *arguments: str, fails: bool = False
    ) -> str: ...


@pytest.fixture
def changed(lab: Lab) -> Iterator[Change]:
    """Updates with a changed configuration; afterwards one with the usual configuration."""

    def up(change: Callable[[dict[str, Any]], None], *arguments: str, fails: bool = False) -> str:
        def and_unmeasured(cluster: dict[str, Any]) -> None:
            cluster["validation"]["enabled"] = False
            change(cluster)

        done = lab.up("--config-file", str(lab.config_with(and_unmeasured)), *arguments)
        text = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, text
        return text

    yield up
    lab.updated()


def eventually(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until `condition` holds; after `seconds` the test fails with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


def read_until(stream: IO[str] | None, text: str) -> str:
    """Read lines until one has the text; all of them."""
    assert stream is not None
    read: list[str] = []
    for line in stream:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError(f"{text!r} never came:\n{''.join(read)}")
