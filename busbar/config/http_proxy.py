"""The HTTP proxy through which hosts reach what is outside of the cluster."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from busbar.config.values import finite, invalid
from busbar.models import ConfigModel

# Without a port curl takes 1080, Go 80 or 443.
_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?")
_DOMAIN = re.compile(r"(\*?\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


def _url(value: str) -> str:
    if "@" in value:
        raise invalid(
            "contains a login, which every user of a host could read",
            "have the proxy admit the hosts by their addresses, or name one without login that forwards to "
            "it",
        )
    if not _URL.fullmatch(value):
        raise invalid("is not the URL of a proxy with its port, such as http://proxy.example.com:3128")
    return value.removesuffix("/")


def _unproxied(value: str) -> str:
    """Validate an entry of NO_PROXY for Go, curl and apt: a comma separates entries, and `*` matches all."""
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        if not _DOMAIN.fullmatch(value):
            raise invalid(
                "is not a name, a domain such as .example.com, an address or a network such as 10.0.0.0/16"
            ) from None
        return value.lower()
    return str(network) if "/" in value else str(network.network_address)


ProxyUrl = Annotated[str, BeforeValidator(finite), AfterValidator(_url)]
Unproxied = Annotated[str, BeforeValidator(finite), AfterValidator(_unproxied)]


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
