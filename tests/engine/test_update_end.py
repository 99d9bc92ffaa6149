"""How an update ends that replaced or deleted what the configuration still wants, with the real engine.

The component of the GPU Operator and the lab's plugins are real. The cluster is an API server in miniature,
and `helm` writes its records there. The tests are one story, in this order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from busbar.manifests.operators import GPU_OPERATOR
from lab.tests.unit.offline.toy_api_server import ToyApiServer
from tests.support.engine import throwaway_project

SECONDS = 900
NAMESPACE = f"/api/v1/namespaces/{GPU_OPERATOR.namespace}"
PROGRAM = """
    import os
    from pathlib import Path

    import pulumi
    import pulumi_kubernetes as kubernetes
    from pulumi_command import local

    from busbar.components import gpu_operator
    from busbar.components.engine.stack_outputs import export_all
    from busbar.components.engine.update_end import check_after_deletions

    ROOT = Path(__file__).parent

    def waited(name, command, spec, kubeconfig, opts, triggers):
        return local.Command(name, create=f"echo waited >> {ROOT}/log", triggers=triggers, opts=opts)

    gpu_operator.create_cluster_command = waited
    kubeconfig = (ROOT / "kubeconfig").read_text()
    # As that of the programs, but another identifier replaces it and all that it has made.
    provider = kubernetes.Provider(
        "cluster",
        kubeconfig=kubeconfig,
        cluster_identifier=os.environ.get("IDENTIFIER", "one"),
        upsert_existing_objects=True,
    )
    kind = os.environ.get("PARENT")
    parent = pulumi.ComponentResource(f"tiny:index:{kind}", "parent") if kind else None
    gpu_operator.GpuOperator(
        "gpu-operator",
        gpu_operator.GpuOperatorArgs(
            kubeconfig=kubeconfig, nodes={"gpu-1": 8}, settings={"chart": str(ROOT / "chart")}
        ),
        pulumi.ResourceOptions(provider=provider, parent=parent),
    )
    check_after_deletions(kubeconfig)

    async def main():
        export_all({"kubeconfig": pulumi.Output.secret(kubeconfig)})
        if os.environ.get("FAIL"):
            raise pulumi.RunError("a step failed")

    pulumi.run(main)
"""
HELM = """
    import json, os, sys
    import yaml
    from busbar.helm import records
    from busbar.kube.client import ApiError, RestApi

    if os.environ.get("HELM_FAILS") and sys.argv[1] == "upgrade":
        sys.exit("Error: no such image")
    api = RestApi(open(os.environ["KUBECONFIG"]).read())
    verb, what = sys.argv[1:3]
    name = sys.argv[3] if verb == "get" else what
    namespace = sys.argv[sys.argv.index("--namespace") + 1]
    with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
        if verb in ("install", "upgrade", "uninstall"):
            print(verb, file=log)
    found = records.read(api, name, namespace)
    revision = found[-1].revision + 1 if found else 1
    if verb in ("install", "upgrade"):
        body = {
            "name": name, "version": revision, "info": {"status": "deployed"},
            "chart": {"metadata": {"name": "toy", "version": "1.2.3"}},
            "config": yaml.safe_load(sys.stdin) or {},
        }
        for record in found:
            records.delete(api, record)
        labels = {"owner": "helm", "name": name, "status": "deployed", "version": str(revision)}
        secret = f"sh.helm.release.v1.{name}.v{revision}"
        metadata = {"name": secret, "namespace": namespace, "labels": labels}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        body = {"metadata": metadata, "data": {"release": records.encode(body)}}
        api.create(f"/api/v1/namespaces/{namespace}/secrets", body)
        sys.exit()
    if not found:
        sys.exit("Error: release: not found")
    if verb == "uninstall":
        for record in found:
            records.delete(api, record)
    newest = found[-1]
    about = {"name": name, "namespace": namespace, "revision": newest.revision, "status": newest.status}
    about |= {"chart": newest.chart, "version": newest.chart_version, "info": {"status": newest.status}}
    if what != "manifest":
        print(json.dumps(newest.values if what == "values" else about))
