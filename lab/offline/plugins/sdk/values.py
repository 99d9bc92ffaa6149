"""Property values as they travel between engine and provider, as plain Python.

The wire format is a protobuf Struct in which secrets, assets and archives are objects with a signature key
and an unknown value is a fixed string (Pulumi SDK, `pulumi/runtime/rpc.py`). Here: dict, list, str, bool,
int, float, None, `Secret(value)` and `UNKNOWN`; assets and archives stay dicts (see `asset_kind`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import struct_pb2

SIGNATURE_KEY: Final = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE: Final = "1b47061264138c4ac30d75fd1eb44270"
ASSET_SIGNATURE: Final = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE_SIGNATURE: Final = "0def7320c3a5731c473e5ecbe6d01bc7"
# One marker per type of the missing value; they are not distinguished here.
UNKNOWN_MARKERS: Final = frozenset(
    {
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)
UNKNOWN_STRING: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"

# Beyond this a float64 no longer holds every integer, so an integral float stays a float.
_EXACT_INTEGERS: Final = 2**53


class Unknown:
    """The type of `UNKNOWN`, the value that a preview cannot know yet."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True)
class Secret:
    """A value that the engine must encrypt in the state and hide in its output."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(...)"  # a secret must not reach a log through repr()


Properties = dict[str, Any]


def decode(message: struct_pb2.Struct) -> Properties:
    """The properties in `message`; whole numbers come back as int."""
    return {key: _decode(value) for key, value in message.fields.items()}


def _decode(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return UNKNOWN if value.string_value in UNKNOWN_MARKERS else value.string_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < _EXACT_INTEGERS else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [_decode(item) for item in value.list_value.values]
    if kind == "struct_value":
        fields = decode(value.struct_value)
        if fields.get(SIGNATURE_KEY) == SECRET_SIGNATURE:
            return Secret(fields.get("value"))
        return fields
    return None


def encode(properties: Mapping[str, Any]) -> struct_pb2.Struct:
    """`properties` as a message; raises TypeError on a value that has no wire form."""
    message = struct_pb2.Struct()
    for key, value in properties.items():
        _encode(message.fields[key], value)
    return message


def _encode(target: struct_pb2.Value, value: Any) -> None:
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, Unknown):
        target.string_value = UNKNOWN_STRING
    elif isinstance(value, Secret):
        target.struct_value.CopyFrom(encode({SIGNATURE_KEY: SECRET_SIGNATURE, "value": value.value}))
    elif isinstance(value, Mapping):
        target.struct_value.CopyFrom(encode(value))
    elif isinstance(value, list | tuple):
        target.list_value.SetInParent()
        for item in value:
            _encode(target.list_value.values.add(), item)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be sent to the Pulumi engine: {value!r}")


def _walk(value: Any, change: Callable[[Any], Any]) -> Any:
    value = change(value)
    if isinstance(value, dict):
        return {key: _walk(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, change) for item in value]
    return value


def reveal(value: Any) -> Any:
    """`value` with every secret replaced by what it hides."""

    def strip(item: Any) -> Any:
        while isinstance(item, Secret):
            item = item.value
        return item

    return _walk(value, strip)


def _any(value: Any, found: Callable[[Any], bool]) -> bool:
    if found(value):
        return True
    if isinstance(value, Secret):
        return _any(value.value, found)
    if isinstance(value, dict):
        return any(_any(item, found) for item in value.values())
    if isinstance(value, list):
        return any(_any(item, found) for item in value)
    return False


def has_unknown(value: Any) -> bool:
    """Whether `value` or anything inside it is not known yet."""
    return _any(value, lambda item: isinstance(item, Unknown))


def has_secret(value: Any) -> bool:
    """Whether `value` is or holds a secret."""
    return _any(value, lambda item: isinstance(item, Secret))


def asset_kind(value: Any) -> str | None:
    """`"asset"`, `"archive"`, or None for an ordinary value."""
    if not isinstance(value, dict):
        return None
    return {ASSET_SIGNATURE: "asset", ARCHIVE_SIGNATURE: "archive"}.get(value.get(SIGNATURE_KEY, ""))
