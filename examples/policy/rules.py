"""The rules as functions. Each returns why a cluster may not be used, or None."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from busbar.outputs import ClusterOutputs

SECONDS = 120
PROVIDER = "pulumi:providers:kubernetes"


class Unreadable(Exception):
    """The outputs of a cluster's stack cannot be read, so nothing is known of the cluster."""


def read(stack: str) -> ClusterOutputs:
    """The outputs of a busbar stack, by `pulumi stack output`. Raises Unreadable."""
    words = ["pulumi", "stack", "output", "--json", "--stack", stack]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        return ClusterOutputs.from_dict(json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        raise Unreadable(f"{' '.join(words)}: {error.stderr.strip()}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise Unreadable(f"{' '.join(words)}: {error}") from None


def uses(resources: Iterable[tuple[str, Mapping[str, Any]]], cluster: ClusterOutputs) -> bool:
    """Whether a Kubernetes provider among these resources (type, properties) is one of the cluster."""
    return any(
        kind == PROVIDER and found.get("clusterIdentifier") == cluster.identifier for kind, found in resources
    )


def not_passed(cluster: ClusterOutputs) -> str | None:
    """The fabric has not passed its measurement."""
    return cluster.refusal


def stale(cluster: ClusterOutputs, max_age_days: float, now: datetime | None = None) -> str | None:
    """A verdict stayed although the cluster has changed, or is older than `max_age_days`."""
    oldest = (now or datetime.now(UTC)) - timedelta(days=max_age_days)
    for name, pool in cluster.nccl.items():
        if pool.stale:
            since = "; ".join(pool.stale)
            return f"pool {name} was measured before: {since}. Fix: busbar up when its GPUs are free"
        if pool.measured_at is None or pool.measured_at < oldest:
            at = pool.measured_at.isoformat() if pool.measured_at else "at an unknown time"
            fix = "raise validation.run, then busbar up"
            return f"pool {name} was measured {at}, more than {max_age_days:g} days ago. Fix: {fix}"
    return None


def not_accepted(cluster: ClusterOutputs, config: Mapping[str, Any]) -> str | None:
    """No known signer has accepted this cluster, by `busbar accept verify`; not judged without a folder."""
    given = [key for key in ("acceptance", "signers") if key in config]
    if len(given) == 1:
        return f"the policy's configuration has only {given[0]}. Fix: give acceptance and signers, or none"
    if not given:
        return None
    folder, signers = (Path(config[key]) for key in given)
    words = ["busbar", "accept", "verify", str(folder), "--signers", str(signers)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        accepted = json.loads((folder / "acceptance.json").read_text(encoding="utf-8"))["cluster_id"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return f"the acceptance in {folder} cannot be verified: {error!r}"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return f"{' '.join(words)} ended with {done.returncode}: {''.join(said)}"
    # A cluster that was measured or accepted without its hosts has no id.
    if accepted is None or accepted != cluster.cluster_id:
        what = f"the cluster {accepted}" if accepted else "a cluster without an id"
        return f"{folder} accepts {what}, and this is {cluster.identifier}"
    return None
