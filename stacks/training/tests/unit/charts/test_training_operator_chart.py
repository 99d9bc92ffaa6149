"""charts/training-operator-*.tgz as Helm renders it, beside the MPI Operator of the core."""

import hashlib
import subprocess
from functools import cache
from typing import Any

import yaml

from stacks.training.package import versions
from stacks.training.package.trainer import TRAINING_OPERATOR, TRAINING_OPERATOR_CHART
from tests.unit.charts.controller import of_kind
from tests.unit.charts.published import PROJECT, helm

SET = "image=controller:1,initContainerImage=mirror/alpine:3"


@cache
def render(chart: str, name: str, *options: str) -> list[dict[str, Any]]:
    command = [helm(), "template", name, chart, "--namespace", name, "--kube-version", "1.35.6", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(done.stdout, loader) if document]


def operator() -> list[dict[str, Any]]:
    return render(str(TRAINING_OPERATOR_CHART), TRAINING_OPERATOR.release, "--set", SET)


def crds(manifests: list[dict[str, Any]]) -> set[str]:
    return {crd["metadata"]["name"] for crd in of_kind(manifests, "CustomResourceDefinition")}


def test_the_archive_is_the_one_that_is_pinned() -> None:
    found = hashlib.sha256(TRAINING_OPERATOR_CHART.read_bytes()).hexdigest()
    assert found == versions.TRAINING_OPERATOR_SHA256


def test_it_has_the_crd_of_pytorch_jobs_and_never_that_of_the_mpi_operator() -> None:
    assert crds(operator()) == {"pytorchjobs.kubeflow.org"}
    of_the_core = render(str(PROJECT / "charts" / "mpi-operator"), "mpi-operator")
    assert crds(of_the_core) == {"mpijobs.kubeflow.org"}
    ours, theirs = (
        {(each["kind"], each["metadata"]["name"]) for each in made} for made in (operator(), of_the_core)
    )
    assert not ours & theirs


def test_it_runs_on_tainted_servers_where_all_workers_have_taints_too() -> None:
    [deployment] = of_kind(operator(), "Deployment")
    tolerated = deployment["spec"]["template"]["spec"]["tolerations"]
    assert {each["key"] for each in tolerated} == {
        "node-role.kubernetes.io/control-plane", "CriticalAddonsOnly",
    }  # fmt: skip
    assert {each["operator"] for each in tolerated} == {"Exists"}
