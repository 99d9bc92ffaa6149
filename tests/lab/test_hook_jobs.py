"""Hook Jobs of the operators' charts that cannot run: `make drills`.

Helm waits for them and does not say what they lack. In tests/engine/test_hook_jobs.py an installation and an
uninstallation wait too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.lab import Lab

pytestmark = pytest.mark.drill

TAINT = "busbar-drill=hook:NoSchedule"


def waiting_shortly(lab: Lab, section: str, values: dict[str, Any]) -> str:
    """Return the output of an update that changes these values of an operator. It must fail."""

    def change(cluster: dict[str, Any]) -> None:
        cluster[section] |= {"values": values, "timeout_seconds": 20}

    done = lab.up("--config-file", str(lab.config_with(change)))
    assert done.returncode != 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def update(lab: Lab) -> None:
    """The next update, after nothing but what was named has been changed."""
    done = lab.up()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_hook_job_without_its_image_is_named_and_the_next_update_succeeds(lab: Lab) -> None:
    said = waiting_shortly(lab, "gpu_operator", {"operator": {"version": "missing"}})
    assert "hook Job gpu-operator/gpu-operator-upgrade-crd: " in said, said
    assert "busbar-lab/devices:missing" in said, said
    update(lab)


@pytest.fixture
def tainted(lab: Lab) -> Iterator[None]:
    """All nodes have a taint that the chart does not tolerate."""
    lab.kubectl(f"taint node --all {TAINT}")
    yield
    lab.kubectl(f"taint node --all {TAINT}- || true")


@pytest.mark.usefixtures("tainted")
def test_a_hook_job_without_a_node_is_named_and_the_next_update_succeeds(lab: Lab) -> None:
    said = waiting_shortly(lab, "network_operator", {"operator": {"imagePullPolicy": "IfNotPresent"}})
    assert "hook Job nvidia-network-operator/network-operator-" in said, said
    assert "untolerated taint" in said, said
    lab.kubectl(f"taint node --all {TAINT}-")
    update(lab)
