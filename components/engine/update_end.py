"""The end of an update: checks after the engine's deletions that installed objects are on the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi.runtime import stack as sdk

from busbar.helm import releases
from busbar.kube.client import ApiError, RestApi
from busbar.kube.wait import TimedOut

HOOK_SECONDS = 20
"""How often hook Jobs of uninstallations are looked at."""


@dataclass(frozen=True)
class Installed:
    """A namespace that a program has made, or, with its name, a Helm release in it."""

    resource: pulumi.CustomResource
    namespace: str
    release: str | None = None


def check_after_deletions(kubeconfig: pulumi.Input[str], made: Sequence[Installed]) -> None:
    """Make the update fail if a release or namespace of `made` is not on the cluster at its end.

    The engine deletes after the program: the former parts of replacements, also those that an earlier update
    has left, and resources whose URN is not registered any more. Each deletion removes an object by its name,
    even if the configuration has it. The SDK's wait for the engine's end is the only place in a program that
    comes after these deletions; an error there fails the update (pulumi/pulumi
    pkg/resource/deploy/source_eval.go, resmon.Cancel).
    """
    wait = sdk._wait_for_shutdown

    async def wait_and_check() -> None:
        ended, warned = asyncio.ensure_future(wait()), set[str]()
        # The provider gives Helm no time limit for an uninstallation (helm_release.go, Delete).
        try:
            while not (await asyncio.wait([ended], timeout=HOOK_SECONDS))[0]:
                await _warn_of_hook_jobs(kubeconfig, warned)
        finally:
            await ended
        await _fail_unless_installed(kubeconfig, made)

    sdk._wait_for_shutdown = wait_and_check


async def _warn_of_hook_jobs(kubeconfig: pulumi.Input[str], warned: set[str]) -> None:
    from busbar.helm import hook_jobs

    text = await pulumi.Output.from_input(kubeconfig).future()
    if pulumi.runtime.is_dry_run() or text is None:
        return
    try:
        found = await asyncio.to_thread(lambda: hook_jobs.of_uninstallations(RestApi(text)))
    except (ApiError, ValueError):
        return  # asked again later
    for line in found:
        if line not in warned:
            pulumi.warn(f"an uninstallation waits for the {line}")
    warned.update(found)


async def _fail_unless_installed(kubeconfig: pulumi.Input[str], made: Sequence[Installed]) -> None:
    """Raise pulumi.RunError if a release or namespace of `made` is not on the cluster, or if the API is not
    responding. Resources that failed in this update are not checked: they have their own errors."""
    text = await pulumi.Output.from_input(kubeconfig).future()
    expected = [(each.namespace, each.release) for each in made if await each.resource.id.is_known()]
    if pulumi.runtime.is_dry_run() or text is None:
        return
    try:
        missing = await asyncio.to_thread(releases.ask, text, expected)
    except ValueError as error:
        pulumi.warn(f"it is unknown whether the Helm releases are installed: {error}")
        return
    except (ApiError, TimedOut) as error:
        raise pulumi.RunError(f"it is unknown whether the Helm releases are installed: {error}") from None
    if missing:
        raise pulumi.RunError(
            "\n".join(f"{each}, although this stack has installed it" for each in missing)
            + f"\nFix: `busbar up {pulumi.get_stack()} --converge cluster`, or `pulumi up --refresh`"
        )
