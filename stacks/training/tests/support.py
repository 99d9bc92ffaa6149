"""A cluster that has passed, as stacks/training reads it, and configurations for it."""

import tarfile
from typing import Any

import yaml

from busbar.outputs import ClusterOutputs
from stacks.training.package import config
from stacks.training.package.config import Training
from stacks.training.package.target import Target, targets
from stacks.training.package.trainer import TRAINING_OPERATOR_CHART
from tests.support.measured import outputs
from tests.support.verdicts import passing


def training_operator_crd() -> dict[str, Any]:
    """The CRD of PyTorchJobs that is installed."""
    with tarfile.open(TRAINING_OPERATOR_CHART) as archive:
        file = archive.extractfile("training-operator/templates/crd.yaml")
        assert file is not None
        found: dict[str, Any] = yaml.load(file.read(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


CLUSTER = "organization/busbar/site"


def cluster(verdict: dict[str, Any] | None = None, **change: Any) -> ClusterOutputs:
    """The outputs of a site of two H100 workers, read; `change` replaces fields."""
    read = ClusterOutputs.from_dict(outputs(verdict))
    return ClusterOutputs.model_validate({**read.model_dump(), **change})


def target(config: Training, **site: Any) -> Target:
    """The only pool of a site that was measured (tests.support.measured)."""
    [found] = targets(ClusterOutputs.from_dict(outputs(**site)), config).values()
    return found


def curve(**gbps: float) -> dict[str, Any]:
    """A pass whose all_reduce was measured at these sizes: curve(B1024=1.5)."""
    verdict = passing()
    [result] = verdict["collectives"].values()
    [point, *_] = result["curve"]
    rows = []
    for name, busbw in gbps.items():
        half = {**point["in_place"], "busbw_gbps": busbw}
        rows.append({**point, "size_bytes": int(name[1:]), "in_place": half, "out_of_place": half})
    return {**verdict, "collectives": {"all_reduce": {**result, "curve": rows}}}


def configured(**values: Any) -> dict[str, Any]:
    return {"cluster": CLUSTER, **values}


def training(**values: Any) -> Training:
    return config.load(configured(**values))
