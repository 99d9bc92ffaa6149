"""The hosts that capabilities add to the lab."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from lab import status, topology
from lab.capabilities import hosts_of_capabilities


def test_hosts_of_capabilities_share_no_name_and_no_address_with_others() -> None:
    hosts = (*topology.every_host(), *hosts_of_capabilities())
    addresses = [host.address for host in hosts] + [topology.GATEWAY, topology.VIRTUAL_IP]
    assert len(set(addresses)) == len(addresses)
    assert len({host.name for host in hosts}) == len(hosts)
    assert all(ip_address(address) in ip_network(topology.SUBNET) for address in addresses)
    assert max(len(f"vb-{host.name}") for host in hosts) <= 15, "longer than an interface's name may be"


def test_hosts_of_capabilities_that_have_files_are_listed_after_those_of_make_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = next(hosts_of_capabilities())
    for name in (own.name, "worker-1"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(status, "HOSTS", tmp_path)
    assert [host.name for host in status.known_hosts()] == ["worker-1", own.name]
