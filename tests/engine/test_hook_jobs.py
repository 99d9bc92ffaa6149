"""A hook Job that cannot run, and a kind that the API learns late: real engine, Helm and API server.

There are no nodes.
The tests are one story, in this order.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess
from typing import Any

import pytest

from busbar.kube.client import ApiError
from busbar.kube.wait import Deadline, Pending, SystemClock, wait_until
from tests.engine.test_update_end import NAMESPACE, PROGRAM, Stack
from tests.support.api_server import ApiServer

CHART = 'chart=str(ROOT / "chart")'
SETTINGS = f'{CHART}, timeout_seconds=20, enabled="OFF" not in os.environ'
JOB = "/apis/batch/v1/namespaces/gpu-operator/jobs/upgrade-crd"
# So that a test sees when the program has warned.
WARNS = """
    def warn(text, said=pulumi.warn):
        said(text)
        (ROOT / "warned").write_text(text)

    def await_kinds(*words, known=helm.releases.await_kinds):
        (ROOT / "asked").write_text("")
        return known(*words)

    helm.HOOK_SECONDS, pulumi.warn, helm.releases.await_kinds = 2, warn, await_kinds
    check_after_deletions(kubeconfig, operator.installed)
"""
TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata:
  name: upgrade-crd
  annotations:
    helm.sh/hook: pre-install,pre-upgrade,pre-delete
    helm.sh/hook-delete-policy: hook-succeeded,before-hook-creation
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: crd, image: nothing}]
"""
PENDING = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
LATE = "apiVersion: tiny.example.com/v1\nkind: Late\nmetadata: {name: one}\n"
NAMED = "hook Job gpu-operator/upgrade-crd: upgrade-crd-x: Unschedulable: 0/3 nodes"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    folder = tmp_path_factory.mktemp("hook-jobs")
    assert CHART in PROGRAM
    program = PROGRAM.replace(CHART, SETTINGS).replace(
        "    check_after_deletions(kubeconfig, operator.installed)\n", WARNS
    )
    return Stack.of_chart(folder, server, program, "templates/all.yaml", TEMPLATE)


def update(
    stack: Stack, *then: Callable[[ApiServer], Any], former: str = "", **environment: str
) -> CompletedProcess[str]:
    """An update; THEN is done once Helm has made a Job of another uid than FORMER."""

    def made() -> bool | Pending:
        found = uid(stack)
        return True if found and found != former else Pending("no Job yet")

    with ThreadPoolExecutor() as pool:
        running = pool.submit(stack.busbar, "up", "--yes", "--skip-preview", **environment)
        wait_until(made, Deadline(SystemClock(), 120), poll_seconds=0.2)
        for step in then:
            step(stack.server)
        return running.result()


def uid(stack: Stack) -> str:
    try:
        return str(stack.server.api.get(JOB)["metadata"]["uid"])
    except ApiError as error:
        assert error.not_found
        return ""


def is_pending(server: ApiServer) -> None:
    """The scheduler finds no node for the pod of the Job."""
    labels = {"batch.kubernetes.io/job-name": "upgrade-crd"}
    metadata = {"name": "upgrade-crd-x", "namespace": "gpu-operator", "labels": labels}
    spec = {"containers": [{"name": "crd", "image": "nothing"}]}
    server.kubectl(
        "apply", "-f", "-", objects=[{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]
    )
    server.api.merge(f"{NAMESPACE}/pods/upgrade-crd-x/status", {"status": {"conditions": [PENDING]}})


def completes(server: ApiServer) -> None:
    at = server.api.get(JOB)["metadata"]["creationTimestamp"]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at, "lastProbeTime": at}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    status = {"startTime": at, "completionTime": at, "succeeded": 1, "conditions": conditions}
    server.api.merge(f"{JOB}/status", {"status": status})


def test_a_hook_job_that_cannot_run_is_named_by_the_installation_that_it_fails(stack: Stack) -> None:
    done = update(stack, is_pending)
    assert done.returncode == 1, done.stdout
    assert NAMED in done.stdout


def test_the_next_update_installs_the_release_once_the_job_can_run(stack: Stack) -> None:
    done = update(stack, completes, former=uid(stack))
    assert done.returncode == 0, done.stdout
    assert stack.installed


def test_a_hook_job_for_which_an_uninstallation_waits_is_named_and_ends_it_when_it_has_run(
    stack: Stack,
) -> None:
    warned = stack.folder / "warned"

    def is_named(_: ApiServer) -> None:
        waiting = Pending("nothing is named")
        wait_until(lambda: warned.exists() or waiting, Deadline(SystemClock(), 60), poll_seconds=0.5)

    done = update(stack, is_pending, is_named, completes, OFF="1")
    assert f"an uninstallation waits for the {NAMED}" in done.stdout
    assert done.returncode == 0, done.stdout
    assert not stack.installed


def test_an_installation_is_repeated_when_the_api_has_learned_of_a_kind(stack: Stack) -> None:
    (stack.folder / "chart/templates/all.yaml").write_text(LATE)
    asked, waiting = stack.folder / "asked", Pending("Helm has not failed")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(stack.up)
        wait_until(lambda: asked.exists() or waiting, Deadline(SystemClock(), 120), poll_seconds=0.2)
        stack.server.define("tiny.example.com", "v1", "Late")
        done = running.result()
    assert done.returncode == 0, done.stdout
    assert stack.installed
