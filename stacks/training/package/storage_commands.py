"""`busbar training check-class` and `bind-claim`: shared storage; run by the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from busbar.kube.client import Api

    Spec = TypeVar("Spec", bound=BaseModel)


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar training`."""
    group.command("check-class", hidden=True)(check_class)
    group.command("bind-claim", hidden=True)(bind_claim)


def check_class() -> None:
    """Refuse a StorageClass whose volumes one node mounts at a time; the request is JSON on stdin.

    stdin: {"class_name": "weka-fs"}. The cluster: KUBECONFIG. Prints {"name", "provisioner",
    "reclaim_policy", "binding_mode"}; exits with 1 where the class does not exist or cannot be shared.
    """
    from stacks.training.package.storage import binding

    _run(binding.ClassSpec, binding.check_class)


def bind_claim() -> None:
    """Wait until a claim is bound, and set its volume to Retain; the request is JSON on stdin.

    stdin: {"namespace", "claim", "class_name", "workers": ["gpu-1"], "deadline_seconds"}. The cluster:
    KUBECONFIG. Prints {"claim", "volume", "capacity"}; exits with 1 and the reason at the deadline, and where
    a worker cannot mount the volume.
    """
    from busbar.cli.output import progress
    from busbar.kube.wait import SystemClock
    from stacks.training.package.storage import binding

    _run(binding.ClaimSpec, lambda api, spec: binding.bind(api, spec, SystemClock(), progress))


def _run(model: type[Spec], act: Callable[[Api, Spec], dict[str, Any]]) -> None:
    import json

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import fail
    from stacks.training.package.storage.binding import StorageRefused

    with command_on_cluster(model) as (api, spec):
        try:
            found = act(api, spec)
        except StorageRefused as refused:
            fail(refused, 1)
        typer.echo(json.dumps(found, sort_keys=True))
