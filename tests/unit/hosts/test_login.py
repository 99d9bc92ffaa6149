"""One login for preflight and for every step: key file, secret key or ssh-agent, and the bastion."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.config import ConfigError, Ssh
from busbar.hosts.inventory import Login
from tests.support.clusters import host_key

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"


def ssh(**settings: object) -> Ssh:
    return Ssh.model_validate(settings)


def test_a_relative_key_file_starts_at_the_project_folder(tmp_path: Path) -> None:
    assert Login.of(ssh(key_file="id"), project=tmp_path).key_file == str(tmp_path / "id")


def test_without_a_project_folder_the_key_file_stays_as_written() -> None:
    assert Login.of(ssh(key_file="id")).key_file == "id"


def test_the_text_of_a_key_file_is_read_from_the_project_folder(tmp_path: Path) -> None:
    (tmp_path / "id").write_text(SECRET)
    assert Login.of(ssh(key_file="id")).key_text(tmp_path) == SECRET


def test_a_key_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssh\.key_file: 'id' cannot be read: No such file"):
        Login.of(ssh(key_file="id")).key_text(tmp_path)


def test_the_secret_key_is_used_if_there_is_no_file_and_no_agent(tmp_path: Path) -> None:
    login = Login.of(ssh(), private_key=SECRET, private_key_password="pw")
    assert (login.key_text(tmp_path), login.private_key_password, login.uses_agent) == (SECRET, "pw", False)


def test_a_key_file_replaces_the_secret_key_and_keeps_the_passphrase() -> None:
    login = Login.of(ssh(key_file="id"), private_key=SECRET, private_key_password="pw")
    assert (login.private_key, login.private_key_password) == (None, "pw")


def test_with_the_agent_there_is_no_key_and_no_passphrase(tmp_path: Path) -> None:
    login = Login.of(ssh(agent=True), private_key=SECRET, private_key_password="pw")
    assert login.uses_agent
    assert (login.key_text(tmp_path), login.private_key_password) == (None, None)


def test_the_bastion_belongs_to_the_login() -> None:
    bastion = {"address": "192.0.2.200", "host_key": host_key("bastion")}
    found = Login.of(ssh(agent=True, bastion=bastion)).bastion
    assert found is not None
    assert (found.address, found.user, found.port) == ("192.0.2.200", "root", 22)
