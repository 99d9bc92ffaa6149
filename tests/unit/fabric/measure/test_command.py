"""`busbar nccl run` and `clean` as they are typed: output, exit codes, usage."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.fabric.measure import Request, plan, read_facts
from busbar.fabric.measure.run import UNTIL, latest_end
from tests.support.cli import busbar
from tests.support.kube_cluster import connected
from tests.unit.collect import launcher_log
from tests.unit.fabric.measure.foreign import SETTINGS, Foreign, gpu_node


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Foreign:
    """The commands find this cluster, and time that only passes while they wait."""
    made = Foreign(*(gpu_node(name, gpus=1, product="") for name in ("gpu-1", "gpu-2")))
    connected(monkeypatch, made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    Path("settings.yaml").write_text(yaml.safe_dump(SETTINGS))
    return made


def nccl(*words: str) -> Any:
    return busbar("nccl", *words)


def measured(*words: str) -> Any:
    return nccl("run", "--settings", "settings.yaml", *words)


def test_a_pass_prints_the_verdict_on_stdout_and_ends_with_0(cluster: Foreign) -> None:
    done = measured()
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("PASS")
    [report] = Path(".busbar").glob("run-*/report.html")
    assert done.stdout.endswith(f"more   {report}; --full prints gates and table\n")
    *first, rest = done.stderr.split("\n", 2)
    assert first == ["reading ~/.kube/config", "cluster https://10.0.0.1:6443"]
    assert "nodes        gpu-1, gpu-2" in done.stderr and "cluster: all Nodes with nvidia.com" in done.stderr
    assert "\nall_reduce ended with exit code 0\n" in rest
    assert cluster.left == []


def test_a_fail_ends_with_1_and_its_json_is_the_whole_verdict(cluster: Foreign) -> None:
    cluster.runs = lambda job: cluster.run_job(job, launcher_log.text(busbw=1.0))
    done = measured("--json", "--folder", "kept")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == json.loads(Path("kept/verdict.json").read_text())


@pytest.mark.parametrize(("busbw", "code", "verdict"), [(2.0, 2, "pass"), (1.0, 1, "fail")])
def test_a_run_that_is_left_in_the_cluster_does_not_end_with_0_and_its_verdict_is_printed(
    cluster: Foreign, busbw: float, code: int, verdict: str
) -> None:
    cluster.deletes = False
    cluster.add("/api/v1/namespaces/bench", {"metadata": {"name": "bench"}})
    cluster.runs = lambda job: cluster.run_job(job, launcher_log.text(busbw=busbw))
    done = measured("--json", "--namespace", "bench", "--context", "prod", "--kubeconfig", "of-prod")
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (code, verdict)
    [run] = [each.name for each in Path(".busbar").iterdir()]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {run} is not removed: MPIJob bench/nccl-{run}-")
    options = "--namespace bench --kubeconfig of-prod --context prod"
    assert last.endswith(f"Fix: busbar nccl clean {run} {options}")


def third(cluster: Foreign) -> None:
    """A third Node that cannot be measured."""
    cluster.objects["/api/v1/nodes/gpu-3"] = gpu_node("gpu-3", gpus=1, product="", cordoned=True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("--dry-run",), 2),
        (("--expect-nodes", "3"), 2),
        (("--expect-nodes", "2"), 0),
        (("--nodes", "gpu-1,gpu-2"), 0),
        (("--nodes", "gpu-1,gpu-3"), 2),
    ],
)
def test_a_node_that_nobody_left_out_is_no_pass(cluster: Foreign, words: tuple[str, ...], code: int) -> None:
    third(cluster)
    done = measured(*words)
    assert done.exit_code == code, done.output
    assert bool(cluster.created) == (code == 0)


def test_a_dry_run_prints_objects_and_the_source_of_each_value_and_creates_nothing(cluster: Foreign) -> None:
    third(cluster)
    done = measured("--dry-run", "--expect-nodes", "2")
    assert (done.exit_code, cluster.created) == (0, [])
    assert "# note: gpu-3 is left out: cordoned\n" in done.stdout
    namespace, job = yaml.safe_load_all(done.stdout)
    assert job["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert "namespace" not in namespace["metadata"]
    assert (namespace["kind"], job["kind"]) == ("Namespace", "MPIJob")
    first = done.stdout.splitlines()[0]
    assert first.split("  ")[0] == "# nodes" and first.endswith("  cluster: all Nodes with nvidia.com/gpu")
    assert [line.strip() for line in done.stdout.splitlines()].count("set -uo pipefail") == 1, "as a block"


def test_options_win_over_the_file_of_settings(cluster: Foreign) -> None:
    Path("settings.yaml").write_text(yaml.safe_dump({**SETTINGS, "image": "registry.example/nccl:1"}))
    done = measured("--image", "registry.example/nccl:2", "--dry-run")
    assert "image: registry.example/nccl:2" in done.stdout
    assert "# image        registry.example/nccl:2" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hca", "hostdev"], "--hca hostdev: expected RESOURCE=UNITS"),
        (["--hca", "hostdev=8"], "--hca hostdev=8: expected RESOURCE=UNITS"),
        (["--hca", "nvidia.com/hostdev=many"], "expected RESOURCE=UNITS, such as nvidia.com/hostdev=8"),
        (["--profile", "h1000"], "error: unknown profile 'h1000'; use one of a100-ib-8x200,"),
        (["--image", ""], "error: validation.image:"),
        (["--settings", "missing.yaml"], "missing.yaml"),
        (["--settings", "broken.yaml"], "error: broken.yaml: not YAML"),
        (["--settings", "topology.yaml"], "error: missing.xml: No such file or directory"),
        (["--settings", "text.yaml"], "error: text.yaml: expected keys of `validation`"),
        (
            ["--settings", "unknown.yaml"],
            "error: validation.min_byte: unknown key; did you mean 'min_bytes'?",
        ),
    ],
)
def test_bad_usage_ends_with_64_and_says_why(cluster: Foreign, words: list[str], complaint: str) -> None:
    Path("broken.yaml").write_text("a: [")
    Path("text.yaml").write_text("text")
    Path("topology.yaml").write_text(yaml.safe_dump({**SETTINGS, "topology_file": "missing.xml"}))
    Path("unknown.yaml").write_text(yaml.safe_dump({**SETTINGS, "min_byte": 1}))
    done = measured(*words)
    assert done.exit_code == 64, done.output
    assert complaint in " ".join(done.stderr.replace("│", " ").split())
    assert cluster.created == []


def test_a_kubeconfig_or_a_context_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("contexts: [{name: lab}, {name: staging}]")
    for words, complaint in (
        (["/nonexistent"], "/nonexistent: No such file"),
        ([str(tmp_path / "config"), "--context", "prod"], "has no context 'prod'; it has: lab, staging"),
    ):
        done = nccl("run", "--kubeconfig", *words)
        assert (done.exit_code, complaint in done.stderr) == (64, True)


def test_an_operator_without_a_pod_is_named_before_anything_is_created(cluster: Foreign) -> None:
    template = {"spec": {"containers": [{"image": "registry.example/mpi-operator:0.8.0"}]}}
    deployment = {"metadata": {"name": "mpi", "namespace": "ops"}, "spec": {"template": template}}
    path = "/apis/apps/v1/namespaces/ops/deployments/mpi"
    cluster.add(path, {**deployment, "status": {}})
    done = measured()
    assert (done.exit_code, cluster.created) == (2, [])
    assert "Deployment mpi in ops has no available pod, so no MPIJob runs. Fix: kubectl -n ops" in done.stderr
    cluster.add(path, {**deployment, "status": {"availableReplicas": 1}})
    assert measured().exit_code == 0


@pytest.mark.parametrize("until", [latest_end(3600), ""], ids=["its time", "without a mark"])
def test_clean_keeps_a_run_that_may_be_alive_and_says_how_to_remove_it(cluster: Foreign, until: str) -> None:
    cluster.runs = lambda job: None
    made = plan(read_facts(cluster, None), Request(validation=SETTINGS), "run-7")
    for path, manifest in made.objects({UNTIL: until}):
        cluster.create(path, manifest)
    done = nccl("clean")
    assert done.exit_code == 1
    assert "kept Namespace busbar-run-7 of run-7: its process may be alive" in done.stderr
    fix = done.stderr.rpartition("Fix: busbar nccl ")[2].split()
    assert fix[:2] == ["clean", "run-7"] and "--kubeconfig" in fix
    named = nccl(*fix)
    assert (named.exit_code, cluster.left) == (0, [])
    assert "removed Namespace busbar-run-7" in named.stderr
    again = nccl("clean")
    assert (again.exit_code, again.stderr.splitlines()[-1]) == (0, "nothing to remove")
