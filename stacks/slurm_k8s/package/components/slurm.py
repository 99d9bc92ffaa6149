"""The operator with its CRDs, Slurm's own keys, the cluster of Slurm, and the wait that ends the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pulumi_random as random
from pulumi_command import local

from busbar.components.engine.cluster import of_fixed_name
from busbar.components.engine.helm import Installed, InstalledRelease, changes, create_release
from busbar.components.engine.hosts import stack_folder
from busbar.components.engine.local_command import busbar_command, create_cluster_command
from busbar.config import Chart
from busbar.kube.client import KUBECONFIG_TEXT
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator, Values
from busbar.outputs import ClusterOutputs
from busbar.outputs.contract import read_result
from stacks.slurm_k8s.package import values
from stacks.slurm_k8s.package.config import PASSWORD, PROJECT
from stacks.slurm_k8s.package.config import Slurm as SlurmConfig
from stacks.slurm_k8s.package.outputs import CONTRACT_VERSION, nodes_to_measure
from stacks.slurm_k8s.package.pools import Pool
from stacks.slurm_k8s.package.ready import ReadySpec
from stacks.slurm_k8s.package.steps import StepSpec, await_slurmrestd

# auth/slurm takes up to 1,024 bytes; HS256 needs 32.
_KEY_LENGTHS = {values.SLURM_KEY: 1024, values.JWT_KEY: 64}


@dataclass(frozen=True, kw_only=True)
class SlurmArgs:
    """`cluster`: the outputs of a cluster that has passed; `pools`: those that Slurm uses."""

    slurm: SlurmConfig
    cluster: ClusterOutputs
    pools: Mapping[str, Pool]
    helm_values: Path

    @cached_property
    def given(self) -> Values:
        """The values of Slurm's own release."""
        return values.slurm(self.helm_values, self.slurm, self.pools)


def create_step(
    name: str,
    step: str,
    args: SlurmArgs,
    opts: pulumi.ResourceOptions,
    triggers: Sequence[Any] = (),
    *,
    at_removal: bool = False,
) -> local.Command:
    """Register a step of steps.py. `at_removal`: it runs when the engine deletes it, and not before."""
    slurm = args.slurm
    words = {"step": step, "namespace": slurm.namespace, "cancel_jobs": slurm.removal.cancel_jobs}
    if step in ("before-change", "roll"):
        words |= {
            "workers": {name: pool.launch.workers for name, pool in args.pools.items()},
            "gres_conf": args.given["configFiles"]["gres.conf"],
            "max_unavailable": slurm.update.max_unavailable,
            "job_seconds": slurm.update.job_seconds,
            "timeout_seconds": slurm.timeout_seconds,
        }
    spec, command = StepSpec.model_validate(words), "slurm_k8s step"
    if not at_removal:
        plain = spec.model_dump(exclude_defaults=True, exclude={"cancel_jobs"})
        return create_cluster_command(name, command, plain, args.cluster.kubeconfig, opts, triggers=triggers)
    return local.Command(
        name,
        delete=busbar_command(*command.split()),
        stdin=spec.model_dump_json(include={*words}),
        environment={KUBECONFIG_TEXT: pulumi.Output.secret(args.cluster.kubeconfig)},
        add_previous_output_in_env=False,
        logging=local.Logging.STDERR,
        opts=opts,
    )


