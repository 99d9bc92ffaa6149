"""Hooks on a Helm release that recover it after an interrupted update.

The engine calls them just before it creates or updates the release, never in a preview. The rules are in
busbar.helm.recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pulumi

from busbar.helm import records, recovery
from busbar.kube.client import Api, RestApi


def recovery_hooks(
    role: str,
    *,
    name: str,
    namespace: pulumi.Input[str],
    chart: str,
    values: Mapping[str, Any],
    disable_setting: str,
    kubeconfig: pulumi.Input[str],
) -> pulumi.ResourceHookBinding:
    """The hooks for the release `name` whose resource is called `role`.

    `disable_setting` is the setting that leaves the release out of the stack, for the error message.
    """

    async def before_create(_: pulumi.ResourceHookArgs) -> None:
        desired = recovery.DesiredRelease(
            name=name,
            namespace=await _known(namespace),
            chart=records.chart_name(chart),
            values=values,
            disable_setting=disable_setting,
        )
        await run_on_cluster(lambda api: recovery.before_install(api, desired))

    async def before_update(_: pulumi.ResourceHookArgs) -> None:
        where = await _known(namespace)
        await run_on_cluster(lambda api: recovery.before_upgrade(api, name, where))

    async def run_on_cluster(step: Callable[[Api], str | None]) -> None:
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
