"""`storage`: what each mode needs, and what would lose a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError
from stacks.training.package.config import load
from stacks.training.tests.support import configured, training

NFS = {"server": "10.0.0.5", "export": "/srv/checkpoints"}


def findings(**storage: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(configured(storage=storage))
    return [*map(str, caught.value.findings)]


def of_nfs(**change: Any) -> list[str]:
    return findings(mode="nfs", nfs={**NFS, **change})


def test_an_export_is_mounted_hard_with_several_connections_unless_other_options_are_given() -> None:
    storage = training(storage={"mode": "nfs", "nfs": NFS}).storage
    assert storage.nfs is not None
    assert storage.nfs.options == ["nfsvers=4.2", "hard", "noatime", "nconnect=8"]


def test_storage_is_off_by_default() -> None:
    storage = training().storage
    assert (storage.mode, storage.is_shared, storage.has_claim) == ("none", False, False)


@pytest.mark.parametrize(
    ("storage", "finding"),
    [
        (
            {"mode": "class", "class_name": "weka"},
            "storage.size: missing: storage.mode is class. Fix: give a size such as 10Ti",
        ),
        (
            {"mode": "class", "size": "1Ti"},
            "storage.class_name: missing: storage.mode is class. Fix: name a StorageClass of the cluster "
            "(kubectl get storageclass)",
        ),
        (
            {"mode": "nfs"},
            "storage.nfs: missing: storage.mode is nfs. Fix: give nfs.server and nfs.export, or "
            "nfs.from_cluster: true",
        ),
        (
            {"mode": "path", "path": "/mnt", "nfs": NFS},
            "storage.nfs: is not used: storage.mode is path. Fix: set storage.mode: nfs",
        ),
        (
            {"class_name": "weka"},
            "storage.class_name: 'weka' is not used: storage.mode is none. Fix: set storage.mode: class",
        ),
        (
            {"mode": "nfs", "nfs": NFS, "size": "1Ti"},
            "storage.size: '1Ti' is not used: storage.mode is nfs. Fix: set storage.mode: class",
        ),
        (
            {"claim": "data"},
            "storage.claim: 'data' is not used: storage.mode is none. Fix: set storage.mode: class",
        ),
        (
            {"mode": "class", "class_name": "Weka FS", "size": "1Ti"},
            "storage.class_name: 'Weka FS' is not the name of a Kubernetes object: lower-case letters, "
            "digits, '-' and '.'",
        ),
    ],
)
def test_a_key_that_the_mode_lacks_or_does_not_use_is_refused(storage: dict[str, Any], finding: str) -> None:
    assert findings(**storage) == [finding]


@pytest.mark.parametrize(
    ("option", "finding"),
    [
        ("soft", "gives up a write when the server is slow: the checkpoint is corrupt. Fix: use hard"),
        ("softerr", "gives up a write when the server is slow: the checkpoint is corrupt. Fix: use hard"),
        ("ro", "mounts for reading only: checkpoints are written"),
        ("nconnect=0", "is out of bounds: expected 1 to 16 connections"),
        ("nconnect=17", "is out of bounds: expected 1 to 16 connections"),
        ("nconnect", "is out of bounds: expected 1 to 16 connections"),
        ("hard,noatime", "is not one mount option, such as hard or nconnect=8"),
    ],
)
def test_a_mount_option_that_loses_a_checkpoint_or_mounts_nothing_is_refused(
    option: str, finding: str
) -> None:
    assert of_nfs(options=[option]) == [f"storage.nfs.options[0]: '{option}' {finding}"]


def test_an_option_that_is_given_twice_under_either_name_is_refused() -> None:
    assert of_nfs(options=["vers=3", "nfsvers=4.2"]) == ["storage.nfs.options: nfsvers is given 2 times"]


@pytest.mark.parametrize("server", ["nfs.storage.svc", "nfs.storage.svc.cluster.local"])
def test_a_service_of_the_cluster_is_refused_because_the_host_mounts(server: str) -> None:
    [finding] = of_nfs(server=server)
    assert "is the name of a Service: the host mounts" in finding


def test_an_export_without_a_server_is_refused() -> None:
    assert findings(mode="nfs", nfs={"export": "/srv"}) == [
        "storage.nfs.server: missing. Fix: give it, or set storage.nfs.from_cluster: true"
    ]
    assert findings(mode="nfs", nfs={"server": "10.0.0.5"}) == [
        "storage.nfs.export: missing. Fix: give it, or set storage.nfs.from_cluster: true"
    ]


def test_an_export_of_the_cluster_is_not_named_too() -> None:
    assert training(storage={"mode": "nfs", "nfs": {"from_cluster": True}}).storage.nfs is not None
    assert findings(mode="nfs", nfs={"from_cluster": True, "server": "10.0.0.9"}) == [
        "storage.nfs.server: '10.0.0.9' is given together with from_cluster. Fix: remove one of the two"
    ]
