"""Slurm's own keys, and the measurements that end an update."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pulumi_random as random
from pulumi_command import local

from busbar.components.engine.cluster import of_fixed_name, uid_of
from busbar.components.engine.hosts import stack_folder
from busbar.components.engine.local_command import create_cluster_command
from busbar.components.frame import Installation
from busbar.finding import STACK, with_fix
from busbar.manifests.names import digest
from busbar.outputs.contract import ClusterOutputs, read_result
from stacks.slurm_k8s.package import values
from stacks.slurm_k8s.package.config import PASSWORD, PROJECT, Slurm
from stacks.slurm_k8s.package.outputs import nodes_to_measure
from stacks.slurm_k8s.package.pools import Pool

# auth/slurm takes up to 1,024 bytes; HS256 needs 32.
_KEY_LENGTHS = {values.SLURM_KEY: 1024, values.JWT_KEY: 64}


def create_keys(slurm: Slurm, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Register the Secrets of Slurm.

    The keys are those of the state: the chart's own would change with every rendering, and no daemon would
    know another any more.
    """
    keys: dict[str, pulumi.Input[str]] = {
        secret: random.RandomPassword(f"slurm-{secret}", length=length, special=False, opts=opts).result
        for secret, length in _KEY_LENGTHS.items()
    }
    for password in passwords(slurm):
        keys[values.DATABASE_KEY] = password
    return [
        kubernetes.core.v1.Secret(
            f"slurm-{secret}-secret",
            metadata={"name": secret, "namespace": slurm.namespace},
            string_data={values.KEY_FILES[secret]: key},
            opts=of_fixed_name(opts),
        )
        for secret, key in keys.items()
    ]


def passwords(slurm: Slurm) -> list[pulumi.Output[str]]:
    """The password of the database; none without accounting."""
    config = pulumi.Config(PROJECT)
    if slurm.accounting is None:
        return []
    if not config.get(PASSWORD):
        fix = f"pulumi config set --secret {PROJECT}:{PASSWORD} --stack {STACK}"
        raise pulumi.RunError(with_fix(f"accounting needs the secret {PASSWORD}, which is not set", fix))
    return [config.require_secret(PASSWORD)]


def create_measurements(
    on: Installation[Slurm], pools: Mapping[str, Pool], namespace: pulumi.Resource, ready: local.Command
) -> dict[str, pulumi.Output[dict[str, Any]]]:
    """Register the measurement of each pool, whose request follows from what the step `ready` has printed.

    Another `namespace` under the same name is another cluster, which is measured again.

    Returns pool -> its PoolResult as JSON values; nothing without `probe.measure`.
    """
    measured, earlier = {}, [ready]
    # One pool at a time: together they would share switches, and so the bandwidth.
    for pool in pools.values() if on.config.probe.measure else ():
        step = create_cluster_command(
            f"slurm-nccl-{pool.name}",
            f"step {on.name} measure",
            ready.stdout.apply(partial(_measure_spec, on.config, on.cluster, pool)),
            on.cluster.kubeconfig,
            pulumi.ResourceOptions(depends_on=[*earlier]),
            triggers=[uid_of(namespace)],
        )
        measured[pool.name] = step.stdout.apply(read_result)
        earlier.append(step)
    return measured


def _measure_spec(slurm: Slurm, cluster: ClusterOutputs, pool: Pool, printed: str | None) -> dict[str, Any]:
    """The request of the step `measure` (operations.UpdateSpec)."""
    used = {"cluster", "cluster_folder", "namespace", "container_image", "pending_seconds"}
    # What preflight has found of rails is no setting of the job.
    found = {"rail_hcas", "interfaces", "roce", "without_nfs"}
    launch = pool.launch.model_dump(mode="json", exclude=found)
    versions = [cluster.versions.get(operator) for operator in ("gpu_operator", "network_operator")]
    return {
        "slurm": slurm.model_dump(mode="json", include=used),
        "pool": pool.name,
        "nodes": nodes_to_measure(printed, pool),
        "folder": f"{stack_folder()}/{pool.name}",
        "run": slurm.probe.run,
        "measured_as": digest([launch, slurm.images, slurm.image_tag, cluster.k3s_version, *versions]),
    }
