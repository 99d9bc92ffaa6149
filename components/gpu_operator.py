"""NVIDIA GPU Operator, done when every worker offers its GPUs."""

from dataclasses import dataclass

import pulumi

from busbar.components.engine.helm import DeviceOperatorArgs, HelmOperator
from busbar.config import cluster as models
from busbar.manifests.operators import GPU_OPERATOR
from busbar.manifests.scheduling import GPU_RESOURCE


@dataclass(frozen=True, kw_only=True)
class GpuOperatorArgs(DeviceOperatorArgs):
    """`nodes`: Node name -> number of GPUs."""

    config: models.GpuOperator


class GpuOperator(HelmOperator):
    """Makes the Namespace, the Helm Release, and a Command that waits for `nvidia.com/gpu` on every worker.

    If another tool has installed the operator, only the wait is made. The release brings the CRDs of
    node-feature-discovery.
    """

    ready: pulumi.Output[str]

    def __init__(self, name: str, args: GpuOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(GPU_OPERATOR, name, args, opts, chart=args.config, taints=args.taints)
        self.ready = self._wait_for_devices(f"{name}-gpus", GPU_RESOURCE, args, self.releases)
        self.register_outputs({"version": self.version, "ready": self.ready})
