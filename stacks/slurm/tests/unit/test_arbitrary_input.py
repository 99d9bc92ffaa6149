"""Whatever stands in the configuration: findings with their paths, or files with a line per node."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.config import ConfigError
from stacks.slurm.package import config, render
from stacks.slurm.tests.support import compute, configured, facts
from tests.support.arbitrary import ANYTHING, places, replaced

FULL = configured(
    hosts=compute(
        {"topology": {"rail_group": "su-1", "block": "b-1"}},
        {"topology": {"rail_group": "su-2", "block": "b-1"}, "quarantine": "RMA 7"},
    ),
    partitions={"batch": {"pools": ["h100"], "default": True, "max_time": "1-00:00:00"}},
    packages="/srv/debs",
    home={"path": "/home", "shared": True},
    users={"create": True, "accounts": {"ada": {"uid": 5001, "ssh_keys": ["ssh-ed25519 AAAA ada"]}}},
    removal={"cancel_jobs": True, "timeout_seconds": 60},
    health_check={"enabled": True, "interval_seconds": 300},
    parameters={"MaxJobCount": "50000"},
    validation={
        "image": "/images/nccl.sqsh",
        "collectives": ["all_reduce"],
        "min_bytes": "1M",
        "env": {"A": "b"},
        "when_busy": "wait",
    },
)


@settings(max_examples=200)
@given(place=st.sampled_from(places(FULL)), value=ANYTHING)
def test_any_value_gives_findings_or_files_with_a_line_per_node(place: tuple[Any, ...], value: Any) -> None:
    try:
        made = config.load(replaced(FULL, place, value))
    except ConfigError as error:
        assert error.findings
        # A path begins with a key of the configuration, or is that of the whole.
        keys = (*config.Slurm.model_fields, "busbar-slurm")
        assert all(
            re.match(rf"(?s)({'|'.join(map(re.escape, keys))})\b.*: ", each)
            for each in map(str, error.findings)
        )
        return
    texts = {**render.files(made, facts(made)), "users": render.users(made)}
    names = re.findall(r"(?m)^NodeName=(\S+) ", texts["slurm.conf"])
    assert names == [host.name for host in made.hosts.compute]
    assert all(text.isprintable() for each in texts.values() for text in each.split("\n"))
