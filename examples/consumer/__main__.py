"""Uses a cluster that busbar made, and refuses one whose NCCL validation has not passed.

Creates the ConfigMap `fabric`: a training job mounts it and reads the bandwidth to expect.
Exports `training_ready` (nodes, GPUs, bandwidth), or ends with the reasons of the failed validation.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.stack import load_cluster, refuse_other_cluster


async def main() -> None:
    config = pulumi.Config()
    cluster = await load_cluster(config.require("cluster"))
    if cluster.refusal:
        raise pulumi.RunError(cluster.refusal)
    await refuse_other_cluster(cluster.cluster_name, cluster.identifier)

    busbw = round(cluster.nccl_busbw_gbps or 0.0, 2)
    workers = [node for node in cluster.nodes if node.role == "worker"]
    provider = kubernetes.Provider(
        "cluster",
        kubeconfig=cluster.kubeconfig,
        # It identifies the cluster: neither a new kubeconfig nor another name replaces what is on it.
        cluster_identifier=cluster.identifier,
    )
    fabric = kubernetes.core.v1.ConfigMap(
        "fabric",
        metadata={"name": "fabric", "namespace": config.require("namespace")},
        data={
            "busbw_gbps": str(busbw),
            "expected_gbps": f"{cluster.nccl_expected_gbps:.2f}" if cluster.nccl_expected_gbps else "",
            "transport": ",".join(sorted({pool.transport for pool in cluster.nccl.values()})),
            # Empty on real hardware. A simulated number says nothing about a real fabric.
            "simulated": "; ".join(
                sorted({pool.simulated for pool in cluster.nccl.values() if pool.simulated})
            ),
        },
        opts=pulumi.ResourceOptions(provider=provider),
    )
    pulumi.export(
        "training_ready",
        {
            "cluster": cluster.cluster_name,
            "nodes": len(workers),
            "gpus": sum(worker.gpus for worker in workers),
            "busbw_gbps": busbw,
            "config_map": fabric.metadata["name"],
        },
    )


pulumi.run(main)
