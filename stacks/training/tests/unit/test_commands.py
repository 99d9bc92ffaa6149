"""`busbar training check` and `collect` as people and the engine run them, and what `check-config` tells."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from busbar.kube import wait
from stacks.training.package.verdict import SCHEMA
from stacks.training.tests.support import CLUSTER, configured
from stacks.training.tests.unit import test_collector as job
from stacks.training.tests.unit.made import changed, expected, first, lines, second
from tests.support.cli import busbar
from tests.support.kube_cluster import Clock
from tests.support.shared import PROJECT

WHOLE = b"".join(lines([*first(), *second()]))


def judged(folder: Path, log: bytes, *words: str) -> Result:
    (folder / "run.log").write_bytes(log)
    kept = {"schema": SCHEMA, "expectation": kept_expectation()}
    (folder / "verdict.json").write_text(json.dumps(kept))
    return busbar("training", "check", str(folder / "run.log"), *words)


def kept_expectation() -> dict[str, Any]:
    return expected().model_dump(mode="json", exclude_none=True)


def test_a_kept_log_is_judged_again_with_a_line_per_check_or_as_json(tmp_path: Path) -> None:
    for log in (WHOLE, gzip.compress(WHOLE)):
        done = judged(tmp_path, log)
        assert (done.exit_code, done.stdout.splitlines()[:2]) == (0, ["PASS", ""])
        assert "pass         log         30 steps in 2 starts, to the last record" in done.stdout
    found = json.loads(judged(tmp_path, WHOLE, "--json").stdout)
    assert (found["verdict"], found["nodes"]) == ("pass", 2)


# Each log, its exit code, its verdict, and the line of the check that decides.
DECIDED: list[tuple[bytes, int, str, str]] = [
    (b"".join(lines(changed([*first(), *second()], "timing", wrong=3))), 1, "FAIL",
     "fail         allreduce   3 elements have a wrong sum"),
    (b"".join(lines([*first(), *second()], None)), 2, "UNKNOWN",
     "unknown      fabric      start 1: no messages of NCCL from rank 0 and 15 more"),
    (gzip.compress(WHOLE)[:-4], 2, "UNKNOWN", "unknown      log         the log is not complete: "),
]  # fmt: skip


@pytest.mark.parametrize(("log", "code", "verdict", "line"), DECIDED, ids=["wrong sum", "no messages", "cut"])
def test_the_exit_code_tells_a_failure_from_missing_evidence(
    log: bytes, code: int, verdict: str, line: str, tmp_path: Path
) -> None:
    done = judged(tmp_path, log)
    _, name, reason = line.split(maxsplit=2)
    headline = f"{verdict:<8}{name}: {reason}"
    assert (done.exit_code, done.stdout.startswith(headline)) == (code, True), done.stdout
    assert f"\n{line}" in done.stdout


def test_the_expectation_may_be_in_another_folder_and_must_be_somewhere(tmp_path: Path) -> None:
    judged(tmp_path, WHOLE)
    log = tmp_path / "elsewhere" / "run.log"
    log.parent.mkdir()
    log.write_bytes(WHOLE)
    done = busbar("training", "check", str(log))
    assert (done.exit_code, "Fix: --verdict FILE" in done.stderr) == (64, True)
    assert busbar("training", "check", str(log), "--verdict", str(tmp_path / "verdict.json")).exit_code == 0


def test_a_log_of_nccl_tests_is_called_so(tmp_path: Path) -> None:
    done = judged(tmp_path, (PROJECT / "examples" / "nccl" / "h100-2-nodes.log").read_bytes())
    said = "UNKNOWN log: this is a log of nccl-tests, not of a training run. Fix: busbar nccl check FILE"
    assert (done.exit_code, done.stdout.splitlines()[0]) == (2, said)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no JSON", "Invalid JSON"),
        ('{"schema": 1, "expectation": {}}', "schema: Input should be 2, got 1"),
        ('{"schema": 2, "expectation": {}}', "expectation.nodes: Field required, got {}"),
    ],
)
def test_another_file_than_a_verdict_is_named_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "verdict.json"
    file.write_text(text)
    done = busbar("training", "check", str(file), "--verdict", str(file))
    assert done.exit_code == 64
    assert done.stderr.startswith(f"error: {file}: is not the verdict of a training run: {why}")
    assert done.stderr.count("\n") == 1


def test_a_job_is_followed_and_its_verdict_printed_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = job.cluster()
    api.logs = [job.serve(job.whole_log())]
    monkeypatch.setattr("busbar.kube.client.connect", lambda: api)
    monkeypatch.setattr(wait, "SystemClock", Clock)
    request = {"namespace": "train", "job": "run", "folder": str(tmp_path), "deadline_seconds": 600}
    asked = json.dumps({**request, "expectation": kept_expectation()})
    done = busbar("step", "training", "collect", stdin=asked)
    assert done.exit_code == 0, done.output
    [line] = done.stdout.splitlines()
    printed = json.loads(line)
    assert (printed["verdict"], printed["verdict_file"]) == ("pass", f"{tmp_path}/verdict.json")
    assert json.loads((tmp_path / "verdict.json").read_text())["passed"] is True
    for said in ("16 ranks start, nccl", "rank 15 is killed", "resumed from step 15"):
        assert said in done.stderr


def described(folder: Path, **training: Any) -> list[str]:
    (folder / "Pulumi.yaml").write_text("name: busbar-training\n")
    document = {"config": {"busbar-training:training": configured(**training)}}
    (folder / "Pulumi.prod.yaml").write_text(yaml.safe_dump(document))
    done = busbar("check-config", str(folder / "Pulumi.prod.yaml"))
    assert done.exit_code == 0, done.output
    first, *rest = (line.strip() for line in done.stdout.splitlines())
    assert first == "OK  Pulumi.prod.yaml"
    return rest


def test_a_configuration_is_described_by_what_is_trained_expected_and_installed(tmp_path: Path) -> None:
    devices = {"type": "host-device", "resource": "nvidia.com/hostdev"}
    network = {"name": "ib", "subnet": "192.168.20.0/24", **devices}
    assert described(
        tmp_path,
        proof={"gradient_bytes": "1G", "image": "torch:1", "min_loss_drop": 0.4, "min_busbw_fraction": 0.6},
        networks={"h100": [network]},
        storage={"mode": "nfs", "nfs": {"server": "10.0.0.5", "export": "/srv"}},
        trainer={"enabled": True},
        training_operator={"enabled": True, "image": "operator:1"},
    ) == [
        f"cluster {CLUSTER}, pools: all",
        "training run: nccl, 30 steps, gradients of 1 GiB, image torch:1, at most 1200 s per pool",
        "expected: loss lower by 40.0 %, all-reduce at 60.0 % of the measured busbw",
        "networks of pool h100: ib (host-device, 192.168.20.0/24)",
        "shared storage: nfs 10.0.0.5:/srv",
        "Kubeflow Trainer: 2.3.0, oci://ghcr.io/kubeflow/charts/kubeflow-trainer",
        "Training Operator: operator:1",
    ]
