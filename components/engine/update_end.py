"""The end of an update: what it has installed is looked for on the cluster after the engine's deletions."""

from __future__ import annotations

import asyncio

import pulumi
from pulumi.runtime import stack as sdk

from busbar.helm import installed
from busbar.kube.client import ApiError
from busbar.kube.wait import TimedOut

expected: list[tuple[pulumi.CustomResource, str, str | None]] = []
"""All that the program has registered: the resource, its namespace, and its release if it is one."""


def check_after_deletions(kubeconfig: pulumi.Input[str]) -> None:
    """Have the update fail if a release or namespace of this program is not on the cluster at its end.

    The engine deletes after the program: the former halves of replacements, also those that an earlier update
    has left, and resources with a URN that is not registered any more. Each removes an object by its name,
    also one that the configuration has. The SDK's wait for the engine's end is the only place of a program
    that comes after them; an error there fails the update (pulumi/pulumi
    pkg/resource/deploy/source_eval.go, resmon.Cancel).
    """
    wait = sdk._wait_for_shutdown

    async def wait_and_check() -> None:
        await wait()
        await fail_unless_installed(kubeconfig)

    sdk._wait_for_shutdown = wait_and_check


async def fail_unless_installed(kubeconfig: pulumi.Input[str]) -> None:
    """Raise pulumi.RunError if a release or namespace of the program is not on the cluster, or if the API
    is not responding. What has failed in this update has its own error."""
    text = await pulumi.Output.from_input(kubeconfig).future()
    made = [(namespace, release) for each, namespace, release in expected if await each.id.is_known()]
    if pulumi.runtime.is_dry_run() or text is None:
        return
    try:
        missing = await asyncio.to_thread(installed.ask, text, made)
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
