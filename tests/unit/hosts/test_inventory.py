"""The hosts of a cluster as preflight and the components see them."""

from __future__ import annotations

import pytest

from busbar.config import load
from busbar.hosts import k3s
from busbar.hosts.inventory import Host, Inventory
from tests.support.clusters import site


def tls_sans(inventory: Inventory, server: Host) -> list[str]:
    return k3s.tls_sans(inventory.cluster.k3s, server, inventory.api_address, inventory.load_balancers)


def test_hosts_come_in_the_order_in_which_they_are_brought_up() -> None:
    inventory = Inventory.of(load(site(load_balancers=2, servers=3, workers={"a": 1, "b": 1})))
    assert [(host.role, host.name) for host in inventory.hosts] == [
        ("lb", "lb-1"),
        ("lb", "lb-2"),
        ("server", "server-1"),
        ("server", "server-2"),
        ("server", "server-3"),
        ("worker", "gpu-1"),
        ("worker", "gpu-2"),
    ]


def test_a_host_has_the_common_login_unless_it_has_its_own() -> None:
    data = site(ssh={"agent": True, "user": "ubuntu", "port": 2222})
    data["hosts"]["servers"][1] |= {"user": "admin", "port": 22}
    servers = Inventory.of(load(data)).servers
    assert [(host.user, host.port) for host in servers] == [("ubuntu", 2222), ("admin", 22), ("ubuntu", 2222)]


def test_a_worker_without_a_pool_belongs_to_the_only_one() -> None:
    data = site(workers={"h100": 2})
    del data["hosts"]["workers"][1]["pool"]
    inventory = Inventory.of(load(data))
    assert [host.name for host in inventory.workers_of("h100")] == ["gpu-1", "gpu-2"]


def test_a_pool_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Inventory.of(load(site())).workers_of("h200")


def test_the_api_is_at_the_only_load_balancer() -> None:
    assert Inventory.of(load(site())).api_endpoint == "https://192.0.2.1:6443"


def test_the_api_is_at_the_shared_address_of_two_load_balancers() -> None:
    inventory = Inventory.of(load(site(load_balancers=2, servers=1)))
    assert inventory.api_address == "192.0.2.100"
    in_certificate = ["192.0.2.100", "192.0.2.1", "192.0.2.2", "192.0.2.11", "server-1"]
    assert tls_sans(inventory, inventory.servers[0]) == in_certificate


def test_the_api_is_at_the_site_s_own_endpoint_which_is_in_every_certificate() -> None:
    inventory = Inventory.of(load(site(load_balancers=0, api_endpoint={"address": "K8s.example.org"})))
    assert inventory.api_endpoint == "https://k8s.example.org:6443"
    assert tls_sans(inventory, inventory.servers[1]) == ["k8s.example.org", "192.0.2.12", "server-2"]
    assert inventory.fronts == inventory.servers


def test_further_names_of_the_api_are_in_the_certificate_of_every_server_once() -> None:
    data = site()
    data.setdefault("k3s", {})["tls_san"] = ["api.Example.org", "192.0.2.1"]
    inventory = Inventory.of(load(data))
    for server in inventory.servers:
        expected = ["192.0.2.1", server.address, server.name, "api.example.org"]
        assert tls_sans(inventory, server) == expected


def test_an_ipv6_address_has_brackets_in_the_endpoint() -> None:
    data = site()
    data["hosts"]["load_balancers"][0]["address"] = "2001:db8::1"
    assert Inventory.of(load(data)).api_endpoint == "https://[2001:db8::1]:6443"
