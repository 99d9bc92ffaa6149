"""How an update ends that replaced or deleted what the configuration still wants, with the real engine.

The component of the GPU Operator, the provider of Kubernetes and the API server are real; there are no nodes.
The tests are one story, in this order.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from busbar.helm.releases import decode, encode
from busbar.kube.client import ApiError, JsonObject
from busbar.manifests.operators import GPU_OPERATOR
from tests.support.api_server import ApiServer
from tests.support.engine import ended, throwaway_project

NAMESPACE = f"/api/v1/namespaces/{GPU_OPERATOR.namespace}"
PROGRAM = """
    import os
    from pathlib import Path

    import pulumi
    import pulumi_kubernetes as kubernetes
    from pulumi_command import local

    from busbar.components import gpu_operator
    from busbar.components.engine import helm
    from busbar.components.engine.stack import export_all
    from busbar.components.engine.helm import check_after_deletions
    from busbar.config import cluster

    ROOT = Path(__file__).parent

    def waited(name, command, spec, kubeconfig, opts, triggers):
        return local.Command(name, create=f"echo waited >> {ROOT}/log", triggers=triggers, opts=opts)

    helm.create_cluster_command = waited
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
    operator = gpu_operator.GpuOperator(
        "gpu-operator",
        pulumi.ResourceOptions(provider=provider, parent=parent),
        kubeconfig=kubeconfig,
        nodes={"gpu-1": 8},
        config=cluster.GpuOperator(chart=str(ROOT / "chart")),
    )
    check_after_deletions(kubeconfig, operator.installed)

    async def main():
        export_all({"kubeconfig": pulumi.Output.secret(kubeconfig)})
        if os.environ.get("FAIL"):
            raise pulumi.RunError("a step failed")

    pulumi.run(main)
"""
TEMPLATE = '{{ if .Values.broken }}{{ fail "no such image" }}{{ end }}'


@dataclass
class Stack:
    folder: Path
    environment: Mapping[str, str]
    server: ApiServer
    known: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_chart(cls, folder: Path, server: ApiServer, program: str, name: str, text: str) -> Stack:
        """A stack that was never updated; `name` and `text`: the one file of its chart."""
        environment = throwaway_project(folder, program, NO_COLOR="1", TERM="dumb")
        file = folder / "chart" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (folder / "chart/Chart.yaml").write_text("{apiVersion: v2, name: toy, version: 1.2.3}")
        (folder / "Pulumi.dev.yaml").write_text("config: {}\n")
        (folder / "kubeconfig").write_text(server.kubeconfig)
        made = cls(folder, environment, server)
        assert made.pulumi("stack", "init").returncode == 0
        return made

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return ended(command, self.folder, {**self.environment, **more})

    def pulumi(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("pulumi", *words, "--stack", "dev", "--non-interactive", **more)

    def up(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.pulumi("up", "--yes", "--skip-preview", *words, **more)

    def busbar(self, verb: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "busbar", verb, "dev", *words, **more)

    def done(self) -> list[str]:
        """What helm did to the release, and whether GPUs were waited for, since the last call."""
        log = self.folder / "log"
        waits = log.read_text().split() if log.exists() else []
        log.write_text("")
        before, self.known = self.known, self.records()
        kept = before.keys() & self.known.keys()
        helm = []
        if before and not kept:
            helm.append("uninstall")
        if self.known.keys() - before.keys():
            helm.append("upgrade" if kept else "install")
        return helm + waits

    def chart(self, **values: object) -> None:
        """Write the chart's values anew."""
        (self.folder / "chart/values.yaml").write_text(json.dumps(values))

    @property
    def installed(self) -> bool:
        """Whether namespace and release are on the cluster."""
        try:
            namespace = self.server.api.get(NAMESPACE)
        except ApiError as error:
            assert error.not_found
            return False
        return namespace["status"]["phase"] == "Active" and bool(self.records())

    def records(self) -> dict[str, str]:
        """The path of each of helm's records, by its uid."""
        secrets = self.server.api.list(f"{NAMESPACE}/secrets")
        return {
            each["metadata"]["uid"]: f"{NAMESPACE}/secrets/{each['metadata']['name']}" for each in secrets
        }


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    folder = tmp_path_factory.mktemp("update-end")
    made = Stack.of_chart(folder, server, PROGRAM, "templates/all.yaml", TEMPLATE)
    first = made.up()
    assert first.returncode == 0, first.stdout
    assert made.done() == ["install", "waited"] and made.installed
    return made


