"""Hooks on a Helm release that put right what a killed update left behind.

The engine calls them just before it creates or updates the release, never in a preview. What is decided, and
why, is in busbar.kube.helm_leftovers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pulumi

from busbar.helm import records as helm_records
from busbar.helm import recovery as helm_leftovers
from busbar.kube.client import Api, RestApi


def leftovers(
    role: str,
    *,
    name: str,
    namespace: pulumi.Input[str],
    chart: str,
    values: Mapping[str, Any],
    kubeconfig: pulumi.Input[str],
) -> pulumi.ResourceHookBinding:
    """The hooks for the release `name` whose resource is called `role`."""

    async def before_create(_: pulumi.ResourceHookArgs) -> None:
        wanted = helm_leftovers.Wanted(
            name=name,
            namespace=await _known(namespace),
            chart=helm_records.chart_name(chart),
            values=values,
            # The release gpu-operator is configured as gpu_operator.
            without=f"{name.replace('-', '_')}.enabled: false",
        )
        await asked_of_cluster(lambda api: helm_leftovers.before_install(api, wanted))

    async def before_update(_: pulumi.ResourceHookArgs) -> None:
        where = await _known(namespace)
        await asked_of_cluster(lambda api: helm_leftovers.before_upgrade(api, name, where))

    async def asked_of_cluster(step: Callable[[Api], str | None]) -> None:
        text = await _known(kubeconfig)
        # In a thread: the program's event loop serves the engine meanwhile.
        if found := await asyncio.to_thread(lambda: step(RestApi(text))):
            pulumi.log.warn(found)

    return pulumi.ResourceHookBinding(
        before_create=[pulumi.ResourceHook(f"{role}-before-create", before_create)],
        before_update=[pulumi.ResourceHook(f"{role}-before-update", before_update)],
    )


async def _known(value: pulumi.Input[str]) -> str:
    """The value behind an Output, which by the time of a hook is there."""
    return str(await pulumi.Output.from_input(value).future())
