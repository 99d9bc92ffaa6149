"""SSH keys of the lab."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import yaml

from lab import topology
from lab.hosts import keys


def test_a_host_key_derives_from_the_host_name_alone() -> None:
    assert keys.public_line(keys.host_key("lb-1")) == (
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHCZiZsoI4rLdzIgOAyl4xhV9+49bbTnNxAQJ+2pSurZ"
    )
    assert keys.public_line(keys.host_key("lb-1")) != keys.public_line(keys.host_key("lb-2"))


def test_the_dev_stack_pins_the_keys_and_addresses_that_the_hosts_have() -> None:
    stack = yaml.safe_load((topology.PROJECT / "Pulumi.dev.yaml").read_text())
    groups = stack["config"]["busbar:cluster"]["hosts"]
    pinned = {
        (host["name"], host["address"], host["host_key"])
        for role in ("load_balancers", "servers", "workers")
        for host in groups[role]
    }
    assert pinned == {
        (host.name, host.address, keys.public_line(keys.host_key(host.name))) for host in topology.hosts()
    }


def test_a_written_host_key_is_one_that_ssh_can_read(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "ssh" / "ssh_host_ed25519_key"
    keys.write_private(path, keys.host_key("server-1"))
    assert path.stat().st_mode & 0o777 == 0o600
    read = asyncssh.read_private_key(path)
    assert (
        read.export_public_key().decode().split()[:2] == keys.public_line(keys.host_key("server-1")).split()
    )


def test_the_client_key_is_made_once_and_then_kept(tmp_path: Path) -> None:
    first = keys.ensure_client_key(tmp_path / "id_ed25519")
    assert keys.ensure_client_key(tmp_path / "id_ed25519") == first
    assert keys.ensure_client_key(tmp_path / "other") != first
