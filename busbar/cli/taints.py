"""`busbar set-taints`: what the engine runs when the taints of a pool change."""

from __future__ import annotations

import typer


def set_taints() -> None:
    """Set the taints of workers; those that were configured before are removed, those of others stay.

    stdin: {"taints": {"gpu-1": ["KEY=VALUE:EFFECT"]}}. The cluster: KUBECONFIG. Prints {"changed"}.
    """
    import json

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import progress
    from busbar.kube import taints
    from busbar.kube.wait import SystemClock

    with command_on_cluster(taints.TaintsSpec) as (api, spec):
        typer.echo(json.dumps({"changed": taints.apply(api, spec, SystemClock(), progress)}))
