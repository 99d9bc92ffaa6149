"""Hooks on a Helm release that repair what an interrupted update left in Helm's records.

The engine calls them just before it creates or updates the release, never in a preview. What is repaired, and
why, is in busbar.helm.recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from busbar.helm import records, recovery
from busbar.kube.client import Api, RestApi


@dataclass(frozen=True, kw_only=True)
class RecoveryArgs:
    """The release as configured. `disable_setting` would leave it out of the stack: for the error message."""

    release: str
    namespace: pulumi.Input[str]
    chart: str
    values: Mapping[str, Any]
    disable_setting: str
    kubeconfig: pulumi.Input[str]


def create_recovery_hooks(name: str, args: RecoveryArgs) -> pulumi.ResourceHookBinding:
    """The hooks for the Release resource that is called `name`."""

    async def before_create(_: pulumi.ResourceHookArgs) -> None:
        desired = recovery.DesiredRelease(
            name=args.release,
            namespace=await _resolve(args.namespace),
            chart=records.chart_name(args.chart),
            values=args.values,
            disable_setting=args.disable_setting,
        )
        await run_on_cluster(lambda api: recovery.before_install(api, desired))

    async def before_update(_: pulumi.ResourceHookArgs) -> None:
        namespace = await _resolve(args.namespace)
        await run_on_cluster(lambda api: recovery.before_upgrade(api, args.release, namespace))

    async def run_on_cluster(step: Callable[[Api], str | None]) -> None:
        text = await _resolve(args.kubeconfig)
        # In a thread: the program's event loop serves the engine meanwhile.
        if message := await asyncio.to_thread(lambda: step(RestApi(text))):
            pulumi.log.warn(message)

    return pulumi.ResourceHookBinding(
        before_create=[pulumi.ResourceHook(f"{name}-before-create", before_create)],
        before_update=[pulumi.ResourceHook(f"{name}-before-update", before_update)],
    )


async def _resolve(value: pulumi.Input[str]) -> str:
    """The value behind an Output, which is known by the time of a hook."""
    return str(await pulumi.Output.from_input(value).future())
