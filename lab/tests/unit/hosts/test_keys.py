"""SSH keys of the lab."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab import topology
from lab.hosts import keys


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


def test_the_client_key_is_made_once_and_then_kept(tmp_path: Path) -> None:
    first = keys.ensure_client_key(tmp_path / "id_ed25519")
    assert keys.ensure_client_key(tmp_path / "id_ed25519") == first
    assert keys.ensure_client_key(tmp_path / "other") != first
