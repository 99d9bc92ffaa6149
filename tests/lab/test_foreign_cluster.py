"""`busbar nccl run` as somebody uses it whose cluster busbar did not make.

The lab's cluster without its measurement. Its API servers hold every namespace without a label to Pod
Security's level `restricted`, as a strict site does. Nodes, devices and the MPI Operator are found there.
"""

import base64
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.outputs import ClusterOutputs
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, Lab, read_until

pytestmark = pytest.mark.drill

MEASURE = PROJECT / "examples" / "measure"
POLICY = "/etc/rancher/k3s/pod-security.yaml"
RESTRICTED = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {"enforce": "restricted", "enforce-version": "latest"},
                "exemptions": {"namespaces": ["kube-system"]},
            },
        }
    ],
}
PODS_SECONDS = 120


class Stranger:
    """Somebody with a kubeconfig, settings for this hardware, and the command."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.kept = folder / "kept"
        dev = yaml.safe_load((PROJECT / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
        self.validation: dict[str, Any] = dev["config"]["busbar:cluster"]["validation"]
        settings = folder / "settings.yaml"
        settings.write_text(yaml.safe_dump(self.validation), encoding="utf-8")
        self._settings = ("--settings", str(settings), "--folder", str(self.kept))

    def words(self, command: str, *more: str) -> list[str]:
        kubeconfig = () if "--kubeconfig" in more else ("--kubeconfig", str(KUBECONFIG))
        return [sys.executable, "-m", "busbar", "nccl", command, *kubeconfig, *more]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        done = self.lab.run(*self.words("run", *self._settings, *more))
        print(done.stdout, done.stderr)
        return done

    def start(self) -> subprocess.Popen[str]:
        """The command, in the background."""
        return subprocess.Popen(
            self.words("run", *self._settings),
            env=self.lab.environment, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def clean(self, *runs: str) -> subprocess.CompletedProcess[str]:
        return self.lab.run(*self.words("clean", *runs))

    @property
    def left(self) -> list[str]:
        """What a run has left, and its pods."""
        kinds = "namespaces,mpijobs,configmaps,jobs,pods"
        marked = self.lab.kubectl(f"get {kinds} -A -l busbar/nccl-run -o name")
        return marked.split() + re.findall(r"busbar-run-\w+", self.lab.kubectl("get namespaces -o name"))


@pytest.fixture(scope="module")
def stranger(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    def as_of_others(cluster: dict[str, Any]) -> None:
        cluster["validation"]["enabled"] = False
        argument = f"admission-control-config-file={POLICY}"
        cluster["k3s"]["server_args"] = {"kube-apiserver-arg": [argument]}

    text = base64.b64encode(yaml.safe_dump(RESTRICTED).encode()).decode()
    for server in SERVERS:
        lab.ssh(server, f"echo {text} | base64 -d > {POLICY}")
    lab.updated("--config-file", str(lab.config_with(as_of_others)))
    lab.kubectl("create namespace bench")
    yield Stranger(lab, tmp_path_factory.mktemp("stranger"))
    lab.kubectl("delete namespace bench --ignore-not-found")
    lab.updated()
    for server in SERVERS:
        lab.ssh(server, f"rm {POLICY}")


def test_the_cluster_holds_a_namespace_without_a_label_to_the_restricted_level(stranger: Stranger) -> None:
    root = "k3s kubectl -n bench run root --image=busbar-lab/nccl-tests:1 --dry-run=server 2>&1 || true"
    assert 'violates PodSecurity "restricted:' in stranger.lab.ssh("server-1", root)


def test_a_dry_run_finds_nodes_and_gpus_and_creates_nothing(stranger: Stranger) -> None:
    done = stranger.run("--dry-run")
    assert done.returncode == 0
    assert re.search(r"# nodes +worker-1, worker-2 +cluster: ", done.stdout)
    assert re.search(r"# gpus +2 +cluster: ", done.stdout)
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["Namespace", "MPIJob"]
    assert stranger.left == []


def test_the_measurement_passes_and_leaves_nothing_but_its_report(stranger: Stranger) -> None:
    before = stranger.lab.uids("namespaces")
    done = stranger.run("--hca", "nvidia.com/hostdev=2")
    assert done.returncode == 0
    assert done.stdout.startswith("PASS")
    assert (stranger.kept / "report.html").exists()
    assert stranger.left == []
    assert stranger.lab.uids("namespaces") == before


def test_a_namespace_of_the_site_that_does_not_admit_the_pods_is_refused_with_its_policy(
    stranger: Stranger,
) -> None:
    began = time.monotonic()
    done = stranger.run("--namespace", "bench")
    print(f"refused after {time.monotonic() - began:.1f} s")
    assert done.returncode == 2
    assert "namespace bench does not admit the worker pods" in done.stderr
    assert 'violates PodSecurity "restricted:' in done.stderr
    assert stranger.left == []


@pytest.fixture
def cordoned(stranger: Stranger) -> Iterator[str]:
    stranger.lab.kubectl("cordon worker-2")
    yield "worker-2"
    stranger.lab.kubectl("uncordon worker-2")


def test_a_run_without_a_cordoned_node_must_say_so(stranger: Stranger, cordoned: str) -> None:
    began = time.monotonic()
    done = stranger.run()
    print(f"refused after {time.monotonic() - began:.1f} s")
    assert done.returncode == 2
    assert (
        f"1 of 2 Nodes with GPUs cannot be measured: {cordoned} (cordoned by kubectl). Fix: " in done.stderr
    )
    assert stranger.run("--nodes", f"worker-1,{cordoned}").returncode == 2
    for named in (("--nodes", "worker-1"), ("--expect-nodes", "1")):
        done = stranger.run(*named)
        assert done.returncode == 0
        assert "2 ranks on 1 node" in " ".join(done.stdout.split())
    assert stranger.left == []


class Limited:
    """A user with the rights of docs/measuring.md in a namespace, until one is taken away."""

    namespace = "bench-limited"
    # The name has a word of what admission says about a new namespace.
    user = "serviceaccount"

    def __init__(self, stranger: Stranger, folder: Path) -> None:
        self.stranger, self.lab, self.kubeconfig = stranger, stranger.lab, folder / "kubeconfig"
        self.lab.kubectl(f"create namespace {self.namespace}")
        self.lab.kubectl(f"label namespace {self.namespace} pod-security.kubernetes.io/enforce=baseline")
        self.lab.kubectl(f"-n {self.namespace} create serviceaccount {self.user}")
        self.grant()
        bound = f"--serviceaccount {self.namespace}:{self.user}"
        self.lab.kubectl(f"-n {self.namespace} create rolebinding {bound} --role busbar-nccl limited")
        self.lab.kubectl(f"create clusterrolebinding {bound} --clusterrole busbar-nccl limited")
        made = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
        token = self.lab.kubectl(f"-n {self.namespace} create token {self.user}").strip()
        made["users"] = [{"name": each["name"], "user": {"token": token}} for each in made["users"]]
        self.kubeconfig.write_text(yaml.safe_dump(made), encoding="utf-8")

    def grant(self, without: tuple[str, str] = ("", "")) -> None:
        """The roles of the page, but for a verb of a resource."""
        page = (PROJECT / "docs" / "measuring.md").read_text(encoding="utf-8")
        [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        roles = [*yaml.safe_load_all(text.replace("namespace: bench", f"namespace: {self.namespace}"))]
        for rule in (rule for role in roles for rule in role["rules"]):
            if rule["resources"] == [without[0]]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != without[1]]
        self.lab.apply(*(role | {"rules": [r for r in role["rules"] if r["verbs"]]} for role in roles))

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        done = self.stranger.run("--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *more)
        print(f"exit code {done.returncode} after {time.monotonic() - began:.1f} s")
        return done

    def remove(self) -> None:
        self.lab.kubectl("delete clusterrolebinding limited")
        self.lab.kubectl("delete clusterrole busbar-nccl")
        self.lab.kubectl(f"delete namespace {self.namespace}")


@pytest.fixture(scope="module")
def limited(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    made = Limited(stranger, tmp_path_factory.mktemp("limited"))
    yield made
    made.remove()


def test_the_role_of_the_page_is_enough(limited: Limited) -> None:
    assert limited.run().returncode == 0
    assert limited.stranger.left == []


@pytest.mark.parametrize(
    "missing", [("pods", "create"), ("pods/log", "get"), ("mpijobs", "delete"), ("nodes", "list")], ids=str
)
def test_a_missing_right_is_named_before_anything_is_created(
    limited: Limited, missing: tuple[str, str]
) -> None:
    limited.grant(without=missing)
    try:
        done = limited.run()
    finally:
        limited.grant()
    assert done.returncode == 2
    name = {"mpijobs": "mpijobs.kubeflow.org"}.get(missing[0], missing[0])
    assert f"\n  {name}: {missing[1]}\n" in done.stderr
    assert "created" not in done.stderr.replace("nothing was created", "")
    assert limited.stranger.left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["created Namespace", "created MPIJob", "measuring all_reduce"])
def test_a_signal_leaves_nothing(stranger: Stranger, moment: str, number: signal.Signals) -> None:
    process = stranger.start()
    read_until(process.stderr, moment)
    process.send_signal(number)
    _, rest = process.communicate(timeout=PODS_SECONDS)
    print(rest)
    assert process.returncode == 128 + number
    assert stranger.left == []


def test_what_a_killed_process_leaves_is_removed_by_clean_and_its_gpus_are_free(stranger: Stranger) -> None:
    process = stranger.start()
    read_until(process.stderr, "following the log of")
    waiting = stranger.clean()
    assert waiting.returncode == 1 and "its process may be alive" in waiting.stderr, "it is still there"
    process.kill()
    process.communicate(timeout=10)
    assert stranger.left != []
    [run] = {*re.findall(r"busbar-(run-\w+)", "\n".join(stranger.left))}
    done = stranger.clean(run)
    print(done.stderr)
    assert done.returncode == 0
    assert re.search(r"removed Namespace busbar-run-\w+", done.stderr)
    assert stranger.left == []
    assert stranger.run("--dry-run").returncode == 0, "no GPU is held"


def test_the_program_of_examples_measures_the_same_cluster(stranger: Stranger) -> None:
    lab = stranger.lab
    measurement = {
        "pool": "lab", "nodes": ["worker-1", "worker-2"], "gpus": 2, "rails": 2, "rate_gbps": 400,
        "hca_resources": {"nvidia.com/hostdev": 2}, "validation": stranger.validation,
    }  # fmt: skip
    config = lab.temporary / "Pulumi.measure.yaml"
    lab.stacks.append(config)
    values = {"busbar-measure:cluster": "of-others", "busbar-measure:measurement": measurement}
    config.write_text(yaml.safe_dump({"config": values}), encoding="utf-8")
    file = ("--config-file", str(config), "--stack", "dev")
    lab.pulumi("stack", "init", "dev", cwd=MEASURE)
    secret = shlex.quote(str(KUBECONFIG))
    words = shlex.join(["pulumi", "config", "set", "--secret", "kubeconfig", *file])
    done = lab.run("bash", "-c", f"{words} < {secret}", cwd=MEASURE)
    assert done.returncode == 0, done.stderr
    try:
        lab.updated("--config-file", str(config), cwd=MEASURE)
        measured = ClusterOutputs.from_dict(lab.outputs(MEASURE))
        assert measured.measured_only and measured.nccl_passed and measured.nccl["lab"].transport == "socket"
    finally:
        done = lab.pulumi("destroy", "--yes", *file, cwd=MEASURE)
        (MEASURE / "Pulumi.dev.yaml").unlink(missing_ok=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "busbar-validation" not in lab.uids("namespaces")
