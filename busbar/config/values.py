"""Base model and the basic value types of the configuration: texts, numbers, sizes, paths, URLs.

Every error text continues the sentence `<path>: <value> ...`, which `busbar.config.errors` begins. Types of
the network and of Kubernetes are in `network_values` and `kubernetes_values`.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_SIZE = re.compile(r"([0-9]+)\s*(?:([KMGT])(iB?|B)?|B)?", re.IGNORECASE)
_UNIT_BYTES = {None: 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def invalid(message: str, fix: str = "") -> PydanticCustomError:
    """An error whose text follows the value; braces in it are literal."""
    template = "{text}. Fix: {fix}" if fix else "{text}"
    return PydanticCustomError("busbar", template, {"text": message, "fix": fix})


@dataclass(frozen=True)
class Matching:
    """Annotates a text that must match `pattern` as a whole; `expected` completes "is not ..."."""

    pattern: str
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        checked = core_schema.no_info_after_validator_function(self._check, handler(source))
        return core_schema.no_info_before_validator_function(finite, checked)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, value: str) -> str:
        if re.fullmatch(self.pattern, value):
            return value
        raise invalid(f"is not {self.expected}")


@dataclass(frozen=True)
class Offered:
    """Annotates a text of which editors offer `values()`; `only` says that no other one is valid."""

    values: Callable[[], Iterable[str]]
    only: bool = False

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        known = {"enum": list(self.values())}
        return known if self.only else {"anyOf": [known, handler(schema)]}


def _not_bool(value: Any) -> Any:
    # pydantic would accept `gpus: true` as 1.
    if isinstance(value, bool):
        raise invalid("is true or false where a number is expected")
    return value


def bool_as_text(value: Any) -> Any:
    # `labels: {gpu: true}` means the text "true"; Pulumi stores it as a boolean.
    return str(value).lower() if isinstance(value, bool) else value


def finite(value: Any) -> Any:
    # `coerce_numbers_to_str` would turn .nan and .inf into the texts "nan" and "inf".
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid("is not a finite number")
    return value


def _no_control_characters(value: str) -> str:
    if _CONTROL.search(value):
        raise invalid("contains a control character (line break, tab, NUL)")
    return value


def _size(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if not found:
            raise invalid("is not a size: a number of bytes, or one with K, M or G (binary), such as 512M")
        unit = found[2]
        if (found[3] or "").upper() == "B":
            number, binary = found[1], f"{unit.upper()}iB"
            raise invalid(
                "has a decimal unit; those of nccl-tests are binary", f"{number}{binary}, or a bare number"
            )
        return int(found[1]) * _UNIT_BYTES[unit.upper() if unit else None]
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise invalid("is not a sha256 checksum: 64 hexadecimal digits")
    return value.lower()


# The characters of RFC 3986. `'` and `;` are legal there; hosts receive URLs shell-quoted.
_URL = re.compile(r"https?://[^\s/]+(/[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*)?")


def _url(value: str) -> str:
    if not _URL.fullmatch(value) or not re.fullmatch(r"[A-Za-z0-9.:@\[\]_%-]+", value.split("/")[2]):
        raise invalid("is not an http(s) URL")
    if "@" in value.split("/")[2]:
        raise invalid("contains a login, which would appear in logs and state; use a mirror without login")
    return value.rstrip("/")


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON and Pulumi cannot carry: dates, NaN, keys that are not texts."""
    bad = _not_json(value, "")
    if bad is not None:
        raise invalid(bad)
    return value


def _not_json(value: Any, path: str) -> str | None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"has a key that is not a text at {path or 'its top level'}: {key!r}; quote it"
            if found := _not_json(item, f"{path}.{key}" if path else key):
                return found
        return None
    if isinstance(value, list):
        return next(
            (found for i, item in enumerate(value) if (found := _not_json(item, f"{path}[{i}]"))), None
        )
    if isinstance(value, float) and not math.isfinite(value):
        return f"has a number that is not finite at {path}: {value!r}"
    if value is None or isinstance(value, (str, int, float)):
        return None
    return f"has a {type(value).__name__} at {path}: {str(value)!r}; quote it to make it a text"


