"""The lab's address plan: what a stack file may rely on."""

from ipaddress import ip_address, ip_network

from lab import topology


def test_a_host_keeps_its_address_when_the_lab_grows() -> None:
    small = {host.name: host.address for host in topology.hosts()}
    large = {host.name: host.address for host in topology.hosts(workers=9, load_balancers=2, servers=5)}
    assert small.items() <= large.items()
    assert large.keys() - small.keys() >= {"lb-2", "server-4", "server-5", "worker-9"}


def test_every_host_has_an_address_of_its_own_on_the_management_network() -> None:
    addresses = [host.management_address for host in topology.every_host()] + [topology.MANAGEMENT_GATEWAY]
    assert len(set(addresses)) == len(addresses)
    assert all(ip_address(address) in ip_network(topology.MANAGEMENT_SUBNET) for address in addresses[:-1])
    assert not ip_network(topology.SUBNET).overlaps(ip_network(topology.MANAGEMENT_SUBNET))
