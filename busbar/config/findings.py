"""Findings about a configuration, made from pydantic's errors too, and how they show values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from busbar.exits import Misuse
from busbar.finding import Finding
from busbar.models import ConfigModel

M = TypeVar("M", bound=ConfigModel)


class ConfigError(Misuse, ValueError):
    """The configuration is invalid, and nothing was created; `str()` lists every finding, one per line."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = list(findings)
        super().__init__("\n".join(map(str, self.findings)))


def show(value: Any, limit: int = 80) -> str:
    """The value as quoted in a message; long ones are cut, private keys and passwords in URLs hidden."""
    text = re.sub(r"(?<=://)[^/@\s:]*:[^/\s]*@", "[login]@", repr(value))
    if "PRIVATE KEY" in text:
        return "(a private key)"
    return text if len(text) <= limit else f"{text[: limit - 4]}...{text[0] if text[0] in QUOTES else ''}"


QUOTES = "'\""


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean 'servers'?`, or nothing if no known word is similar (1: equal)."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_keys(keys: Iterable[str], project: str, known: Sequence[str]) -> Iterator[Finding]:
    """A finding for each unknown key `<project>:<name>`; other namespaces belong to providers."""
    for key in keys:
        namespace, _, name = key.partition(":")
        if namespace == project and name not in known:
            hint = did_you_mean(name, known) or f"; expected one of: {', '.join(known)}"
            yield Finding((key,), f"unknown key{hint}")


def section(kind: type[M], name: str, data: Mapping[str, Any]) -> M:
    """One part of `busbar:cluster`, such as `k3s`. Raises ConfigError with all findings below `name`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(finding(each, kind).below(name) for each in error.errors()) from None


def finding(error: ErrorDetails, root: type[BaseModel]) -> Finding:
    """Return the finding for an error of pydantic; `root` is the model that it has validated."""
    loc = tuple(part for part in error["loc"] if part != "[key]")
    kind = error["type"]
    if kind in ("missing", "extra_forbidden"):
        model = _model_at(root, error["loc"][:-1])
        fields = model.model_fields if model else {}
        if kind == "missing":
            field = fields.get(str(loc[-1]))
            text = " ".join((field.description or "").split()) if field else ""
            return Finding(loc, f"missing: {text}" if text else "missing")
        hint = did_you_mean(str(loc[-1]), fields) or f"; expected one of: {', '.join(fields)}"
        return Finding(loc, f"unknown key{hint}")
    is_silent = (kind == "busbar" and isinstance(error["input"], list)) or (
        kind in _SILENT_VALUE and not (kind == "too_short" and isinstance(error["input"], str))
    )
    fix = str(error.get("ctx", {}).get("fix", ""))
    return Finding(loc, _wording(error), fix, "" if is_silent else show(error["input"]))


# Errors about a whole object or list: quoting it would not help.
_SILENT_VALUE = {"too_short", "too_long", "model_type", "dict_type", "list_type"}


# Type of the error -> what is wrong; {} is filled from its context.
_WORDINGS = {
    "busbar": "{text}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is not a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "is not a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "is not true or false"),
    "string_type": "is not a text",
    "string_too_long": "is too long: expected at most {max_length} characters",
    "literal_error": "is not one of {expected}",
    "greater_than_equal": "is too small: expected at least {ge}",
    "greater_than": "is too small: expected more than {gt}",
    "less_than_equal": "is too large: expected at most {le}",
    "less_than": "is too large: expected less than {lt}",
    "too_short": "got {actual_length}, expected at least {min_length}",
    "too_long": "got {actual_length}, expected at most {max_length}",
    **dict.fromkeys(("model_type", "dict_type"), "is {kind}, expected keys with values"),
    "list_type": "is {kind}, expected a list",
}


def _wording(error: ErrorDetails) -> str:
    context = {**error.get("ctx", {}), "kind": _kind(error["input"])}
    if context.get("actual_length") == 0:
        context["actual_length"] = "none"
    known = _WORDINGS.get(error["type"])
    # For a text, pydantic says `too_short` where a validator stands before the bound.
    if isinstance(error["input"], str) and error["type"] in ("string_too_short", "too_short"):
        known = "is too short: expected at least {min_length} characters" if error["input"] else "is empty"
    return error["msg"] if known is None else known.format(**context)


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"the plain value {show(value)}"


def _model_at(root: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """The model at a path, found by the annotations (lists, dicts and Optionals included)."""
    model: type[BaseModel] | None = root
    for part in loc:
        if isinstance(part, int) or model is None:
            continue
        field = model.model_fields.get(part)
        if field is not None:
            model = _first_model(field.annotation)
        # A part that is not a field is the key of a mapping such as pools.h100: the model stays the same.
    return model


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _first_model(argument):
            return found
    return None