"""


@dataclass
class Stack:
    folder: Path
    environment: Mapping[str, str]
    api: ToyApiServer

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env={**self.environment, **more}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip

    def pulumi(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("pulumi", *words, "--stack", "dev", "--non-interactive", **more)

    def up(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.pulumi("up", "--yes", "--skip-preview", *words, **more)

    def busbar(self, verb: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "busbar", verb, "dev", *words, **more)

    def done(self) -> list[str]:
        """What helm and the wait for GPUs did since the last call."""
        log = self.folder / "log"
        lines = log.read_text().split() if log.exists() else []
        log.write_text("")
        return lines

    @property
    def installed(self) -> bool:
        """Whether namespace and release are on the cluster."""
        return NAMESPACE in self.api.objects and any(
            path.startswith(f"{NAMESPACE}/secrets/") for path in self.api.objects
        )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("update-end")
    environment = dict(throwaway_project(folder, PROGRAM, NO_COLOR="1", TERM="dumb"))
    environment["PATH"] = os.pathsep.join([str(folder), environment["PATH"]])
    helm = folder / "helm"
    helm.write_text(f"#!{sys.executable}\n{textwrap.dedent(HELM)}")
    helm.chmod(0o755)
    (folder / "chart").mkdir()
    (folder / "chart/Chart.yaml").write_text("{apiVersion: v2, name: toy, version: 1.2.3}")
    (folder / "Pulumi.dev.yaml").write_text("config: {}\n")
    api = ToyApiServer()
    (folder / "kubeconfig").write_text(api.kubeconfig)
    made = Stack(folder, environment, api)
    assert made.pulumi("stack", "init").returncode == 0
    first = made.up()
    assert first.returncode == 0, first.stdout
    assert made.done() == ["install", "waited"] and made.installed
    yield made
    api.close()


def test_a_second_update_has_nothing_to_do(stack: Stack) -> None:
    done = stack.up("--expect-no-changes")
    assert done.returncode == 0, done.stdout
    assert stack.done() == []


def test_a_replaced_provider_leaves_the_release_installed_and_its_gpus_waited_for(stack: Stack) -> None:
    done = stack.up(IDENTIFIER="two")
    assert done.returncode == 0, done.stdout
    assert stack.installed, done.stdout
    assert stack.done() == ["uninstall", "install", "waited"]


def test_after_that_a_further_update_has_nothing_to_do(stack: Stack) -> None:
    done = stack.up("--expect-no-changes", IDENTIFIER="two")
    assert done.returncode == 0, done.stdout


def test_an_upgraded_release_is_waited_for(stack: Stack) -> None:
    (stack.folder / "chart/values.yaml").write_text("a: 1\n")
    done = stack.up(IDENTIFIER="two")
    assert done.returncode == 0, done.stdout
    assert stack.done() == ["upgrade", "waited"]


def test_a_failed_upgrade_is_the_only_error_and_the_next_one_is_waited_for(stack: Stack) -> None:
    (stack.folder / "chart/values.yaml").write_text("a: 2\n")
    done = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="two", HELM_FAILS="1")
    assert done.returncode == 1, done.stdout
    assert "no such image" in done.stdout and "gpu-operator-gpus" not in done.stdout
    assert stack.done() == []
    repaired = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="two")
    assert repaired.returncode == 0, repaired.stdout
    assert stack.done() == ["upgrade", "waited"]


def test_a_replacement_whose_former_half_cannot_be_deleted_ends_and_is_healed(stack: Stack) -> None:
    """helm refuses to uninstall what is not there. The engine would wait for ever."""
    for path in [path for path in stack.api.objects if path.startswith(f"{NAMESPACE}/secrets/")]:
        stack.api.remove(path)
    done = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="three")
    assert done.returncode == 1, done.stdout
    assert "gpu-operator-release: release: not found" in done.stdout.splitlines()
    again = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="three")
    assert again.returncode == 1, again.stdout
    assert "Fix: `busbar up dev --converge cluster`" in again.stdout
    stack.done()
    healed = stack.busbar("up", "--yes", "--skip-preview", "--converge", "cluster", IDENTIFIER="three")
    assert healed.returncode == 0, healed.stdout
    assert stack.installed
    assert stack.done() == ["install", "waited"]


@pytest.mark.parametrize("command", ["pulumi", "busbar"])
def test_an_update_whose_deletions_remove_a_wanted_release_fails_and_says_how_to_install_it(
    stack: Stack, command: str
) -> None:
    # With another parent the release is a new resource, and the engine deletes the former one at its end.
    wanted = {"IDENTIFIER": "three", "PARENT": command}
    if command == "pulumi":
        done = stack.up(**wanted)
    else:
        done = stack.busbar("up", "--yes", "--skip-preview", **wanted)
    assert not stack.installed, done.stdout
    assert done.returncode == 1, done.stdout
    assert "Helm release gpu-operator/gpu-operator is not on the cluster" in done.stdout
    assert "Fix: `busbar up dev --converge cluster`" in done.stdout
    stack.done()
    healed = stack.busbar("up", "--yes", "--skip-preview", "--converge", "cluster", **wanted)
    assert healed.returncode == 0, healed.stdout
    assert stack.installed
    assert stack.done() == ["install", "waited"]
