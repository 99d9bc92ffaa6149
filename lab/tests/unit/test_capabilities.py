"""The hosts that capabilities add to the lab."""

from ipaddress import ip_address, ip_network

from lab import topology
from lab.capabilities import hosts_of_capabilities


def test_hosts_of_capabilities_share_no_name_and_no_address_with_others() -> None:
    hosts = (*topology.every_host(), *hosts_of_capabilities())
    addresses = [host.address for host in hosts] + [topology.GATEWAY, topology.VIRTUAL_IP]
    assert len(set(addresses)) == len(addresses)
    assert len({host.name for host in hosts}) == len(hosts)
    assert all(ip_address(address) in ip_network(topology.SUBNET) for address in addresses)
    assert max(len(f"vb-{host.name}") for host in hosts) <= 15, "longer than an interface's name may be"
