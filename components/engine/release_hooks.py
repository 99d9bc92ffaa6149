"""Hooks on a Helm release that repair what an interrupted update left in Helm's records.

The engine calls them just before it creates or updates the release, never in a preview. busbar.helm.releases
describes the repairs and their reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pulumi

from busbar.helm import releases
from busbar.kube.client import Api, RestApi


def create_recovery_hooks(
    name: str,
    release: str,
    namespace: str,
    kubeconfig: pulumi.Input[str],
    check: Callable[[RestApi], Awaitable[None]] | None = None,
    before_change: Callable[[Api], None] | None = None,
) -> pulumi.ResourceHookBinding:
    """The hooks for the Release resource `name` of a `release` in Helm. `check` is called before its
    installation, `before_change` also before each upgrade.
    """

    async def before_create(_: pulumi.ResourceHookArgs) -> None:
        if before_change:
            await run_on_cluster(kubeconfig, before_change)
        await run_on_cluster(kubeconfig, lambda api: releases.before_install(api, release, namespace))
        if check:
            await check(RestApi(str(await pulumi.Output.from_input(kubeconfig).future())))

    async def before_update(_: pulumi.ResourceHookArgs) -> None:
        if before_change:
            await run_on_cluster(kubeconfig, before_change)
        await run_on_cluster(kubeconfig, lambda api: releases.before_upgrade(api, release, namespace))

    async def on_error(_: pulumi.ErrorHookArgs) -> bool:
        # Imported here: no other update needs it.
        from busbar.helm import hook_jobs

        await run_on_cluster(kubeconfig, lambda api: "\n".join(hook_jobs.problems(api, namespace)))
        return False

    return pulumi.ResourceHookBinding(
        before_create=[pulumi.ResourceHook(f"{name}-before-create", before_create)],
        before_update=[pulumi.ResourceHook(f"{name}-before-update", before_update)],
        on_error=[pulumi.ErrorHook(f"{name}-on-error", on_error)],
    )


async def run_on_cluster(kubeconfig: pulumi.Input[str], step: Callable[[Api], str | None]) -> None:
    """Run the step of a hook, and show the message that it returns as a warning."""
    # The kubeconfig is known when a hook runs.
    text = str(await pulumi.Output.from_input(kubeconfig).future())
    # The step runs in a thread, because the program's event loop serves the engine meanwhile.
    if message := await asyncio.to_thread(lambda: step(RestApi(text))):
        pulumi.log.warn(message)
