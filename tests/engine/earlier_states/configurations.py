"""The configurations of the states: together they use every option of revision 84223d6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.clusters import site


@dataclass(frozen=True)
class Configuration:
    """The object of a stack's file, and its secrets."""

    content: Mapping[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict)


CORE: Mapping[str, Configuration] = {"plain": Configuration(site())}