class SlurmCrds(pulumi.ComponentResource):
    """Makes the release of the CRDs. Their removal removes every Slurm cluster, so it comes last of all."""

    installed: Sequence[Installed] = ()
    """The releases of this component, for the check at the end of an update."""

    def __init__(self, name: str, args: SlurmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:slurm_k8s:SlurmCrds", name, None, opts)
        self.installed = _create_release(name, args, values.CRDS, {}, self).installed
        self.register_outputs({})


class SlurmOperator(pulumi.ComponentResource):
    """Makes the release of the operator, and ends when its webhook accepts objects."""

    installed: Sequence[Installed] = ()
    """The releases of this component, for the check at the end of an update."""

    def __init__(self, name: str, args: SlurmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:slurm_k8s:SlurmOperator", name, None, opts)
        given = values.operator(args.helm_values, args.slurm)
        made = _create_release(name, args, values.OPERATOR, given, self, await_ready=True)
        self.installed = made.installed
        # The certificate of the webhook is new after each change of the release.
        after = pulumi.ResourceOptions(
            parent=self, depends_on=[made.release], replacement_trigger=changes(made)
        )
        create_step(f"{name}-webhook", "webhook", args, after)
        self.register_outputs({})


class SlurmCluster(pulumi.ComponentResource):
    """Makes Slurm's keys and the release of the chart, waits for all nodes, and runs the probe.

    The keys are those of the state: the chart's own would change with every rendering, and no daemon would
    know another any more. The namespace stays at a destroy, because slurmctld's volume is in it.
    """

    result: pulumi.Output[str]
    """The output of `busbar slurm_k8s ready`."""
    measured: dict[str, pulumi.Output[dict[str, Any]]]
    """Pool -> its PoolResult as JSON values; empty without a measurement."""
    installed: Sequence[Installed] = ()
    """The releases of this component, for the check at the end of an update."""

    def __init__(self, name: str, args: SlurmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:slurm_k8s:SlurmCluster", name, None, opts)
        slurm, mine = args.slurm, pulumi.ResourceOptions(parent=self)
        operator = values.of_slurm(slurm)
        given = args.given
        chart = _create_release(name, args, operator, given, self, keep_namespace=True)
        self.installed = chart.installed
        made: list[pulumi.Resource] = [chart.release]
        keys: dict[str, pulumi.Input[str]] = {
            secret: random.RandomPassword(f"{name}-{secret}", length=length, special=False, opts=mine).result
            for secret, length in _KEY_LENGTHS.items()
        }
        if slurm.accounting:
            keys[values.DATABASE_KEY] = _password()
        for secret, key in keys.items():
            made.append(
                kubernetes.core.v1.Secret(
                    f"{name}-{secret}-secret",
                    metadata={"name": secret, "namespace": slurm.namespace},
                    string_data={values.KEY_FILES[secret]: key},
                    opts=of_fixed_name(pulumi.ResourceOptions(parent=self, depends_on=[chart.namespace])),
                )
            )
        # Before the release and the keys.
        before = pulumi.ResourceOptions(parent=self, depends_on=made)
        guard = create_step(f"{name}-removal", "before-removal", args, before, at_removal=True)
        after = pulumi.ResourceOptions(
            parent=self, depends_on=[*made, guard], replacement_trigger=changes(chart)
        )
        roll = create_step(f"{name}-roll", "roll", args, after)
        spec = ReadySpec.of(slurm, args.pools).model_dump(mode="json")
        ready = create_cluster_command(
            f"{name}-ready",
            "slurm_k8s ready",
            spec,
            args.cluster.kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=[roll]),
            triggers=[
                digest({**spec, "run": slurm.probe.run, "values": given}),
                f"contract {CONTRACT_VERSION}",
            ],
        )
        self.result = ready.stdout.apply(lambda text: text or "")
        self.measured, earlier = {}, [ready]
        # One pool at a time: together they would share switches, and so the bandwidth.
        for pool in args.pools.values() if slurm.probe.measure else ():
            step = create_cluster_command(
                f"{name}-nccl-{pool.name}",
                "slurm_k8s measure",
                self.result.apply(partial(_measure_spec, slurm, pool)),
                args.cluster.kubeconfig,
                pulumi.ResourceOptions(parent=self, depends_on=[*earlier]),
            )
            self.measured[pool.name] = step.stdout.apply(read_result)
            earlier.append(step)
        self.register_outputs({"result": self.result})


def _password() -> pulumi.Output[str]:
    config = pulumi.Config(PROJECT)
    if not config.get(PASSWORD):
        fix = f"pulumi config set --secret {PROJECT}:{PASSWORD}"
        raise pulumi.RunError(f"accounting needs the secret {PASSWORD}, which is not set. Fix: {fix}")
    return config.require_secret(PASSWORD)


def _measure_spec(slurm: SlurmConfig, pool: Pool, printed: str) -> dict[str, Any]:
    """The request of `busbar slurm_k8s measure` (operations.UpdateSpec)."""
    used = {"cluster", "cluster_folder", "namespace", "container_image", "pending_seconds"}
    # What preflight has found of rails is no setting of the job.
    found = {"rail_hcas", "interfaces", "roce", "without_nfs"}
    launch = pool.launch.model_dump(mode="json", exclude=found)
    return {
        "slurm": slurm.model_dump(mode="json", include=used),
        "pool": pool.name,
        "nodes": nodes_to_measure(printed, pool),
        "folder": f"{stack_folder()}/{pool.name}",
        "run": slurm.probe.run,
        "measured_as": digest({"launch": launch, "images": [slurm.images, slurm.image_tag]}),
    }


def _create_release(
    name: str,
    args: SlurmArgs,
    operator: Operator,
    given: Values,
    parent: pulumi.Resource,
    *,
    await_ready: bool = False,
    keep_namespace: bool | None = None,
) -> InstalledRelease:
    slurm = args.slurm
    return create_release(
        name,
        operator,
        Chart(chart=f"{slurm.charts}/{values.CHARTS[operator.config_key]}", version=slurm.version),
        given,
        args.cluster.kubeconfig,
        parent,
        timeout_seconds=slurm.timeout_seconds,
        await_ready=await_ready,
        before_change=lambda api: await_slurmrestd(api, slurm.namespace),
        keep_namespace=keep_namespace,
    )
