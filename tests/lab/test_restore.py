"""Three servers are restored from a snapshot of etcd: from that of a server, from S3, and after a kill."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.build.tools import S3_TOOL
from lab.topology import GATEWAY
from tests.support.lab import PROJECT, SERVERS, SNAPSHOTS, WORKERS, Lab, eventually

pytestmark = [pytest.mark.drill(needs="a real K3s"), pytest.mark.usefixtures("real_k3s")]

NAMESPACE = "drill-restore"
S3_PORT = 7070
BUCKET, FOLDER = "snapshots", "drill"
S3_KEYS = {"s3AccessKey": "drill-access-key", "s3SecretKey": "drill-secret-key"}


def _object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **fields}


def _pod(name: str, worker: str) -> dict[str, Any]:
    containers = [{"name": "pause", "image": "rancher/mirrored-pause:3.6"}]
    return _object("Pod", name, spec={"nodeName": worker, "containers": containers})


def _names(lab: Lab, kind: str) -> set[str]:
    found = json.loads(lab.kubectl(f"-n {NAMESPACE} get {kind} -o json"))["items"]
    return {each["metadata"]["name"] for each in found} - {"kube-root-ca.crt"}


def _runs(lab: Lab, pod: str) -> bool:
    phase = lab.kubectl(f"-n {NAMESPACE} get pod {pod} --ignore-not-found -o jsonpath='{{.status.phase}}'")
    return phase == "Running"


def _as_it_was(lab: Lab) -> None:
    """What a restore must leave, apart from the objects: three voters, all Nodes Ready, nothing to change."""
    assert lab.voters() == set(SERVERS)
    for node in (*SERVERS, *WORKERS):
        assert lab.conditions(node)["Ready"] == "True", node
    lab.busbar("verify", "dev")
    said = lab.busbar("up", "dev", "--yes", "--skip-preview")
    assert "resources: nothing to do" in said, said


@pytest.fixture
def objects(lab: Lab) -> Iterator[set[str]]:
    """Objects, and a pod on worker-1, of which a snapshot is taken; the names of the ConfigMaps."""
    names = {f"before-{number}" for number in range(20)}
    lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = f"get serviceaccount default -n {NAMESPACE} --ignore-not-found -o name"
    eventually(lambda: lab.kubectl(account) != "", 60, "the service account of the namespace")
    lab.apply(
        *(_object("ConfigMap", name, data={"key": name}) for name in sorted(names)),
        _object("Secret", "before", stringData={"key": "kept"}),
        _pod("before", "worker-1"),
    )
    eventually(lambda: _runs(lab, "before"), 90, "the pod runs")
    yield names
    lab.kubectl(f"delete namespace {NAMESPACE} --ignore-not-found")


def test_a_cluster_is_as_it_was_at_the_snapshot_and_goes_on(lab: Lab, objects: set[str]) -> None:
    # Of server 2: server 1, which initialised the cluster, must join it and not make another one.
    name = lab.save_snapshot("server-2")
    listed = lab.run(sys.executable, "-m", "busbar", "snapshots", "dev")
    assert listed.returncode == 0 and name in listed.stdout, listed.stdout + listed.stderr
    lab.kubectl(f"-n {NAMESPACE} delete configmaps --all")
    lab.kubectl(f"-n {NAMESPACE} delete secret before")
    lab.kubectl(f"-n {NAMESPACE} delete pod before --grace-period=1")
    lab.apply(_object("ConfigMap", "after"))

    unknown = lab.restore("--snapshot", "no-such", "--yes")
    assert unknown.returncode == 1
    assert "no snapshot no-such" in unknown.stderr and name in unknown.stderr
    unconfirmed = lab.restore("--snapshot", name)
    assert unconfirmed.returncode == 64 and "pass --yes" in unconfirmed.stderr
    assert "after" in _names(lab, "configmaps"), "nothing was changed yet"

    began = time.monotonic()
    done = lab.restore("--snapshot", name, "--yes")
    print(f"{done.stdout}{done.stderr}restored in {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _names(lab, "configmaps") == objects
    secret = lab.kubectl(f"-n {NAMESPACE} get secret before -o jsonpath='{{.data.key}}'")
    assert base64.b64decode(secret) == b"kept"
    eventually(lambda: _runs(lab, "before"), 90, "the restored pod runs")
    lab.apply(*(_pod(f"after-{worker}", worker) for worker in WORKERS))
    for worker in WORKERS:
        eventually(partial(_runs, lab, f"after-{worker}"), 90, f"a new pod runs on {worker}")
    for server in ("server-1", "server-3"):
        assert "etcd-before-restore-" in lab.ssh(server, "ls /var/lib/rancher/k3s/server/db")
    _as_it_was(lab)


def test_a_cluster_whose_servers_have_all_lost_their_data_is_restored(lab: Lab, objects: set[str]) -> None:
    name = lab.save_snapshot("server-2")
    lab.apply(_object("ConfigMap", "after"))
    for server in SERVERS:
        lab.ssh(server, f"systemctl stop k3s && rm -rf {SNAPSHOTS.rpartition('/')[0]}/etcd")

    began = time.monotonic()
    done = lab.restore("--snapshot", name, "--yes")
    print(f"{done.stdout}{done.stderr}restored from nothing in {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _names(lab, "configmaps") == objects
    eventually(lambda: _runs(lab, "before"), 90, "the restored pod runs")
    _as_it_was(lab)


def test_an_interrupted_restore_is_finished_by_the_same_command(lab: Lab, objects: set[str]) -> None:
    name = lab.save_snapshot("server-1")
    lab.kubectl(f"-n {NAMESPACE} delete configmaps --all")
    command = (sys.executable, "-m", "busbar", "restore", "dev", "--snapshot", name, "--yes")
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=lab.environment,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "server-2: joining" in line:
            process.kill()
    process.wait()
    assert any("server-2: joining" in line for line in seen), "".join(seen)
    marked = lab.ssh("server-3", "ls /var/lib/busbar/restoring")
    assert marked.strip() == "/var/lib/busbar/restoring", "an update would leave this server alone"

    done = lab.restore("--snapshot", name, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "an unfinished restore" in done.stdout
    assert _names(lab, "configmaps") == objects
    _as_it_was(lab)


@pytest.fixture
def bucket(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """The folder of a bucket on an S3 server that the hosts reach, and that K3s has been told to use."""
    assert S3_TOOL.output.exists(), "python -m lab build --drills builds it"
    (tmp_path / BUCKET).mkdir()
    words = (S3_TOOL.output, "--quiet", "--port", f"{GATEWAY}:{S3_PORT}", "posix", tmp_path)
    keys = {"ROOT_ACCESS_KEY": S3_KEYS["s3AccessKey"], "ROOT_SECRET_KEY": S3_KEYS["s3SecretKey"]}
    server = subprocess.Popen(words, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
    try:
        eventually(_s3_answers, 30, "the S3 server answers")
        path = lab.config_with(_with_bucket)
        for key, value in S3_KEYS.items():
            setting = ("config", "set", "--secret", f"busbar:{key}", value)
            done = lab.pulumi(*setting, "--config-file", str(path), "--stack", "dev")
            assert done.returncode == 0, done.stderr
        lab.updated("--config-file", str(path))
        yield tmp_path / BUCKET
        lab.updated()
    finally:
        server.terminate()
        server.wait()


def _s3_answers() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((GATEWAY, S3_PORT)) == 0


def _with_bucket(cluster: dict[str, Any]) -> None:
    cluster["validation"]["enabled"] = False
    s3 = {"endpoint": f"{GATEWAY}:{S3_PORT}", "bucket": BUCKET, "folder": FOLDER}
    cluster["k3s"]["snapshots"] = {"schedule": "* * * * *", "retention": 3, "s3": s3}
    cluster["k3s"]["server_args"] = {"etcd-s3-insecure": True}


def test_a_cluster_is_restored_from_s3_when_no_server_has_the_snapshot(
    lab: Lab, bucket: Path, objects: set[str]
) -> None:
    def on_schedule() -> bool:
        """Whether every server has copied a snapshot to the bucket by itself."""
        stored = [path.name for path in (bucket / FOLDER).glob("etcd-snapshot-*")]
        return all(any(f"-{server}-" in name for name in stored) for server in SERVERS)

    eventually(on_schedule, 120, "a scheduled snapshot of every server in the bucket")
    name = lab.save_snapshot("server-3")
    assert (bucket / FOLDER / name).stat().st_size > 0
    lab.ssh("server-3", f"rm {SNAPSHOTS}/{name}")
    lab.kubectl(f"-n {NAMESPACE} delete configmaps --all")

    listed = json.loads(lab.run(sys.executable, "-m", "busbar", "snapshots", "dev", "--json").stdout)
    assert (name, "s3") in {(each["name"], each["where"]) for each in listed["snapshots"]}
    without = lab.restore("--snapshot", name, "--yes")
    assert without.returncode == 1 and f"{name} (s3, " in without.stderr
    unknown = lab.restore("--snapshot", "no-such", "--s3", "--yes")
    assert unknown.returncode == 1 and "no snapshot no-such in the bucket" in unknown.stderr

    began = time.monotonic()
    done = lab.restore("--snapshot", name, "--s3", "--yes")
    print(f"restored from S3 in {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _names(lab, "configmaps") == objects
    assert lab.voters() == set(SERVERS)
