"""Measures a cluster that busbar did not create, and exports the verdict as a busbar stack does.

Creates a namespace, the MPIJob in it, and nothing else. Ends with the reasons unless the verdict is a pass.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pulumi

from busbar.components.engine.capability_stack import refuse_other_cluster
from busbar.components.engine.cluster_objects import create_cluster_provider, create_privileged_namespace
from busbar.components.engine.stack_outputs import export_all, fail_unless_passed
from busbar.components.nccl_validation import NcclValidation, NcclValidationArgs
from busbar.kube.client import ApiError, RestApi
from busbar.names import VALIDATION_NAMESPACE
from busbar.outputs import NAMES, build_measured


async def main() -> None:
    config = pulumi.Config()
    name, kubeconfig = config.require("cluster"), config.require_secret("kubeconfig")
    try:
        args = NcclValidationArgs(kubeconfig=kubeconfig, **config.require_object("measurement"))
    except TypeError as error:
        raise pulumi.RunError(f"busbar-measure:measurement: {error}. Fix: Pulumi.example.yaml") from None

    identifier = await _uid(kubeconfig)
    await refuse_other_cluster(name, identifier)
    provider = create_cluster_provider(kubeconfig, identifier)
    namespace = create_privileged_namespace(
        "namespace",
        VALIDATION_NAMESPACE,
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


async def _uid(kubeconfig: pulumi.Output[str]) -> str:
    """The UID of the namespace kube-system: no other cluster has it."""
    text = await kubeconfig.future()
    try:
        found = await asyncio.to_thread(lambda: RestApi(str(text)).get("/api/v1/namespaces/kube-system"))
    except (ApiError, ValueError) as error:
        raise pulumi.RunError(f"busbar-measure:kubeconfig: {error}") from None
    return str(found["metadata"]["uid"])


def _get(key: str, outputs: dict[str, Any]) -> Any:
    return outputs.get(key)


pulumi.run(main)
