"""Secrets inside `busbar:cluster` are refused with the key where they belong, and never shown."""

from typing import Any

import pytest

from busbar.config import ConfigError, registry_credentials
from tests.support.clusters import site
from tests.unit.config.edits import findings

SECRET = "hunter2-do-not-print"
PRIVATE_KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n"


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"ssh": {"agent": True, "private_key": PRIVATE_KEY}}, "ssh.private_key"),
        ({"ssh": {"agent": True, "privateKey": SECRET}}, "ssh.privateKey"),
        ({"ssh": {"agent": True, "passphrase": SECRET}}, "ssh.passphrase"),
        ({"ssh": {"agent": True, "password": SECRET}}, "ssh.password"),
        ({"ssh": {"key_file": PRIVATE_KEY}}, "ssh.key_file"),
        ({"k3s": {"server_args": {"token": SECRET}}}, "k3s.server_args.token"),
        ({"k3s": {"server_args": {"etcd-s3-secret-key": SECRET}}}, "k3s.server_args.etcd-s3-secret-key"),
        (
            {"k3s": {"registries": {"configs": {"r": {"auth": {"a": SECRET}}}}}},
            "k3s.registries.configs.r.auth",
        ),
        # Keys of registries and hubs, wherever they are.
        ({"gpu_operator": {"values": {"a": {"apiKey": SECRET}}}}, "gpu_operator.values.a.apiKey"),
        ({"gpu_operator": {"values": {"env": [{"a": f"nvapi-{SECRET}"}]}}}, "gpu_operator.values.env[0].a"),
        ({"validation": {"env": {"A": f"hf_{'b' * 34}"}}}, "validation.env.A"),
        ({"validation": {"env": {"WANDB_API_KEY": SECRET}}}, "validation.env.WANDB_API_KEY"),
        ({"gpu_operator": {"values": {"x": {"secure": SECRET}}}}, "gpu_operator.values.x"),
    ],
)
def test_a_secret_is_refused_with_its_place_and_never_shown(sections: dict[str, Any], path: str) -> None:
    data = site()
    data.update(sections)
    said = findings(data)
    [found] = [finding for finding in said if finding.startswith(f"{path}: ")]
    assert found.startswith(f"{path}: is a secret inside busbar:cluster. Fix: remove it")
    assert "busbar:KEY --stack STACK` sets: sshPrivateKey, " in found and "a Kubernetes Secret" in found
    assert SECRET not in str(said)


LIKE_SECRETS = [
    "DB_PASSWORD", "PASSWD", "HF_TOKEN", "CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "S3_SECRET_KEY", "apiKey",
]  # fmt: skip


def test_variables_that_are_called_like_a_secret_are_refused_and_ordinary_ones_are_not() -> None:
    ordinary = {"NCCL_DEBUG": "INFO", "NCCL_IB_SPLIT_DATA_ON_QPS": 0, "TOKENIZERS": "1"}
    said = findings(site(validation={"env": ordinary | dict.fromkeys(LIKE_SECRETS, SECRET)}))
    assert {each.partition(": ")[0] for each in said} == {f"validation.env.{name}" for name in LIKE_SECRETS}


def test_logins_for_registries_are_read_by_registry() -> None:
    text = '{"registry.example.com": {"username": "me", "password": "pw"}}'
    assert registry_credentials(text) == {"registry.example.com": {"username": "me", "password": "pw"}}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (SECRET, "is not JSON (character 0)"),
        (f'["{SECRET}"]', "is not an object of registries"),
        ("{}", "is not an object of registries"),
        (f'{{"r.example": "{SECRET}"}}', "'r.example' has no login: expected"),
        (f'{{"r.example": {{"pasword": "{SECRET}"}}}}', "'r.example' has no login: expected"),
    ],
)
def test_logins_that_cannot_be_read_are_refused_without_showing_them(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry_credentials(text)
    assert fault in str(caught.value)
    assert SECRET not in str(caught.value)
