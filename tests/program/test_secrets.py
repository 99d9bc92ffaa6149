"""Secrets are marked as such everywhere, and are in no place where the mark has no effect."""

import base64
import json
import re
from pathlib import Path

import pytest

from busbar import config
from tests.program.answers import CLIENT_KEY, TOKEN, healthy, performed
from tests.program.harness import COMMAND, LOCAL, Run, run_program, texts
from tests.support.clusters import site

MARKS = {key: f"MOCK-{key}-MOCK" for key in config.SECRETS}
LOGIN = {"username": "me", "password": MARKS["registryCredentials"]}
SECRETS = MARKS | {
    "sshPrivateKey": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARKS['sshPrivateKey']}\n",
    "registryCredentials": json.dumps({"registry.example.com": LOGIN}),
}
NEEDLES = (*MARKS.values(), TOKEN, CLIENT_KEY)


@pytest.fixture(scope="module")
def run() -> Run:
    """A site that uses every secret there is."""
    cluster = site(
        ssh={},
        k3s={
            "sha256": {"amd64": "ab" * 32},
            "snapshots": {"s3": {"bucket": "etcd"}},
            "registries": {"mirrors": {"*": {"endpoint": ["https://registry.example.com"]}}},
        },
    )
    done = run_program(cluster, healthy(cluster), secrets=SECRETS)
    assert done.error is None
    return done


def shown(text: str) -> list[str]:
    """Which secrets a text shows, also in the base64 that payloads travel in."""
    hidden = [
        base64.b64decode(word).decode(errors="replace")
        for word in re.findall(r"[A-Za-z0-9+/]{24,}={0,2}", text)
        if len(word) % 4 == 0
    ]
    return [needle for needle in NEEDLES if any(needle in part for part in (text, *hidden))]


def test_the_secrets_reach_the_hosts_on_stdin_each_under_its_own_key(run: Run) -> None:
    stdin = run.named("busbar-control-plane@server-1").inputs["stdin"]
    keys = ("registryCredentials", "s3AccessKey", "s3SecretKey")
    assert set(shown(stdin)) >= {TOKEN, *(MARKS[key] for key in keys)}
    written = run.config("busbar-control-plane@server-1")
    assert written["token"] == f"{TOKEN}-busbar-control-plane-server-token"
    assert written["agent-token"] == f"{TOKEN}-busbar-control-plane-agent-token"
    assert written["etcd-s3-access-key"] == MARKS["s3AccessKey"]
    assert written["etcd-s3-secret-key"] == MARKS["s3SecretKey"]


@pytest.mark.parametrize("key", config.SECRETS)
def test_every_secret_of_the_stack_is_used_and_marked_where_it_is(run: Run, key: str) -> None:
    used = [secret for r in run.custom for _, text, secret in texts(r.raw) if MARKS[key] in shown(text)]
    assert used and all(used)


@pytest.mark.parametrize("verb", ["create", "update", "delete"])
def test_no_secret_is_in_the_text_of_a_command(run: Run, verb: str) -> None:
    for command in run.of_type(COMMAND) + run.of_type(LOCAL):
        assert shown(command.inputs.get(verb) or "") == [], command.name


def test_no_secret_is_sent_to_a_provider_without_its_mark(run: Run) -> None:
    leaks = [
        (resource.name, path)
        for resource in run.resources.values()
        for path, text, secret in texts(resource.raw)
        if not secret and shown(text)
    ]
    assert leaks == []


def test_secret_outputs_are_marked_and_the_kubeconfig_is_the_only_one_of_the_stack(run: Run) -> None:
    leaks = [
        (urn, path)
        for urn, outputs in run.registered_outputs.items()
        for path, text, secret in texts(outputs)
        if not secret and shown(text)
    ]
    assert leaks == []
    secret = {path.split(".")[0] for path, _, is_secret in texts(run.raw_outputs) if is_secret}
    assert secret == {"kubeconfig"}
    assert "https://192.0.2.1:6443" in run.outputs["kubeconfig"]


def test_the_kubeconfig_command_marks_its_output_and_prints_nothing(run: Run) -> None:
    command = run.named("busbar-control-plane-kubeconfig")
    assert "stdout" in command.request.additionalSecretOutputs
    assert command.inputs["logging"] == "none"


def test_a_key_in_a_file_reaches_the_engine_as_a_secret_only(tmp_path: Path) -> None:
    (tmp_path / "id").write_text(SECRETS["sshPrivateKey"])
    run = performed(site(ssh={"key_file": str(tmp_path / "id")}))
    sent = (found for each in run.custom for found in texts(each.raw))
    found = {(path, secret) for path, text, secret in sent if MARKS["sshPrivateKey"] in text}
    assert found == {("connection.privateKey", True)}


def test_with_the_agent_no_connection_has_a_key() -> None:
    run = performed(site(ssh={"agent": True}))
    assert all("privateKey" not in c.inputs["connection"] for c in run.of_type(COMMAND))
