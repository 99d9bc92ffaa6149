"""The small types that the configuration is made of: each takes what a person or `pulumi config set` writes.

Every error text continues the sentence `<path>: <value> ...`; `busbar.config.errors` puts the front on.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?")
_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B?)?|B)?", re.IGNORECASE)
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTPE]i?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_UNIT_BYTES = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# An ed25519 public key on the wire: the algorithm's name, then 32 bytes, each with its length (RFC 8709).
_ED25519_HEAD = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"
_ED25519_BYTES = len(_ED25519_HEAD) + 32


class Model(BaseModel):
    """Base of all parts of the configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # `pulumi config set --path` stores `1.30` or `0123` as it likes: text may arrive as a number.
        coerce_numbers_to_str=True,
        str_strip_whitespace=True,
    )


def wrong(message: str) -> PydanticCustomError:
    """An error whose text reads on after the value; braces in it are meant literally."""
    return PydanticCustomError("busbar", "{text}", {"text": message})


def _not_bool(value: Any) -> Any:
    # pydantic would take `gpus: true` for 1.
    if isinstance(value, bool):
        raise wrong("is true or false where a number is expected")
    return value


def _text(value: Any) -> Any:
    # `labels: {gpu: true}` means the text "true"; Pulumi stores it as a boolean.
    return str(value).lower() if isinstance(value, bool) else value


def _dns_label(value: str) -> str:
    if _DNS_LABEL.fullmatch(value):
        return value
    raise wrong(
        "is not a DNS label: lower-case letters, digits and '-', 1 to 63 characters, no '-' at the ends"
    )


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    labels = value.split(".")
    if len(value) <= 253 and all(map(_HOST_LABEL.fullmatch, labels)) and not labels[-1].isdigit():
        return value.lower()
    hint = ""
    if value.startswith("["):
        hint = ": write an IPv6 address without brackets"
    elif "@" in value:
        hint = ": give the login as `user`"
    elif ":" in value:
        hint = ": give the SSH port as `port`"
    raise wrong(f"is not an IPv4/IPv6 address or a host name{hint}")


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise wrong("is not an IPv4 or IPv6 address") from None


def _cidr(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        pass
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise wrong("is not a network in CIDR form, such as 10.42.0.0/16") from None
    raise wrong(f"has bits set behind its prefix: {network} is meant?")


def _host_key(value: str) -> str:
    """Check an `ssh-ed25519 AAAA...` line and return it without its comment."""
    words = value.split()
    if words and words[0] != "ssh-ed25519":
        if "ssh-ed25519" in words:
            raise wrong("starts with a host name, as in known_hosts: begin at `ssh-ed25519`")
        # golang.org/x/crypto/ssh, which pulumi-command dials with, cannot pin an `ssh-rsa` line against a
        # current sshd ("no common algorithm"); ed25519 is on every supported distribution.
        raise wrong(
            "is not an ed25519 host key: expected `ssh-ed25519 AAAA...` (ssh-keyscan -t ed25519 HOST)"
        )
    if len(words) < 2:
        raise wrong("is not a host key: expected `ssh-ed25519 AAAA...` (ssh-keyscan -t ed25519 HOST)")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise wrong("is not a host key: the part after `ssh-ed25519` is not base64; was it cut?") from None
    if len(blob) != _ED25519_BYTES or not blob.startswith(_ED25519_HEAD):
        raise wrong(
            f"is not an ed25519 host key: {len(blob)} bytes decoded, expected {_ED25519_BYTES} that name "
            "ssh-ed25519; was it cut, or is it a placeholder?"
        )
    return f"ssh-ed25519 {words[1]}"


def _size(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if not found:
            raise wrong("is not a size: a number of bytes, or one with K, M or G (binary), such as 512M")
        unit = found[2]
        return int(found[1]) * _UNIT_BYTES[unit.upper() if unit else None]
    return value


def _quantity(value: str) -> str:
    if _QUANTITY.fullmatch(value):
        return value
    raise wrong("is not a Kubernetes quantity such as 64Gi or 500m")


def _label_key(value: str) -> str:
    prefix, slash, name = value.rpartition("/")
    prefix_is_fine = not slash or all(map(_DNS_LABEL.fullmatch, prefix.split(".")))
    if not (_LABEL_NAME.fullmatch(name) and prefix_is_fine):
        raise wrong(
            "is not a Kubernetes label key: [dns.domain/]name, the name up to 63 of A-Z a-z 0-9 - _ ."
        )
    return value


def _label_value(value: str) -> str:
    if value and not _LABEL_NAME.fullmatch(value):
        raise wrong(
            "is not a Kubernetes label value: up to 63 of A-Z a-z 0-9 - _ ., alphanumeric at the ends"
        )
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise wrong("is not a sha256 checksum: 64 hexadecimal digits")
    return value.lower()


def _url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
        raise wrong("is not an http(s) URL")
    if "@" in value.split("/")[2]:
        raise wrong("carries a login: a URL lands in logs and in the state; use a mirror that needs none")
    return value.rstrip("/")


_TEXT_OR_NUMBER = {"type": ["string", "number", "boolean"]}

Int = Annotated[int, BeforeValidator(_not_bool)]
Float = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema(_TEXT_OR_NUMBER)]
"""A text that may arrive as a number or a boolean: a label's value, an environment variable."""
NonEmpty = Annotated[str, Field(min_length=1)]
DnsLabel = Annotated[
    str, AfterValidator(_dns_label), Field(json_schema_extra={"pattern": f"^{_DNS_LABEL.pattern}$"})
]
Address = Annotated[str, AfterValidator(_address)]
IpAddress = Annotated[str, AfterValidator(_ip)]
Cidr = Annotated[str, AfterValidator(_cidr)]
HostKey = Annotated[str, AfterValidator(_host_key), Field(json_schema_extra={"pattern": "^ssh-ed25519 "})]
Port = Annotated[Int, Field(ge=1, le=65535)]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    BeforeValidator(_not_bool),
    Field(ge=1),
    WithJsonSchema({"type": ["integer", "string"]}),
]
"""A number of bytes; `512M` is 512 x 2^20, as nccl-tests reads it."""
Quantity = Annotated[str, AfterValidator(_quantity)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[
    str, BeforeValidator(_text), AfterValidator(_label_value), WithJsonSchema(_TEXT_OR_NUMBER)
]
Sha256 = Annotated[str, AfterValidator(_sha256)]
Url = Annotated[str, AfterValidator(_url)]
