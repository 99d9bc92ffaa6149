"""The provider for everything that lives on the cluster."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as kubernetes


def create_cluster_provider(
    kubeconfig: pulumi.Input[str], opts: pulumi.ResourceOptions
) -> kubernetes.Provider:
    """Register the provider `cluster`."""
    return kubernetes.Provider(
        "cluster",
        kubeconfig=kubeconfig,
        # Constant, so that a new kubeconfig does not replace everything on the cluster.
        cluster_identifier=f"{pulumi.get_project()}-{pulumi.get_stack()}",
        # An object that an interrupted update made without recording it is adopted by the next one.
        upsert_existing_objects=True,
        opts=opts,
    )
