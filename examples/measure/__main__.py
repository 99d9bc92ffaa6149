"""Measures a cluster that busbar did not create, and exports the verdict as a busbar stack does.

Creates a namespace, the MPIJob in it, and nothing else. Ends with the reasons unless the verdict is a pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.cluster_objects import create_privileged_namespace
from busbar.components.engine.stack_outputs import export_all, fail_unless_passed
from busbar.components.nccl_validation import NcclValidation, NcclValidationArgs
from busbar.config import Validation
from busbar.outputs import NAMES, build_measured


async def main() -> None:
    config = pulumi.Config()
    name, kubeconfig = config.require("cluster"), config.require_secret("kubeconfig")
    try:
        args = NcclValidationArgs(kubeconfig=kubeconfig, **config.require_object("measurement"))
    except TypeError as error:
        raise pulumi.RunError(f"busbar-measure:measurement: {error}. Fix: Pulumi.example.yaml") from None

    # With a constant identifier a new kubeconfig does not replace what is on the cluster.
    provider = kubernetes.Provider("cluster", kubeconfig=kubeconfig, cluster_identifier=name)
    namespace = create_privileged_namespace(
        "namespace",
        args.validation.get("namespace", Validation.model_fields["namespace"].default),
        kubeconfig,
        pulumi.ResourceOptions(provider=provider),
    )
    measured = NcclValidation(
        f"nccl-{args.pool}", args, pulumi.ResourceOptions(provider=provider, depends_on=[namespace])
    )

    outputs = measured.result.apply(lambda result: build_measured(name, {args.pool: result}))
    # What only a stack with hosts knows is None, and so no output.
    export_all({key: outputs.apply(partial(_get, key)) for key in NAMES})
    await fail_unless_passed(outputs, enforce=True)


def _get(key: str, outputs: dict[str, Any]) -> Any:
    return outputs.get(key)


pulumi.run(main)