# Field, its bounds, and the names that may stand for numbers (robfig/cron spec.go, which K3s uses).
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CRON_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_CRON_PART = re.compile(r"(?:[*?]|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]+))?")


def _cron(value: str) -> str:
    if value.startswith("@"):
        return value
    for text, (name, low, high, names) in zip(value.split(" "), _CRON_FIELDS, strict=True):
        for part in text.split(","):
            found = _CRON_PART.fullmatch(part)
            given = [found[key] for key in ("first", "last") if found[key]] if found else [part]
            numbers = [
                str(names.index(each.lower()) + low) if each.lower() in names else each for each in given
            ]
            in_bounds = all(each.isdecimal() and low <= int(each) <= high for each in numbers)
            in_order = [*map(int, numbers)] == sorted(map(int, numbers)) if in_bounds else False
            if not in_order or (found and found["step"] and int(found["step"]) == 0):
                raise invalid(f"has {part!r} as the {name}, expected {low} to {high}")
    return value


# Folders of the system or of other software: neither they nor a folder below them may be exported.
SYSTEM_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys"),
    *("/tmp", "/usr", "/var/cache", "/var/lib", "/var/log", "/var/mail", "/var/spool", "/var/tmp"),
)
# Folders shared with others: only a folder below them may be exported.
SHARED_FOLDERS = ("/", "/export", "/home", "/media", "/mnt", "/opt", "/srv", "/var")


def _exported_folder(value: str) -> str:
    if posixpath.normpath(value) != value:
        raise invalid("is not a normalised path", posixpath.normpath(value))
    tree = next((each for each in SYSTEM_TREES if f"{value}/".startswith(f"{each}/")), None)
    if tree:
        raise invalid(f"is a system folder (below {tree})", "use a folder of its own, such as /srv/busbar")
    if value in SHARED_FOLDERS:
        below = posixpath.join(value, "busbar")
        raise invalid("is a shared folder", f"use a folder below it, such as {below}")
    return value


TEXT_OR_NUMBER = WithJsonSchema({"type": ["string", "number", "boolean"]})

Int = Annotated[int, BeforeValidator(_not_bool)]
Float = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]
Seconds = Annotated[Int, Field(ge=1)]
Text = Annotated[
    str,
    BeforeValidator(bool_as_text),
    BeforeValidator(finite),
    AfterValidator(_no_control_characters),
    TEXT_OR_NUMBER,
]
"""A text that may be written as a number or a boolean: a label's value, an environment variable."""
NonEmpty = Annotated[
    str, BeforeValidator(finite), Field(min_length=1), AfterValidator(_no_control_characters)
]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    BeforeValidator(_not_bool),
    Field(ge=1),
    WithJsonSchema({"type": ["integer", "string"]}),
]
"""A number of bytes; `512M` is 512 x 2^20, as nccl-tests reads it, and `512MB` is refused."""
Sha256 = Annotated[str, AfterValidator(_sha256)]
Url = Annotated[str, AfterValidator(_url)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_json_object)]
"""Free keys that are passed on (Helm values, config.yaml): everything in it can be written as JSON."""
StackName = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+",
        "a stack as ORGANIZATION/PROJECT/STACK, such as organization/busbar/dev",
    ),
]
"""Another stack, whose outputs are read."""
EnvName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
CronSchedule = Annotated[
    str,
    Matching(
        r"[0-9A-Za-z*/,?-]+( [0-9A-Za-z*/,?-]+){4}|@[a-z]+( [0-9a-z]+)?",
        "a cron schedule of five fields, such as '0 */12 * * *'",
    ),
    AfterValidator(_cron),
]
ExportedFolder = Annotated[
    str,
    AfterValidator(_exported_folder),
    Matching(r"/|(/[A-Za-z0-9._-]+)+", "an absolute path without spaces, such as /srv/busbar"),
]
