"""From the minor release of K3s before to this one, under load: `make test-upgrade` builds the former."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from busbar.versions import K3S
from lab.build.official import architecture
from lab.mirror import artifacts
from lab.offline import PREVIOUS_K3S
from tests.support.api_load import ApiLoad
from tests.support.lab import SERVERS, Change, Lab

pytestmark = pytest.mark.upgrade


def _versions(lab: Lab) -> set[str]:
    """What the kubelets of all Nodes report."""
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    return {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes}


def _kubeconfig(lab: Lab, folder: Path) -> str:
    """That of the new cluster: `pulumi up` leaves the file in .busbar as it was."""
    done = lab.pulumi("stack", "output", "kubeconfig", "--show-secrets", "--stack", "dev")
    assert done.returncode == 0, done.stderr
    path = folder / "kubeconfig"
    path.write_text(done.stdout, encoding="utf-8")
    return str(path)


def _apiserver(lab: Lab, server: str) -> str:
    version: str = json.loads(lab.ssh(server, "k3s kubectl get --raw=/version"))["gitVersion"]
    return version


def test_a_cluster_of_the_minor_release_before_is_upgraded_and_cannot_go_back(
    lab: Lab, changed: Change, tmp_path: Path
) -> None:
    sha256 = artifacts.publish_previous()

    def previous(cluster: dict[str, Any]) -> None:
        cluster["k3s"] |= {"version": PREVIOUS_K3S, "sha256": {architecture(): sha256}}

    done = lab.pulumi("destroy", "--yes", "--skip-preview", "--suppress-progress", "--stack", "dev")
    assert done.returncode == 0, done.stdout + done.stderr
    changed(previous)
    assert _versions(lab) == {PREVIOUS_K3S}
    lab.kubectl("create configmap drill --from-literal=a=b")

    with ApiLoad(_kubeconfig(lab, tmp_path)) as load:
        began = time.monotonic()
        changed(lambda _: None)
        print(f"{PREVIOUS_K3S} to {K3S}: {time.monotonic() - began:.0f} s")
    print(load.account)
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
    assert load.account.repeated_twice == 0
    assert _versions(lab) == {K3S}
    assert {_apiserver(lab, server) for server in SERVERS} == {K3S}
    assert lab.voters() == set(SERVERS)
    assert lab.kubectl("get configmap drill -o jsonpath='{.data.a}'").strip() == "b"
    lab.kubectl("delete configmap drill")

    text = changed(previous, fails=True)
    assert f"set k3s.version to {K3S} or later: a minor version cannot be downgraded" in text
    assert _versions(lab) == {K3S}
