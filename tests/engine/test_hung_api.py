"""An update whose Kubernetes API accepts connections and never answers, with the real engine and provider."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.engine.test_update_end import PROGRAM, TEMPLATE, Stack
from tests.support.api_server import ApiServer

# An object whose change needs the API, and no step before it.
MORE = """
    kubernetes.core.v1.ConfigMap(
        "probe",
        metadata={"name": "probe", "namespace": "default"},
        data={"data": os.environ.get("DATA", "")},
        opts=pulumi.ResourceOptions(provider=provider),
    )
    check_after_deletions(kubeconfig, operator.installed)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    folder = tmp_path_factory.mktemp("hung-api")
    program = PROGRAM.replace("    check_after_deletions(kubeconfig, operator.installed)\n", MORE)
    made = Stack.of_chart(folder, server, program, "templates/all.yaml", TEMPLATE)
    first = made.busbar("up", "--yes", "--skip-preview")
    assert first.returncode == 0, first.stdout
    return made


@contextmanager
def hung(server: ApiServer) -> Iterator[None]:
    """Freeze the API server: the kernel goes on accepting its connections."""
    [process] = [
        each for each in psutil.Process().children(recursive=True)
        if "kube-apiserver" in each.cmdline() and str(server.folder) in " ".join(each.cmdline())
    ]  # fmt: skip
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.drill
def test_the_update_ends_and_names_the_step_and_the_next_one_finishes_it(stack: Stack) -> None:
    began = time.monotonic()
    with hung(stack.server):
        done = stack.busbar("up", "--yes", "--skip-preview", DATA="new")
    print(f"exit code {done.returncode} after {time.monotonic() - began:.0f} s\n{done.stdout}")
    assert done.returncode == 1
    assert "probe: configured Kubernetes cluster is unreachable" in done.stdout
    again = stack.busbar("up", "--yes", "--skip-preview", DATA="new")
    assert again.returncode == 0, again.stdout
