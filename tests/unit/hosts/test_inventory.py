"""The hosts of a cluster as preflight and the components see them: roles, login, addresses, proxy."""

from pathlib import Path
from typing import Any

import pytest

from busbar.config import ConfigError, Ssh, load
from busbar.hosts import k3s, proxy
from busbar.hosts.inventory import Inventory, Login
from tests.support.clusters import site


def inventory(**sections: Any) -> Inventory:
    return Inventory.of(load(site(**sections)))


def test_hosts_come_in_the_order_in_which_they_are_brought_up() -> None:
    hosts = inventory(load_balancers=2, servers=3, workers={"a": 1, "b": 1}).hosts
    assert " ".join(f"{host.role}:{host.name}" for host in hosts) == (
        "lb:lb-1 lb:lb-2 server:server-1 server:server-2 server:server-3 worker:gpu-1 worker:gpu-2"
    )


def test_a_host_has_the_common_login_unless_it_has_its_own() -> None:
    data = site(ssh={"agent": True, "user": "ubuntu", "port": 2222})
    data["hosts"]["servers"][1] |= {"user": "admin", "port": 22}
    servers = Inventory.of(load(data)).servers
    assert [(host.user, host.port) for host in servers] == [("ubuntu", 2222), ("admin", 22), ("ubuntu", 2222)]


def test_a_worker_without_a_pool_belongs_to_the_only_one() -> None:
    data = site(workers={"h100": 2})
    del data["hosts"]["workers"][1]["pool"]
    made = Inventory.of(load(data))
    assert [host.name for host in made.workers_of("h100")] == ["gpu-1", "gpu-2"]
    with pytest.raises(KeyError):
        made.workers_of("h200")


OWN_NAME = {"load_balancers": 0, "api_endpoint": {"address": "K8s.example.org"}}
MORE_NAMES = {"k3s": {"sha256": {"amd64": "ab" * 32}, "tls_san": ["api.Example.org", "192.0.2.1"]}}


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, "192.0.2.1 192.0.2.11 server-1"),
        ({"load_balancers": 2, "servers": 1}, "192.0.2.100 192.0.2.1 192.0.2.2 192.0.2.11 server-1"),
        (OWN_NAME, "k8s.example.org 192.0.2.11 server-1"),
        (MORE_NAMES, "192.0.2.1 192.0.2.11 server-1 api.example.org"),
    ],
)
def test_a_server_s_certificate_has_the_api_and_own_names_once(sections: dict[str, Any], names: str) -> None:
    made = inventory(**sections)
    assert made.api_endpoint == f"https://{names.split()[0]}:6443"
    found = k3s.tls_sans(made.cluster.k3s, made.servers[0], made.api_address, made.load_balancers)
    assert found == names.split()
    assert made.fronts == (*made.load_balancers, *made.servers)


def test_an_ipv6_address_has_brackets_in_the_endpoint() -> None:
    data = site()
    data["hosts"]["load_balancers"][0]["address"] = "2001:db8::1"
    assert Inventory.of(load(data)).api_endpoint == "https://[2001:db8::1]:6443"


SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"


def login(project: Path | None = None, **ssh: Any) -> Login:
    key = {"private_key": SECRET, "private_key_password": "pw"}
    return Login.of(Ssh.model_validate(ssh), project=project, **key)


@pytest.mark.parametrize(
    ("ssh", "key", "password", "agent"),
    [
        ({}, SECRET, "pw", False),
        ({"key_file": "id"}, "a key", "pw", False),
        ({"agent": True}, None, None, True),
    ],
)
def test_the_key_is_that_of_the_file_or_the_secret_or_of_the_agent(
    tmp_path: Path, ssh: dict[str, Any], key: str | None, password: str | None, agent: bool
) -> None:
    (tmp_path / "id").write_text("a key")
    found = login(**ssh)
    assert found.key_text(tmp_path) == key
    assert (found.private_key_password, found.uses_agent) == (password, agent)
    assert found.private_key == (None if ssh else SECRET)


def test_a_relative_key_file_starts_at_the_project_folder_where_that_is_known(tmp_path: Path) -> None:
    assert login(tmp_path, key_file="id").key_file == str(tmp_path / "id")
    assert login(key_file="id").key_file == "id"
    with pytest.raises(ConfigError, match=r"ssh\.key_file: 'id' cannot be read: No such file"):
        login(key_file="id").key_text(tmp_path)


URL = "http://proxy.example.com:3128"
FRONTS = ["192.0.2.100", "192.0.2.1", "192.0.2.2", "192.0.2.11", "192.0.2.12", "192.0.2.13"]
WORKERS = ["198.18.0.2", "198.18.0.3"]


def behind_proxy(*no_proxy: str) -> Inventory:
    return inventory(load_balancers=2, http_proxy={"url": URL, "no_proxy": [*no_proxy]})


def direct(of: Inventory, *, of_servers: bool = False) -> list[str]:
    return proxy.environment(of, of_servers=of_servers)["no_proxy"].split(",")


def test_hosts_reach_each_other_the_api_the_pods_and_the_services_directly() -> None:
    loopback = ["localhost", "127.0.0.1", "::1"]
    others = ["10.44.0.0/14", "10.43.0.0/16", ".svc", ".cluster.local", "registry.example.com"]
    of_the_site = behind_proxy("registry.example.com")
    assert direct(of_the_site, of_servers=True) == [*loopback, *FRONTS, *WORKERS, *others]
    assert direct(of_the_site) == [*loopback, *FRONTS, *others]


def test_a_network_stands_for_the_hosts_in_it_so_that_another_worker_changes_nothing() -> None:
    known = behind_proxy("192.0.2.0/24", "198.18.0.0/15")
    assert not {*FRONTS, *WORKERS} & {*direct(known, of_servers=True)}


def test_a_domain_stands_for_the_names_in_it_and_a_name_for_no_other() -> None:
    given = site(http_proxy={"url": URL, "no_proxy": [".Site.example", "a.org"]})
    given["hosts"]["servers"][0]["address"] = "data.org"
    given["hosts"]["workers"][0]["address"] = "gpu-1.site.example"
    found = direct(Inventory.of(load(given)), of_servers=True)
    assert {".site.example", WORKERS[1], "data.org"} <= {*found}
    assert "gpu-1.site.example" not in found
