"""An invalid configuration creates nothing and is reported with all its errors."""

from typing import Any

import pulumi
import pytest

from tests.program.answers import healthy, performed
from tests.program.harness import Run, run_program
from tests.support.clusters import site


def refused(cluster: dict[str, Any], **options: Any) -> Run:
    run = run_program(cluster, healthy(site()), **options)
    assert isinstance(run.error, pulumi.RunError)
    assert [resource.type for resource in run.resources.values()] == ["pulumi:pulumi:Stack"]
    return run


@pytest.mark.parametrize(
    ("changes", "worker", "says"),
    [
        ({"servers": 2}, {"address": "10.0.0.300"},
         ["hosts.workers[1].address: '10.0.0.300' is not", "hosts.servers: got 2, expected an odd number"]),
        ({"ssh": {}}, {"name": "gpu-1"},
         ["hosts.workers[1].name: 'gpu-1' is also the name of hosts.workers[0]", "busbar:sshPrivateKey"]),
        ({"k3s": {"checksums_file": "no/such/file.txt"}}, {}, ["'no/such/file.txt' cannot be read"]),
    ],
    ids=["single values", "several values", "a file"],
)  # fmt: skip
def test_errors_are_in_one_message(changes: dict[str, Any], worker: dict[str, str], says: list[str]) -> None:
    cluster = site(**changes)
    cluster["hosts"]["workers"][1] |= worker
    error = str(refused(cluster).error)
    assert [text for text in says if text not in error] == []


def test_a_private_key_stored_in_plain_text_is_refused_without_showing_it() -> None:
    run = refused(site(ssh={}), config={"busbar:sshPrivateKey": "MOCK-SSH-KEY"})
    assert "busbar:sshPrivateKey: is stored in plain text" in str(run.error)
    assert "MOCK-SSH-KEY" not in str(run.error)


def test_an_unknown_key_beside_the_cluster_is_refused_with_the_nearest_known_one() -> None:
    keys = {"busbar:sshPrivatKey": "MOCK-SSH-KEY", "aws:region": "eu-central-1"}
    text = str(refused(site(), config=keys).error)
    assert text.endswith("busbar:sshPrivatKey: unknown key; did you mean 'sshPrivateKey'?")


@pytest.mark.parametrize("value", ["not json", "[]", '{"registry.example.com": "me:MOCK-PASSWORD"}'])
def test_credentials_that_cannot_be_read_are_refused_without_showing_them(value: str) -> None:
    run = run_program(site(), healthy(site()), secrets={"registryCredentials": value})
    assert run.error is not None
    assert "registryCredentials" in str(run.error)
    assert "MOCK-PASSWORD" not in str(run.error)
    assert run.custom == []


def test_what_is_valid_but_risky_is_a_warning_of_the_update() -> None:
    run = performed(site(workers={"h100": 1}))
    assert any(message.startswith("hosts.workers: with one worker") for message in run.messages)
