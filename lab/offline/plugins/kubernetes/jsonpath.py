"""The part of JSONPath (RFC 9535) that wait conditions need: names, indexes, wildcards and filters.

`$.status.phase`, `$.status.conditions[?(@.type=="Succeeded" && @.status=="True" || @.type=="Failed")].type`
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<number>-?\d+(?:\.\d+)?)"""
    r"""|(?P<symbol>\|\||&&|==|!=|<=|>=|[$@.\[\]*?()!<>])|(?P<name>[A-Za-z_][\w-]*))"""
)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LITERALS: Final = {"true": True, "false": False, "null": None}
_NOTHING: Final = object()

Selector = Callable[[Any], list[Any]]
Test = Callable[[Any], bool]


class JsonPathError(ValueError):
    """The expression is not understood."""


def parse(expression: str) -> Selector:
    """A function from a document to the values that `expression` selects; raises JsonPathError."""
    reader = _Reader(expression)
    reader.expect("$")
    select = reader.path()
    if reader.peek() is not None:
        raise JsonPathError(f"{expression!r}: unexpected {reader.peek()!r}")
    return select


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match or match.lastgroup is None:
                raise JsonPathError(f"{text!r}: cannot read {text[position:]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def peek(self) -> str | None:
        return self._tokens[0][1] if self._tokens else None

    def take(self) -> tuple[str, str]:
        if not self._tokens:
            raise JsonPathError(f"{self._text!r}: ends too early")
        return self._tokens.pop(0)

    def expect(self, symbol: str) -> None:
        found = self.take()[1]
        if found != symbol:
            raise JsonPathError(f"{self._text!r}: expected {symbol!r}, got {found!r}")

    def path(self) -> Selector:
        segments: list[Selector] = []
        while self.peek() in (".", "["):
            segments.append(self._dotted() if self.take()[1] == "." else self._bracketed())

        def select(document: Any) -> list[Any]:
            values = [document]
            for segment in segments:
                values = [found for value in values for found in segment(value)]
            return values

        return select

    def _dotted(self) -> Selector:
        kind, text = self.take()
        if text == "*":
            return _children
        if kind != "name":
            raise JsonPathError(f"{self._text!r}: expected a name after the dot, got {text!r}")
        return _member(text)

    def _bracketed(self) -> Selector:
        kind, text = self.take()
        if kind == "string":
            selector = _member(_unquote(text))
        elif kind == "number":
            selector = _element(int(text))
        elif text == "*":
            selector = _children
        elif text == "?":
            test = self._either()

            def selector(value: Any) -> list[Any]:
                return [item for item in _children(value) if test(item)]

        else:
            raise JsonPathError(f"{self._text!r}: cannot select by {text!r}")
        self.expect("]")
        return selector

    def _either(self) -> Test:
        tests = [self._both()]
        while self.peek() == "||":
            self.take()
            tests.append(self._both())
        return lambda value: any(test(value) for test in tests)

    def _both(self) -> Test:
        tests = [self._single()]
        while self.peek() == "&&":
            self.take()
            tests.append(self._single())
        return lambda value: all(test(value) for test in tests)

    def _single(self) -> Test:
        if self.peek() == "!":
            self.take()
            negated = self._single()
            return lambda value: not negated(value)
        if self.peek() == "(":
            self.take()
            inner = self._either()
            self.expect(")")
            return inner
        left = self._operand()
        if self.peek() not in _COMPARISONS:
            return lambda value: left(value) is not _NOTHING
        compare = _COMPARISONS[self.take()[1]]
        right = self._operand()

        def test(value: Any) -> bool:
            try:
                return compare(left(value), right(value))
            except TypeError:
                return False  # values of different types have no order

        return test

    def _operand(self) -> Callable[[Any], Any]:
        kind, text = self.take()
        if text == "@":
            select = self.path()

            def first(value: Any) -> Any:
                found = select(value)
                return found[0] if found else _NOTHING

            return first
        if kind == "string":
            constant: Any = _unquote(text)
        elif kind == "number":
            constant = json.loads(text)
        elif text in _LITERALS:
            constant = _LITERALS[text]
        else:
            raise JsonPathError(f"{self._text!r}: cannot compare with {text!r}")
        return lambda value: constant


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _member(name: str) -> Selector:
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _element(index: int) -> Selector:
    return lambda value: (
        [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []
    )


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
