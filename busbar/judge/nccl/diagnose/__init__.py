"""Known failure patterns: the meaning of lines and of check results, and what to run next."""

from functools import partial

from busbar.judge.nccl.expected.profiles import read_yaml

load = partial(read_yaml, __name__)
"""The content of a YAML file beside this one, by its name."""
