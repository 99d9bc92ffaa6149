"""How the engine logs in to the hosts."""

from pathlib import Path
from typing import Any

import yaml

from tests.program.answers import healthy, performed
from tests.program.harness import COMMAND, Run, run_program, unwrap
from tests.support.clusters import host_key, site

BASTION = {"address": "203.0.113.1", "host_key": host_key("jump"), "user": "ops", "port": 2222}
SECRETS = {"sshPrivateKey": "MOCK-SSH-KEY", "sshPrivateKeyPassword": "MOCK-PASSPHRASE"}


def connections() -> list[dict[str, Any]]:
    cluster = site(servers=1, ssh={"bastion": BASTION})
    run: Run = run_program(cluster, healthy(cluster), secrets=SECRETS)
    assert run.error is None
    return [unwrap(command.raw)["connection"] for command in run.of_type(COMMAND)]


def test_every_host_is_reached_through_the_bastion_with_its_own_address_and_host_key() -> None:
    for connection in connections():
        proxy = connection["proxy"]
        assert (proxy["host"], proxy["port"], proxy["user"]) == ("203.0.113.1", 2222, "ops")
        assert proxy["hostKey"] == BASTION["host_key"] != connection["hostKey"]


def test_the_bastion_is_logged_in_to_with_the_same_key_and_more_patience() -> None:
    for connection in connections():
        proxy = connection["proxy"]
        for key in ("privateKey", "privateKeyPassword", "perDialTimeout"):
            assert proxy[key] == connection[key], key
        assert proxy["dialErrorLimit"] == 30 > connection["dialErrorLimit"], "MaxStartups of its sshd"
        assert proxy["privateKey"] == "MOCK-SSH-KEY"


def test_the_kubeconfig_names_the_proxy_by_which_the_api_is_reached_beyond_the_bastion() -> None:
    url = "http://127.0.0.1:3128"
    run = performed(site(servers=1, ssh={"agent": True, "bastion": {**BASTION, "api_proxy_url": url}}))
    [entry] = yaml.safe_load(run.outputs["kubeconfig"])["clusters"]
    assert entry["cluster"]["proxy-url"] == url


def test_the_steps_of_a_user_other_than_root_run_under_sudo() -> None:
    run = performed(site(servers=1, ssh={"agent": True, "user": "ubuntu"}))
    for command in run.of_type(COMMAND):
        assert command.inputs["connection"]["user"] == "ubuntu"
        assert command.inputs["create"].startswith("sudo -n env "), command.name


def preflight_login(path: Path) -> Any:
    cluster = site(servers=1, ssh={"key_file": str(path)})
    login = performed(cluster, preview=True).request("busbar-preflight-hosts")["login"]
    assert "PRIVATE KEY" not in str(login)
    return login


def test_a_new_key_in_the_same_file_sends_preflight_to_the_hosts_again(tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\none\n")
    before = preflight_login(key)
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nanother\n")
    assert preflight_login(key)["key_digest"] != before["key_digest"]
