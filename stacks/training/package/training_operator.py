"""Kubeflow Training Operator v1: the values of charts/training-operator."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.config.cluster import Taint
from busbar.manifests.operators import Operator, Values
from stacks.training.package.config import TrainingOperator


def _values(config: TrainingOperator, taints: Sequence[Taint]) -> Values:
    return {"image": config.image, "kinds": list(config.kinds), "initContainerImage": config.init_image}


TRAINING_OPERATOR = Operator(
    config_key="training_operator",
    release="training-operator",
    namespace="training-operator",
    derived=_values,
)
