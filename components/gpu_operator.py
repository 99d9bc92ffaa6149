"""NVIDIA GPU Operator, done when every worker offers its GPUs."""

from collections.abc import Mapping, Sequence

import pulumi

from busbar.components.engine.helm import HelmOperator
from busbar.config import cluster as models
from busbar.config.cluster import Taint
from busbar.manifests.operators import GPU_OPERATOR
from busbar.manifests.scheduling import GPU_RESOURCE


class GpuOperator(HelmOperator):
    """Makes the Namespace, the Helm Release, and a Command that waits for `nvidia.com/gpu` on every worker.

    If another tool has installed the operator, only the wait is made. The release brings the CRDs of
    node-feature-discovery. `nodes`: Node name -> number of GPUs. `taints`: those of these Nodes.
    """

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        kubeconfig: pulumi.Input[str],
        config: models.GpuOperator,
        nodes: Mapping[str, int],
        taints: Sequence[Taint] = (),
    ) -> None:
        super().__init__(
            GPU_OPERATOR, name, opts, kubeconfig=kubeconfig, config=config, chart=config, taints=taints
        )
        self._wait_for_devices(f"{name}-gpus", config, GPU_RESOURCE, nodes, self.releases)
        self.register_outputs({"version": self.version})
