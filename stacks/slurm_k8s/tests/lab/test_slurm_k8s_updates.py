"""Updates of stacks/slurm_k8s on the lab's cluster: pods of slurmd are replaced under jobs and drains.

The tests are one story, in this order. The image that is new has another name and the same content.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from stacks.slurm_k8s.tests.lab.conftest import SLURM, Slurm, until
from tests.support.lab import Lab, read_until

pytestmark = pytest.mark.drill

NEW_TAG = "new"
CTR = "k3s ctr images"


def config_with(lab: Lab, change: Callable[[dict[str, Any]], None]) -> tuple[str, str]:
    """Arguments of an update with a changed configuration."""
    stack = yaml.safe_load((SLURM / "Pulumi.dev.yaml").read_text())
    change(stack["config"]["busbar-slurm_k8s:slurm_k8s"])
    path = lab.temporary / f"Pulumi.slurm-{len(list(lab.temporary.iterdir()))}.yaml"
    path.write_text(yaml.safe_dump(stack))
    return "--config-file", str(path)


def new_image(config: dict[str, Any]) -> None:
    config["values"]["nodesets"] = {"lab": {"slurmd": {"image": {"tag": NEW_TAG}}}}


def updated(lab: Lab, *arguments: str) -> str:
    started = time.monotonic()
    done = lab.up(*arguments, cwd=SLURM)
    text = done.stdout + done.stderr
    print(text, f"updated after {time.monotonic() - started:.1f} s")
    assert done.returncode == 0, text
    return text


def images(lab: Lab) -> set[str]:
    words = "get pods -n slurm -l app.kubernetes.io/component=worker -o json"
    found = json.loads(lab.kubectl(words))["items"]
    return {each["spec"]["containers"][0]["image"].rpartition(":")[2] for each in found}


def restarts(slurm: Slurm, job: str) -> int:
    return int(slurm(f"scontrol --oneliner show job {job} | sed 's/.* Restarts=//; s/ .*//'"))


@contextmanager
def watched(slurm: Slurm) -> Iterator[list[dict[str, str]]]:
    """The states of all nodes, again and again."""
    seen: list[dict[str, str]] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            try:
                seen.append(slurm.nodes())
            except AssertionError:
                continue  # the login pod or slurmctld is away

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module", autouse=True)
def image(lab: Lab, printed: str) -> None:
    for worker in ("worker-1", "worker-2"):
        lab.ssh(
            worker, f"{CTR} tag --force docker.io/busbar-lab/slurmd:1 docker.io/busbar-lab/slurmd:{NEW_TAG}"
        )


def test_a_new_image_replaces_one_pod_after_the_other_and_kills_no_job(lab: Lab, slurm: Slurm) -> None:
    nodes = slurm.on().values()
    running = [slurm.submit("sleep 25", "-N1", f"--nodelist={node}", "--gpus-per-node=2") for node in nodes]
    until(lambda: {slurm.state(job) for job in running} == {"RUNNING"}, 30, "jobs run")
    waiting = [slurm.submit("sleep 3", "-N1", "--gpus-per-node=2") for _ in range(4)]
    with watched(slurm) as seen:
        updated(lab, *config_with(lab, new_image))
    assert images(lab) == {NEW_TAG}
    until(lambda: {slurm.state(job) for job in waiting} == {"COMPLETED"}, 60, "the waiting jobs have run")
    assert {slurm.state(job) for job in running} == {"COMPLETED"}
    assert {restarts(slurm, job) for job in running + waiting} == {0}
    in_service = [sum(each in ("idle", "allocated", "mixed") for each in look.values()) for look in seen]
    print("nodes in service", in_service)
    assert min(in_service) >= 1


def test_a_drain_of_a_person_is_kept_by_an_update_that_is_killed_four_times(lab: Lab, slurm: Slurm) -> None:
    drained = slurm.on()["worker-2"]
    slurm(f"scontrol update nodename={drained} state=drain reason='ticket 12'")
    # The drained node is the last one. At the fourth time it is back, and not drained yet.
    for text in ("slurm-change", "slurm-roll", "slurmd: 0 of", f"node {drained} is not DRAIN again yet"):
        with subprocess.Popen(
            ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev"],
            cwd=SLURM, env=lab.environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as up:  # fmt: skip
            print(read_until(up.stdout, text)[-400:], slurm.nodes())
            os.killpg(up.pid, signal.SIGKILL)
        lab.pulumi("cancel", "--yes", "--stack", "dev", cwd=SLURM)
    updated(lab)
    assert images(lab) == {"1"}
    states = slurm.nodes()
    assert states.pop(drained) == "drained"
    assert [*states.values()] == ["idle"]
    assert slurm("sinfo -h -R -o %E").splitlines() == ["ticket 12"]
    assert "busbar/slurm-drain" not in lab.kubectl("get nodes -o yaml")
    slurm(f"scontrol update nodename={drained} state=resume")


def test_changed_gres_are_in_slurmctld_before_a_pod_has_them(lab: Lab, slurm: Slurm) -> None:
    def other_type(config: dict[str, Any]) -> None:
        config["pools"]["lab"]["gpu_type"] = "b200"

    updated(lab, *config_with(lab, other_type))
    assert set(slurm("sinfo -h -N -o %G").split()) == {"gpu:b200:2"}
    assert set(slurm.nodes().values()) == {"idle"}
    updated(lab)


@pytest.mark.parametrize("pending", [False, True], ids=["unchanged", "changed"])
def test_an_operator_that_starts_without_slurmrestd_kills_no_job(
    lab: Lab, slurm: Slurm, pending: bool
) -> None:
    before = lab.uids("pod -l app.kubernetes.io/component=worker -n slurm")
    nodes = slurm.on().values()
    jobs = [slurm.submit("sleep 40", "-N1", f"--nodelist={node}", "--gpus-per-node=2") for node in nodes]
    until(lambda: {slurm.state(job) for job in jobs} == {"RUNNING"}, 30, "jobs run")
    scale(lab, "slinky", "slurm-operator", 0)
    scale(lab, "slurm", "slurm-restapi", 0)
    path = "/spec/template/metadata/annotations/drill"
    if pending:
        patch(lab, [{"op": "add", "path": path, "value": "pending"}])
    scale(lab, "slinky", "slurm-operator", 1)
    until(lambda: {slurm.state(job) for job in jobs} == {"COMPLETED"}, 90, "jobs have completed")
    assert {restarts(slurm, job) for job in jobs} == {0}
    assert lab.uids("pod -l app.kubernetes.io/component=worker -n slurm") == before
    ready = "get deploy slurm-restapi -n slurm -o 'jsonpath={.status.readyReplicas}'"
    until(lambda: lab.kubectl(ready).strip() == "2", 60, "slurmrestd is ready")
    if pending:
        patch(lab, [{"op": "remove", "path": path}])


def scale(lab: Lab, namespace: str, name: str, replicas: int) -> None:
    lab.kubectl(f"scale deploy {name} -n {namespace} --replicas={replicas}")
    status = f"get deploy {name} -n {namespace} -o 'jsonpath={{.status.replicas}}'"
    until(lambda: (lab.kubectl(status).strip() or "0") == str(replicas), 60, f"{name} has {replicas} pods")


def patch(lab: Lab, change: list[dict[str, str]]) -> None:
    lab.kubectl(f"patch nodeset slurm-worker-lab -n slurm --type=json -p '{json.dumps(change)}'")
