"""~/.ssh/config is not read, and whoever has an entry that matters is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml
from typer.testing import CliRunner

from busbar.cli import build
from busbar.config import load
from busbar.hosts import ssh_config
from tests.support.clusters import host_key, refusing, site

BASTION = {"address": "jump.example", "host_key": host_key("jump")}


def found(folder: Path, text: str, ssh: dict[str, Any] | None = None, **worker: Any) -> list[str]:
    (folder / "config").write_text(text)
    data = site(ssh=ssh or {"agent": True})
    data["hosts"]["workers"][0] |= worker
    return [*ssh_config.warnings(load(data), folder / "config")]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("HostName 10.0.0.5", "the host's address"),
        ("User ubuntu", "ssh.user, or the host's user"),
        ("Port 2222", "ssh.port, or the host's port"),
        ("ProxyJump me@jump.example:2222", "ssh.bastion"),
        ("ProxyCommand nc -x proxy %h %p", "ssh.bastion"),
    ],
)
def test_an_option_for_a_host_is_named_with_the_key_of_the_stack_file(
    tmp_path: Path, line: str, key: str
) -> None:
    [warning] = found(tmp_path, f"Host 198.18.0.2\n  {line}\n")
    option = line.split()[0].replace("HostName", "Hostname")
    assert warning.startswith(f"hosts.workers[0]: ~/.ssh/config has {option} ")
    assert warning.endswith(f"which busbar does not read. Fix: if it is needed, set {key}")


@pytest.mark.parametrize(
    ("line", "ssh"),
    [
        ("User ubuntu", {"agent": True, "user": "root"}),
        ("Port 2222", {"agent": True, "port": 22}),
        ("ProxyJump jump", {"agent": True, "bastion": BASTION}),
        ("ProxyJump none", {"agent": True}),
        ("IdentityFile ~/.ssh/cluster", {"agent": True}),
        ("HostName 198.18.0.2", {"agent": True}),
        ("ServerAliveInterval 5", {"agent": True}),
    ],
)
def test_what_the_stack_file_says_itself_is_no_warning(
    tmp_path: Path, line: str, ssh: dict[str, Any]
) -> None:
    assert found(tmp_path, f"Host 198.18.0.2\n  {line}\n", ssh) == []


def test_another_key_than_that_of_the_stack_is_named(tmp_path: Path) -> None:
    text = "Host *\n  IdentityFile ~/.ssh/other\n"
    [warning] = found(tmp_path, text, {"key_file": "~/.ssh/cluster"})
    assert "has IdentityFile ~/.ssh/other for it (and 5 more hosts)" in warning
    assert found(tmp_path, text.replace("other", "cluster"), {"key_file": "~/.ssh/cluster"}) == []


def test_one_cause_is_one_warning_however_many_hosts_it_is_for(tmp_path: Path) -> None:
    [warning] = found(tmp_path, "Host 192.0.2.* 198.18.*\n  ProxyJump jump\n")
    assert warning.startswith("hosts.load_balancers[0]: ") and "(and 5 more hosts)" in warning


def test_an_alias_counts_where_it_leads_to_the_address_of_the_host(tmp_path: Path) -> None:
    alias = "Host gpu-1\n  HostName {}\n  ProxyJump jump\n"
    [warning] = found(tmp_path, alias.format("198.18.0.2"))
    assert "ProxyJump jump" in warning
    assert found(tmp_path, alias.format("10.9.9.9")) == [], "another machine of that name"


def test_a_file_that_cannot_be_read_is_a_warning_and_none_is_none(tmp_path: Path) -> None:
    [warning] = found(tmp_path, "Host 198.18.0.2\n  Port many\n")
    assert warning.startswith("ssh: ~/.ssh/config cannot be compared with the stack file: ")
    assert [*ssh_config.warnings(load(site()), tmp_path / "none")] == []


@pytest.mark.parametrize("command", ["check-config", "preflight"])
def test_check_config_and_preflight_say_it_with_the_line_of_the_host(tmp_path: Path, command: str) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host *\n  ProxyJump jump\n")
    data = refusing(site(ssh={"key_file": "none"}))
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "none").write_bytes(key.export_private_key())
    (tmp_path / "Pulumi.mine.yaml").write_text(yaml.safe_dump({"config": {"busbar:cluster": data}}))
    words = [command, str(tmp_path / "Pulumi.mine.yaml")]
    environment = {"HOME": str(tmp_path), "SSH_AUTH_SOCK": None}
    done = CliRunner().invoke(build(), words, env=environment)
    [line] = [line for line in done.output.splitlines() if "ProxyJump" in line]
    assert "warning: Pulumi.mine.yaml:" in line
    assert "hosts.load_balancers[0] (lb-1): ~/.ssh/config has ProxyJump jump for it (and 5 more" in line
