"""A training run whose texts change, with the real engine and API server; there are no nodes.

The tests are one story, in this order.
"""

from typing import Any

import pytest

from tests.engine.test_update_end import Stack
from tests.support.api_server import ApiServer

NAMESPACE = "/api/v1/namespaces/busbar-training"
JOBS = "/apis/batch/v1/namespaces/busbar-training/jobs"
PROGRAM = """
    import os
    from pathlib import Path
    from types import SimpleNamespace

    import pulumi
    import pulumi_kubernetes as kubernetes

    from busbar.components.engine.cluster import create_cluster_provider
    from stacks.training.package import components, proof as manifests
    from stacks.training.package.target import targets
    from stacks.training.tests.support import cluster, training

    ROOT = Path(__file__).parent
    printed = SimpleNamespace(stdout=pulumi.Output.from_input("{}"))
    on = SimpleNamespace(step=lambda *_, **__: printed)
    manifests._SCRIPT = f"# {os.environ['TEXT']}\\n{manifests._SCRIPT}"
    (ROOT / "program").mkdir(exist_ok=True)
    (ROOT / "program" / "main.py").write_text(f"# {os.environ['TEXT']}\\n")
    kubeconfig = (ROOT / "kubeconfig").read_text()
    opts = pulumi.ResourceOptions(provider=create_cluster_provider(kubeconfig, "one"))
    config = training(proof={"run": int(os.environ["RUN"])})
    [target] = targets(cluster(), config).values()
    namespace = kubernetes.core.v1.Namespace(
        "namespace", metadata={"name": "busbar-training"}, opts=opts
    )
    components.create_proof(on, config, target, ROOT / "program", namespace, [], opts)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    return Stack.of_chart(tmp_path_factory.mktemp("training-run"), server, PROGRAM, "templates/none.yaml", "")


def update(stack: Stack, run: int, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Job and the ConfigMap of the program after an update."""
    done = stack.up(RUN=str(run), TEXT=text)
    assert done.returncode == 0, done.stdout
    [job] = stack.server.api.list(JOBS)
    program = stack.server.api.get(f"{NAMESPACE}/configmaps/{job['metadata']['name']}")
    return job, program


def texts(job: dict[str, Any], program: dict[str, Any]) -> list[str]:
    """The first lines of the script and of the program."""
    [container] = job["spec"]["template"]["spec"]["containers"]
    return [
        next(line for line in container["command"][2].splitlines() if line.startswith("# text")),
        program["data"]["main.py"].strip(),
    ]


def test_another_text_changes_nothing_of_a_run_and_comes_with_the_next_one(stack: Stack) -> None:
    before = update(stack, 1, "text 1")
    assert texts(*before) == ["# text 1", "# text 1"]
    assert update(stack, 1, "text 2") == before
    after = update(stack, 2, "text 2")
    assert after[0]["metadata"]["name"] != before[0]["metadata"]["name"]
    assert texts(*after) == ["# text 2", "# text 2"]
