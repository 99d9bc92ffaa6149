"""Data files beside the code."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

# libyaml's parser where PyYAML has it: some 8 times quicker, which a command's start-up shows
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(package: str, name: str) -> Any:
    """The content of the YAML file NAME of PACKAGE. Raises FileNotFoundError."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_Loader)
