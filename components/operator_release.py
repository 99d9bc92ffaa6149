"""What the three operators have in common: a namespace of their own, a Helm release, and the way to wait.

Not a component itself: the operators call these with themselves as the parent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi_command import local

from busbar.config.operators import Chart
from busbar.kube.access import KUBECONFIG_TEXT
from busbar.manifests.operators import Operator
from components import helm_hooks
from components.program import busbar_command

HELM_VALUES = Path(__file__).resolve().parent.parent / "helm_values"
# Past revisions that stay as Secrets in the cluster; 0 would mean all of them, for ever.
MAX_HISTORY = 5


def namespace(role: str, name: str, opts: pulumi.ResourceOptions) -> kubernetes.core.v1.Namespace:
    """A namespace whose pods may be privileged: device plugins and drivers reach into the host."""
    return kubernetes.core.v1.Namespace(
        role,
        metadata={
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "busbar",
                **{
                    f"pod-security.kubernetes.io/{mode}": "privileged"
                    for mode in ("enforce", "audit", "warn")
                },
            },
        },
        opts=opts,
    )


def release(
    role: str,
    *,
    operator: Operator,
    namespace: kubernetes.core.v1.Namespace,
    chart: str,
    version: str | None,
    repository: str | None,
    values: Mapping[str, Any],
    timeout_seconds: int,
    kubeconfig: pulumi.Input[str],
    await_ready: bool,
    parent: pulumi.Resource,
    deleted_with: pulumi.Resource | None,
) -> kubernetes.helm.v3.Release:
    """A Helm release with hooks (operators upgrade their CRDs in them) and a bounded history.

    `deleted_with` skips the uninstallation where the whole control plane goes: a release cannot be removed
    from a cluster that is gone. `kubeconfig` is for the hooks that recover a release after a killed update.
    """
    return kubernetes.helm.v3.Release(
        role,
        kubernetes.helm.v3.ReleaseArgs(
            name=operator.release,
            namespace=namespace.metadata["name"],
            chart=chart,
            version=version,
            repository_opts=kubernetes.helm.v3.RepositoryOptsArgs(repo=repository) if repository else None,
            values=dict(values),
            timeout=timeout_seconds,
            max_history=MAX_HISTORY,
            create_namespace=False,
            skip_await=not await_ready,
            # The upgrade replaces CRDs in a hook: checked against the old ones, the new objects are refused.
            disable_openapi_validation=True,
        ),
        opts=pulumi.ResourceOptions(
            parent=parent,
            deleted_with=deleted_with,
            # One name, one release: made first, the new one would share its objects with the old one.
            delete_before_replace=True,
            hooks=helm_hooks.recovery_hooks(
                role,
                name=operator.release,
                namespace=namespace.metadata["name"],
                chart=chart,
                values=values,
                disable_setting=operator.disable_setting,
                kubeconfig=kubeconfig,
            ),
        ),
    )


def chart_release(
    role: str,
    chart: Chart,
    *,
    operator: Operator,
    namespace: kubernetes.core.v1.Namespace,
    values: Mapping[str, Any],
    timeout_seconds: int,
    kubeconfig: pulumi.Input[str],
    parent: pulumi.Resource,
    deleted_with: pulumi.Resource | None,
) -> kubernetes.helm.v3.Release:
    """The release of a configured chart. Its pods are not awaited: `wait_allocatable` explains more."""
    return release(
        role,
        operator=operator,
        namespace=namespace,
        chart=chart.chart,
        # A folder or an archive is one version, whatever it is called.
        version=None if chart.is_local else chart.version,
        repository=chart.repository_url,
        values=values,
        timeout_seconds=timeout_seconds,
        await_ready=False,
        kubeconfig=kubeconfig,
        parent=parent,
        deleted_with=deleted_with,
    )


def wait_allocatable(
    role: str,
    spec: Mapping[str, Any],
    *,
    kubeconfig: pulumi.Input[str],
    triggers: Sequence[pulumi.Input[Any]],
    parent: pulumi.Resource,
    depends_on: Sequence[pulumi.Resource],
) -> local.Command:
    """Run `busbar wait allocatable` with `spec` (busbar.kube.allocatable.AllocatableSpec)."""
    return cluster_command(
        role,
        ("wait", "allocatable"),
        json.dumps(spec, sort_keys=True),
        kubeconfig=kubeconfig,
        triggers=triggers,
        parent=parent,
        depends_on=depends_on,
    )


def cluster_command(
    role: str,
    words: Sequence[str],
    spec: pulumi.Input[str],
    *,
    kubeconfig: pulumi.Input[str],
    triggers: Sequence[pulumi.Input[Any]],
    parent: pulumi.Resource,
    depends_on: Sequence[pulumi.Resource],
) -> local.Command:
    """One `busbar` command on the machine that runs Pulumi: `spec` (JSON) on stdin, progress on stderr.

    The kubeconfig travels as a secret variable of the process: not in its arguments, not on the disk.
    """
    return local.Command(
        role,
        create=busbar_command(*words),
        stdin=spec,
        environment={KUBECONFIG_TEXT: pulumi.Output.secret(kubeconfig)},
        triggers=list(triggers),
        # stdout is the result and becomes an output; what a person wants to see meanwhile is the progress.
        logging=local.Logging.STDERR,
        add_previous_output_in_env=False,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=list(depends_on)),
    )


def version_found(release: kubernetes.helm.v3.Release, asked: str) -> pulumi.Output[str]:
    """The chart's version as Helm reports it after the installation; `asked` where it reports none."""

    def read(status: Any) -> str:
        found = status.get("version") if isinstance(status, Mapping) else None
        return str(found or asked)

    return pulumi.Output.from_input(release.status).apply(read)
