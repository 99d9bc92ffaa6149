"""The tables beside this file."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def load(name: str) -> Any:
    """The content of NAME.yaml."""
    text = resources.files("busbar.judge.nccl.diagnose").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    # libyaml's parser where PyYAML has it: start-up is about 8 times faster
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
