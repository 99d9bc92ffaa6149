"""Prometheus, Alertmanager and Grafana with their CRDs, where the stack installs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes
import pulumi_random as random

from busbar.components.engine.cluster import of_fixed_name
from busbar.components.engine.helm import Installed, InstalledRelease, create_release
from busbar.config import Chart
from busbar.manifests.operators import Operator, Values, load
from stacks.watch.package import prometheus
from stacks.watch.package.config import Stack


@dataclass(frozen=True, kw_only=True)
class PrometheusArgs:
    """`helm_values`: the folder with the values of both releases. `memory_gib`: memory of Prometheus."""

    stack: Stack
    helm_values: Path
    memory_gib: int
    kubeconfig: pulumi.Input[str]


class Crds(pulumi.ComponentResource):
    """Makes the release of the operator's CRDs, or nothing unless stack.mode is install."""

    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: PrometheusArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:watch:Crds", name, None, opts)
        if args.stack.enabled:
            values = load(args.helm_values, prometheus.CRDS.release)
            chart, version = args.stack.crds_chart, args.stack.crds_version
            made = _create_release(name, prometheus.CRDS, chart, version, values, args, self)
            self.installed = made.installed
        self.register_outputs({})


class Prometheus(pulumi.ComponentResource):
    """Makes the release of kube-prometheus-stack and Grafana's password, or nothing, as `Crds`."""

    installed: Sequence[Installed] = ()
    """What this component installs, for the check at the end of an update."""

    def __init__(self, name: str, args: PrometheusArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:watch:Prometheus", name, None, opts)
        if args.stack.enabled:
            values = prometheus.values(args.helm_values, args.stack, args.memory_gib)
            chart, version = args.stack.chart, args.stack.version
            made = _create_release(name, prometheus.STACK, chart, version, values, args, self)
            self.installed = made.installed
            self._set_password(name, made.release)
        self.register_outputs({})

    def _set_password(self, name: str, release: kubernetes.helm.v3.Release) -> None:
        mine = pulumi.ResourceOptions(parent=self)
        password = random.RandomPassword(f"{name}-grafana-password", length=32, special=False, opts=mine)
        # The Secret comes after the release, which makes the namespace; Grafana's pod waits for it.
        kubernetes.core.v1.Secret(
            f"{name}-grafana-admin",
            metadata={"name": prometheus.GRAFANA_SECRET, "namespace": prometheus.STACK.namespace},
            string_data={"admin-user": "admin", "admin-password": password.result},
            opts=of_fixed_name(pulumi.ResourceOptions(parent=self, depends_on=[release])),
        )


def _create_release(
    name: str,
    operator: Operator,
    chart: str,
    version: str,
    values: Values,
    args: PrometheusArgs,
    parent: pulumi.Resource,
) -> InstalledRelease:
    """Make a release for which Helm does not wait: `busbar watch check` tests at the end."""
    return create_release(
        name,
        operator,
        Chart(chart=chart, version=version, repository=args.stack.repository),
        values,
        args.kubeconfig,
        parent,
        timeout_seconds=args.stack.timeout_seconds,
    )
