"""What hosts reach through the proxy of the site, and what directly."""

from __future__ import annotations

from typing import Any

from busbar.config import load
from busbar.hosts import proxy
from busbar.hosts.inventory import Inventory
from tests.support.clusters import site

URL = "http://proxy.example.com:3128"
FRONTS = ["192.0.2.100", "192.0.2.1", "192.0.2.2", "192.0.2.11", "192.0.2.12", "192.0.2.13"]
WORKERS = ["198.18.0.2", "198.18.0.3"]


def inventory(**given: Any) -> Inventory:
    return Inventory.of(load(site(load_balancers=2, http_proxy={"url": URL, **given})))


def direct(of: Inventory, *, of_servers: bool = False) -> list[str]:
    return proxy.environment(of, of_servers=of_servers)["no_proxy"].split(",")


def test_hosts_reach_each_other_the_api_the_pods_and_the_services_directly() -> None:
    loopback = ["localhost", "127.0.0.1", "::1"]
    cluster = ["10.44.0.0/14", "10.43.0.0/16", ".svc", ".cluster.local"]
    site_of_its_own = inventory(no_proxy=["registry.example.com"])
    assert direct(site_of_its_own, of_servers=True) == [
        *loopback, *FRONTS, *WORKERS, *cluster, "registry.example.com",
    ]  # fmt: skip
    assert direct(site_of_its_own) == [*loopback, *FRONTS, *cluster, "registry.example.com"]


def test_a_network_stands_for_the_hosts_in_it_so_that_another_worker_changes_nothing() -> None:
    known = inventory(no_proxy=["192.0.2.0/24", "198.18.0.0/15"])
    assert not {*FRONTS, *WORKERS} & {*direct(known, of_servers=True)}


def test_a_domain_stands_for_the_names_in_it_and_a_name_for_no_other() -> None:
    given = site(http_proxy={"url": URL, "no_proxy": [".Site.example", "a.org"]})
    given["hosts"]["servers"][0]["address"] = "data.org"
    given["hosts"]["workers"][0]["address"] = "gpu-1.site.example"
    found = direct(Inventory.of(load(given)), of_servers=True)
    assert (
        ".site.example" in found
        and "gpu-1.site.example" not in found
        and {WORKERS[1], "data.org"} <= {*found}
    )


def test_curl_and_apt_get_the_variables_that_they_read_and_k3s_those_in_upper_case() -> None:
    given = proxy.environment(inventory())
    assert (given["http_proxy"], given["https_proxy"]) == (URL, URL)
    assert proxy.payload(given)["proxy"].splitlines() == [
        "# Written by busbar",
        "[Service]",
        f"Environment=HTTP_PROXY={URL}",
        f"Environment=HTTPS_PROXY={URL}",
        f"Environment=NO_PROXY={given['no_proxy']}",
    ]


def test_without_a_proxy_nothing_is_added() -> None:
    assert proxy.environment(Inventory.of(load(site()))) == {} == proxy.payload({})
