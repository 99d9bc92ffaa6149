"""The HTTP proxy through which hosts reach what is outside of the cluster."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from pydantic import Field

from busbar.config.network_values import ProxyUrl, Unproxied
from busbar.models import ConfigModel


class HttpProxy(ConfigModel):
    """The proxy for K3s, its containerd, and the downloads and packages of the host scripts."""

    url: ProxyUrl = Field(description="URL of the proxy for http and https, with its port and without login.")
    no_proxy: list[Unproxied] = Field(
        default=[],
        description="What is reached directly beside hosts, API, pods and services: names, domains "
        "(.example.com), addresses and networks. The network of the hosts stands for their addresses.",
    )

    @property
    def direct(self) -> list[str]:
        """`no_proxy` as curl and Go read it: the domain .x for the pattern *.x."""
        return [each.removeprefix("*") for each in self.no_proxy]

    def outside_no_proxy(self, addresses: Iterable[str]) -> Iterator[str]:
        """The addresses (or names) that no network and no domain of `no_proxy` contains."""
        networks = [ipaddress.ip_network(each) for each in self.direct if "/" in each]
        domains = tuple(each for each in self.direct if each.startswith("."))
        for address in addresses:
            try:
                parsed = ipaddress.ip_address(address)
            except ValueError:
                if not address.endswith(domains):
                    yield address
            else:
                if not any(parsed in network for network in networks):
                    yield address
