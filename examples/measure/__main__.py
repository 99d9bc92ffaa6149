"""Measures a cluster that busbar did not create, and exports the verdict as a busbar stack does.

Creates a namespace, the MPIJob in it, and nothing else. Ends with the reasons unless the verdict is a pass
(`validation.enforce`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pulumi
from pydantic import Field

from busbar.components.engine.cluster import create_cluster_provider, create_privileged_namespace
from busbar.components.engine.stack import export_all, fail_unless_passed, refuse_other_cluster
from busbar.components.nccl_validation import NcclValidation
from busbar.config import ConfigError, section
from busbar.config.cluster import Hardware, Taint, Validation
from busbar.kube.client import ApiError, RestApi
from busbar.manifests.nccljob import nccl_job
from busbar.names import VALIDATION_NAMESPACE
from busbar.outputs import NAMES, build_measured


class Measurement(Hardware):
    """The object `busbar-measure:measurement`: the nodes of a pool, and the hardware of each.

    `hca_resources`: the extended resources of a worker pod, by default those of the profile, else one
    nvidia.com/hostdev per rail. A change of `versions` measures again.
    """

    pool: str
    nodes: list[str]
    taints: list[Taint] = Field(default=[])
    hca_resources: dict[str, int] | None = None
    versions: dict[str, str] = Field(default={})
    validation: Validation = Validation()


async def main() -> None:
    config = pulumi.Config()
    name, kubeconfig = config.require("cluster"), config.require_secret("kubeconfig")
    try:
        given = section(Measurement, "busbar-measure:measurement", config.require_object("measurement"))
    except ConfigError as error:
        raise pulumi.RunError(str(error)) from None
    job = nccl_job(
        given.pool,
        given.nodes,
        given,
        given.validation,
        taints=given.taints,
        hca_resources=given.hca_resources,
        versions=given.versions,
    )

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
        f"nccl-{given.pool}",
        pulumi.ResourceOptions(provider=provider, depends_on=[namespace]),
        kubeconfig=kubeconfig,
        job=job,
        validation=given.validation,
    )

    outputs = measured.result.apply(lambda result: build_measured(name, {given.pool: result}))
    # What only a stack with hosts knows is None, and so no output.
    export_all({key: outputs.apply(partial(_get, key)) for key in NAMES})
    await fail_unless_passed(outputs, enforce=given.validation.enforce)


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