def test_a_second_update_has_nothing_to_do(stack: Stack) -> None:
    done = stack.up("--expect-no-changes")
    assert done.returncode == 0, done.stdout
    assert stack.done() == []


def test_a_replaced_provider_leaves_the_release_installed_and_its_gpus_waited_for(stack: Stack) -> None:
    done = stack.up(IDENTIFIER="two")
    assert done.returncode == 0, done.stdout
    assert stack.installed, done.stdout
    assert stack.done() == ["uninstall", "install", "waited"]


def test_an_upgraded_release_is_waited_for(stack: Stack) -> None:
    stack.chart(a=1)
    done = stack.up(IDENTIFIER="two")
    assert done.returncode == 0, done.stdout
    assert stack.done() == ["upgrade", "waited"]


def test_an_upgrade_by_somebody_else_fails_the_update_until_the_state_is_read_again(stack: Stack) -> None:
    api = stack.server.api
    newest = max((api.get(path) for path in stack.records().values()), key=revision)
    number, metadata = revision(newest), newest["metadata"]
    labels = {**metadata["labels"], "version": str(number + 1)}
    release = encode({**decode(newest["data"]["release"]), "version": number + 1, "config": {"a": 9}})
    made = {"name": f"sh.helm.release.v1.gpu-operator.v{number + 1}", "labels": labels}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": newest["type"], "metadata": made}
    api.create(f"{NAMESPACE}/secrets", {**secret, "data": {"release": release}})
    done = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="two")
    assert done.returncode == 1, done.stdout
    assert f"is at revision {number + 1}, expected {number}" in done.stdout
    again = stack.busbar("up", "--yes", "--skip-preview", "--refresh", IDENTIFIER="two")
    assert again.returncode == 0, again.stdout
    assert "waited" in stack.done()


def revision(record: JsonObject) -> int:
    return int(record["metadata"]["labels"]["version"])


def test_a_failed_upgrade_is_the_only_error_and_the_next_one_is_waited_for(stack: Stack) -> None:
    stack.chart(a=2, broken=True)
    done = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="two")
    assert done.returncode == 1, done.stdout
    assert "no such image" in done.stdout and "gpu-operator-gpus" not in done.stdout
    assert stack.done() == []
    stack.chart(a=2)
    repaired = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="two")
    assert repaired.returncode == 0, repaired.stdout
    assert stack.done() == ["upgrade", "waited"]


def test_a_replacement_whose_former_half_cannot_be_deleted_ends_and_is_healed(stack: Stack) -> None:
    """helm refuses to uninstall what is not there. The engine would wait for ever."""
    for path in stack.records().values():
        stack.server.api.delete(path)
    done = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="three")
    assert done.returncode == 1, done.stdout
    assert re.search(r"^gpu-operator-release: .*release: not found$", done.stdout, re.MULTILINE), done.stdout
    again = stack.busbar("up", "--yes", "--skip-preview", IDENTIFIER="three")
    assert again.returncode == 1, again.stdout
    assert "busbar up dev --converge cluster" in again.stdout
    stack.done()
    healed = stack.busbar("up", "--yes", "--skip-preview", "--converge", "cluster", IDENTIFIER="three")
    assert healed.returncode == 0, healed.stdout
    assert stack.installed
    assert stack.done() == ["install", "waited"]


def test_an_update_whose_deletions_remove_a_wanted_release_fails_and_says_the_fix(stack: Stack) -> None:
    # With another parent the release is a new resource, and the engine deletes the former one at its end.
    wanted = {"IDENTIFIER": "three", "PARENT": "another"}
    done = stack.busbar("up", "--yes", "--skip-preview", **wanted)
    assert not stack.installed, done.stdout
    assert done.returncode == 1, done.stdout
    assert "Helm release gpu-operator/gpu-operator is not on the cluster" in done.stdout
    assert "busbar up dev --converge cluster" in done.stdout
    stack.done()
    healed = stack.busbar("up", "--yes", "--skip-preview", "--converge", "cluster", **wanted)
    assert healed.returncode == 0, healed.stdout
    assert stack.installed
    assert stack.done() == ["install", "waited"]
