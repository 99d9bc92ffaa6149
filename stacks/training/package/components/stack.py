"""The configuration of the selected stack of stacks/training, and the cluster that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from busbar.components.engine.stack import load_cluster, load_config, refuse_other_cluster
from busbar.outputs import ClusterOutputs
from stacks.training.package import config, target
from stacks.training.package.config import Training
from stacks.training.package.target import Target


@dataclass(frozen=True, kw_only=True)
class TrainingStack:
    """A checked configuration, and the outputs of a passed cluster. `targets`: the pools to use, by name."""

    training: Training
    cluster: ClusterOutputs
    targets: Mapping[str, Target]

    @classmethod
    async def load(cls) -> TrainingStack:
        """Read the configuration, then the outputs of the cluster's stack.

        Raises pulumi.RunError, before any resource on the cluster is registered, with every finding of the
        configuration, or with the reasons for which the cluster may not be used.
        """
        training = load_config(config.CONFIG)
        cluster = await load_cluster(training.cluster)
        try:
            training = target.with_cluster_export(cluster, training)
            targets = target.targets(cluster, training)
        except target.Refused as refused:
            raise pulumi.RunError(str(refused)) from None
        await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
        for warning in target.warnings(targets, training):
            pulumi.warn(warning)
        return cls(training=training, cluster=cluster, targets=targets)
