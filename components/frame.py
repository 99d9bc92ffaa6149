"""The program of a capability on another stack's cluster: `run` does all that is not its own.

A program refuses a cluster that has not passed, installs its charts and objects, waits for them by steps
(`busbar step`), exports its outputs, and fails unless they pass its gate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi_command import local
from pydantic import BaseModel

from busbar.capability import Capability
from busbar.components.engine.cluster import (
    create_cluster_provider,
    create_privileged_namespace,
    refuse_changes,
)
from busbar.components.engine.helm import HelmOperator, Installed, check_after_deletions
from busbar.components.engine.local_command import create_cluster_command, digest_in_first_folder
from busbar.components.engine.stack import (
    end_quietly_when_interrupted,
    export_all,
    fail_unless_passed,
    load_cluster,
    load_config,
    refuse_other_cluster,
)
from busbar.config.project import ProjectConfig
from busbar.finding import STACK, Finding, Fix, with_fix
from busbar.frame import GateConfig, InstalledChart, OnCluster
from busbar.kube.client import Api
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator
from busbar.outputs import ClusterOutputs
from busbar.text import listed

C = TypeVar("C", bound=OnCluster)


@dataclass(frozen=True)
class Installation(Generic[C]):
    """A stack while its program registers its resources.

    `name`: of the capability. `cluster`: the outputs of a cluster that has passed. `helm_values`: the folder
    with the values of the charts. `made`: releases and namespaces, which must be there after the update.
    `steps`: each with its name and request.
    """

    name: str
    config: C
    cluster: ClusterOutputs
    helm_values: Path
    provider: kubernetes.Provider
    made: list[Installed] = field(default_factory=list)
    steps: list[tuple[str, local.Command, str]] = field(default_factory=list)

    def after(self, *resources: pulumi.Resource) -> pulumi.ResourceOptions:
        """Options of an object on the cluster that is made after these resources."""
        return pulumi.ResourceOptions(provider=self.provider, depends_on=resources)

    def chart(
        self,
        name: str,
        operator: Operator,
        chart: InstalledChart,
        opts: pulumi.ResourceOptions,
        **more: Any,
    ) -> HelmOperator:
        """Register the namespace and the release of a chart, or nothing unless it is enabled.

        `more`: `image`, `await_ready`, `before_change` and `keep_namespace` of
        busbar.components.engine.helm.HelmOperator.
        """
        release = HelmOperator(
            operator,
            name,
            opts,
            kubeconfig=self.cluster.kubeconfig,
            config=chart,
            chart=chart,
            helm_values=self.helm_values,
            **more,
        )
        release.register_outputs({"version": release.version})
        self.made.extend(release.installed)
        return release

    def namespace(
        self, name: str, namespace: str, opts: pulumi.ResourceOptions
    ) -> kubernetes.core.v1.Namespace:
        """Register the configured namespace of the capability's own objects, which admits privileged pods."""
        kubeconfig = self.cluster.kubeconfig
        made = create_privileged_namespace(name, namespace, kubeconfig, opts, configurable=True)
        self.made.append(Installed(made, namespace))
        return made

    def step(
        self,
        name: str,
        step: str,
        spec: BaseModel,
        opts: pulumi.ResourceOptions,
        *triggers: pulumi.Input[Any],
    ) -> local.Command:
        """Register a step of the capability. It runs again when its request or `triggers` change.

        A request with another `folder`, that of a renamed stack, is the same one.
        """
        plain = spec.model_dump(mode="json", exclude_none=True)
        asked: pulumi.Input[str] = digest(plain)
        if "folder" in plain:
            asked = digest_in_first_folder(f"{name}-folder", plain, opts.parent)
        made = create_cluster_command(
            name,
            f"step {self.name} {step}",
            plain,
            self.cluster.kubeconfig,
            opts,
            triggers=[asked, *triggers],
        )
        self.steps.append((name, made, json.dumps(plain, sort_keys=True)))
        return made

    def step_at_removal(
        self, name: str, step: str, spec: BaseModel, opts: pulumi.ResourceOptions
    ) -> local.Command:
        """Register a step that runs when the engine deletes it: before all that it depends on is deleted.

        Where it fails, all of that stays.
        """
        plain = spec.model_dump(mode="json")
        command = f"step {self.name} {step}"
        return create_cluster_command(name, command, plain, self.cluster.kubeconfig, opts, at_removal=True)


async def fail_if_left_out(steps: Sequence[tuple[str, local.Command, str]]) -> None:
    """Raise pulumi.RunError for steps that a targeted update (`pulumi up --target`) has left as they were.

    What they had printed would be exported as a result of the present configuration.
    """
    left = [name for name, made, asked in steps if await made.stdin.future() not in (None, asked)]
    if left and not pulumi.runtime.is_dry_run():
        what = f"the outputs stay as they were: this update leaves out {listed(left)}"
        raise pulumi.RunError(with_fix(what, Fix(command=("up", STACK))))


def run(
    capability: Capability,
    project: ProjectConfig[C],
    file: str,
    install: Callable[[Installation[C]], pulumi.Output[dict[str, Any]]],
    *,
    outputs: type[BaseModel],
    refusals: Callable[[ClusterOutputs, C], Iterable[str]] = lambda *_: (),
    unchangeable: Callable[[C, Api], Sequence[Finding]] | None = None,
) -> None:
    """Run the program in `file`, which has the folder `helm_values` beside it.

    `install` registers its resources; the values that it returns are exported by the fields of `outputs`.
    `refusals`: why nothing may be installed on a cluster that has passed, each with its fix. `unchangeable`:
    finds changes that what is on the cluster cannot follow, in a preview too. With the section that the gate
    names, a GateConfig, the end of the update asks what `ready` of the capability finds.
    """
    gate = capability.gate
    assert gate is not None  # Each capability with a project has one.

    async def main() -> None:
        config = load_config(project)
        cluster = await load_cluster(config.cluster)
        if cluster.refusal:
            fix = f"repair that, raise validation.run of {config.cluster} and update it; then retry"
            raise pulumi.RunError(f"{cluster.refusal}\nFix: {fix}")
        if found := [f"{config.cluster}: {each}" for each in refusals(cluster, config)]:
            raise pulumi.RunError("\n".join(found))
        await refuse_other_cluster(cluster.cluster_name, cluster.identifier)
        if unchangeable:
            await refuse_changes(cluster.kubeconfig, partial(unchangeable, config))
        provider = create_cluster_provider(cluster.kubeconfig, cluster.identifier)
        helm_values = Path(file).resolve().parent / "helm_values"
        on = Installation(capability.name, config, cluster, helm_values, provider)
        built = install(on)
        section: GateConfig = getattr(config, gate.raised.partition(".")[0])
        ready = partial(capability.problems, config, cluster) if section.is_gate else None
        check_after_deletions(cluster.kubeconfig, on.made, ready)
        await fail_if_left_out(on.steps)
        export_all({name: built[name] for name in outputs.model_fields})
        await fail_unless_passed(built, enforce=section.is_gate, gate=gate.refusal)

    end_quietly_when_interrupted()
    pulumi.run(main)
