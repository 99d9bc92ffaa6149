"""The lab as a site for benches: its configuration without the measurement, and newly booted hosts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import yaml

from bench.project import ROOT

LAB_DEADLINE_SECONDS = 900


def cluster() -> dict[str, Any]:
    """`busbar:cluster` of the lab's stack without the measurement, with the lab's files by absolute path."""
    content = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())["config"]["busbar:cluster"]
    content["ssh"]["key_file"] = str(ROOT / content["ssh"]["key_file"])
    content["k3s"]["checksums_file"] = str(ROOT / content["k3s"]["checksums_file"])
    content["validation"]["enabled"] = False
    return dict(content)


def fresh_hosts() -> None:
    """Take the lab down and boot it."""
    lab("down")
    lab("up")


def lab(verb: str) -> None:
    """`python -m lab VERB`; ends the bench if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", verb],
        cwd=ROOT, capture_output=True, text=True, timeout=LAB_DEADLINE_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"python -m lab {verb} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
