"""Value types of hosts and networks: addresses, host keys, ports, logins, HCA names."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from busbar.config.values import Int, Matching, finite, invalid

_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?")

# The name of the algorithm and 32 bytes, each with its length (RFC 8709), in base64.
_HOST_KEY = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}")
_BROADCAST = ipaddress.ip_address("255.255.255.255")


def _address(value: str) -> str:
    try:
        ip = ipaddress.ip_address(value)
    except ValueError:
        pass
    else:
        if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
            raise invalid("is not the address of one machine")
        return str(ip)
    labels = value.split(".")
    if len(value) <= 253 and all(map(_HOST_LABEL.fullmatch, labels)) and not labels[-1].isdigit():
        return value.lower()
    hint = ""
    if value.startswith("["):
        hint = ": write an IPv6 address without brackets"
    elif "@" in value:
        hint = ": give the login as `user`"
    elif ":" in value:
        hint = ": without scheme and port (the SSH port of a host is its key `port`)"
    raise invalid(f"is not an IPv4/IPv6 address or a host name{hint}")


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise invalid("is not an IPv4 or IPv6 address") from None


def _cidr(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        if "," in value:
            raise invalid("is more than one network: dual stack is not supported; give one") from None
        raise invalid("is not a network in CIDR form, such as 10.42.0.0/16") from None
    raise invalid(f"has host bits set; did you mean {network}?")


def _host_key(value: str) -> str:
    """Check an `ssh-ed25519 AAAA...` line and return it without its comment.

    golang.org/x/crypto/ssh, which pulumi-command uses, cannot pin an `ssh-rsa` line against a current sshd
    ("no common algorithm"). Every supported distribution has an ed25519 key.
    """
    words = value.split()
    if "ssh-ed25519" in words[1:]:
        raise invalid("starts with a host name, as in known_hosts; start at `ssh-ed25519`")
    if words[:1] != ["ssh-ed25519"]:
        raise invalid(
            "is not an ed25519 host key: expected `ssh-ed25519 AAAA...` (ssh-keyscan -t ed25519 HOST)"
        )
    key = " ".join(words[:2])
    if not _HOST_KEY.fullmatch(key):
        raise invalid(
            "is not a host key: expected 68 characters of base64 after `ssh-ed25519`; was it truncated, or "
            "is it a placeholder?"
        )
    return key


# Without a port curl takes 1080, Go 80 or 443.
_PROXY_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?")
_UNPROXIED = re.compile(r"(\*?\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


def _proxy_url(value: str) -> str:
    if "@" in value:
        raise invalid(
            "contains a login, which every user of a host could read",
            "have the proxy admit the hosts by their addresses, or name one without login that forwards to "
            "it",
        )
    if not _PROXY_URL.fullmatch(value):
        raise invalid("is not the URL of a proxy with its port, such as http://proxy.example.com:3128")
    return value.removesuffix("/")


def _unproxied(value: str) -> str:
    """Validate an entry of NO_PROXY for Go, curl and apt: a comma separates entries, and `*` matches all."""
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        if not _UNPROXIED.fullmatch(value):
            raise invalid(
                "is not a name, a domain such as .example.com, an address or a network such as 10.0.0.0/16"
            ) from None
        return value.lower()
    return str(network) if "/" in value else str(network.network_address)


Address = Annotated[str, BeforeValidator(finite), AfterValidator(_address)]
IpAddress = Annotated[str, AfterValidator(_ip)]
Cidr = Annotated[str, AfterValidator(_cidr)]
HostKey = Annotated[str, AfterValidator(_host_key), Field(json_schema_extra={"pattern": "^ssh-ed25519 "})]
Port = Annotated[Int, Field(ge=1, le=65535)]
UserName = Annotated[
    str,
    Matching(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?", "a login name: letters, digits and _ . @ \\ -"),
]
"""A login; `DOMAIN\\user` and `user@domain` are allowed, a leading `-` and shell characters are not."""
InterfaceName = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}",
        "the name of a network interface, such as eth0, up to 15 characters",
    ),
]
Endpoint = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?", "HOST or HOST:PORT (without https://)"
    ),
]
HcaName = Annotated[
    str, Matching(r"[A-Za-z0-9_.-]+(:[0-9]+)?", "the name of an HCA such as mlx5_0 or mlx5_0:2")
]
HcaPattern = Annotated[
    str, Matching(r"[A-Za-z0-9_.*?!\[\]-]+", "the name of an HCA such as mlx5_4, or a shell pattern of one")
]
ProxyUrl = Annotated[str, BeforeValidator(finite), AfterValidator(_proxy_url)]
Unproxied = Annotated[str, BeforeValidator(finite), AfterValidator(_unproxied)]
