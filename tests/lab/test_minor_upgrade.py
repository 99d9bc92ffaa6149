"""A minor upgrade of K3s under load, which cannot be taken back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from busbar.versions import release
from lab.mirror.artifacts import K3sRelease
from tests.support.api_load import ApiLoad
from tests.support.lab import PROJECT, SERVERS, Change, Lab

KUBECONFIG = str(PROJECT / ".busbar" / "dev" / "kubeconfig")


@pytest.fixture(scope="session")
def next_minor(real_k3s: str, next_k3s: K3sRelease) -> str:
    """The version of the next K3s, which is of another minor release."""
    first, version = release(real_k3s), release(next_k3s.version)
    assert first and version
    if first.minor == version.minor:
        pytest.skip(f"needs a real K3s 1.{first.minor + 1}, BUSBAR_LAB_K3S_NEXT is {next_k3s.version}")
    return next_k3s.version


pytestmark = [
    pytest.mark.drill(needs="two minor releases of a real K3s"),
    pytest.mark.usefixtures("next_minor"),
]


def _versions(lab: Lab) -> set[str]:
    """What the kubelets of all Nodes report."""
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    return {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes}


def _apiserver(lab: Lab, server: str) -> str:
    version: str = json.loads(lab.ssh(server, "k3s kubectl get --raw=/version"))["gitVersion"]
    return version


def test_a_minor_upgrade_loses_nothing_and_cannot_be_taken_back(
    lab: Lab, changed: Change, upgrade: Callable[[dict[str, Any]], None], real_k3s: str, next_minor: str
) -> None:
    assert _versions(lab) == {real_k3s}
    lab.kubectl("create configmap drill --from-literal=a=b")

    with ApiLoad(KUBECONFIG) as load:
        began = time.monotonic()
        changed(upgrade)
        print(f"{real_k3s} to {next_minor}: {time.monotonic() - began:.0f} s")
    print(load.account)
    assert not load.account.lost
    assert load.account.acknowledged <= load.account.watched
    assert load.account.repeated_twice == 0
    assert _versions(lab) == {next_minor}
    assert {_apiserver(lab, server) for server in SERVERS} == {next_minor}
    assert lab.voters() == set(SERVERS)
    assert lab.kubectl("get configmap drill -o jsonpath='{.data.a}'").strip() == "b"

    text = changed(lambda _: None, fails=True)
    assert f"set k3s.version to {next_minor} or later: a minor version cannot be downgraded" in text
    assert _versions(lab) == {next_minor}
