"""A valid site with some values changed, and what is found wrong in it."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from busbar.config import ConfigError, load, warnings
from tests.support.clusters import site

GONE = object()
"""Put in place of a value, it takes out the key."""


def _steps(path: str) -> Iterator[str | int]:
    for step in path.replace("[", ".[").split("."):
        yield int(step[1:-1]) if step.startswith("[") else step


def edited(edits: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """The site of these sections with values put in by their paths, which are written as in a message."""
    data = copy.deepcopy(site(**sections))
    for path, value in edits.items():
        *steps, last = _steps(path)
        place: Any = data
        for step in steps:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        if value is GONE:
            del place[last]
        else:
            place[last] = value
    return data


def value_at(loaded: Any, path: str) -> Any:
    """The value at the path of a loaded configuration."""
    for step in _steps(path):
        inside = isinstance(step, int) or isinstance(loaded, dict)
        loaded = loaded[step] if inside else getattr(loaded, str(step))
    return loaded


def findings(data: Any, **options: Any) -> list[str]:
    """The errors of a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(data, **options)
    return [*map(str, caught.value.findings)]


def noted(data: Any, start: str = "") -> list[str]:
    """The warnings that begin so."""
    cluster = load(data, secret_keys=("s3AccessKey", "s3SecretKey"))
    return [text for text in map(str, warnings(cluster)) if text.startswith(start)]


def assert_said(text: str, phrases: str) -> None:
    """TEXT has the PHRASES, which `...` separates, in this order."""
    rest = text
    for phrase in phrases.split(" ... "):
        assert phrase in rest, text
        rest = rest.partition(phrase)[2]
