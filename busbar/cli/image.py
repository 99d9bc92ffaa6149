"""`busbar nccl pull-image`: have the image of a measurement pulled before it is needed."""

from __future__ import annotations

import typer

# How long the API may not answer: a load balancer may fail over meanwhile.
ANSWER_SECONDS = 60


def pull_image() -> None:
    """Create one Job per node that pulls an image; the request is JSON on stdin. No Job is waited for.

    stdin: {"pool", "namespace", "image", "nodes": ["worker-1"], "deadline_seconds"}; also "taints". The
    cluster: KUBECONFIG. Prints {"image", "nodes", "created", "existing"}, the last three as numbers. Exit
    code 0 also where the API refuses or is not responding, with the reason on stderr: the measurement pulls
    the image then. 64 for a request that is not valid.
    """
    import json

    from busbar.cli.cluster import command_on_cluster
    from busbar.cli.output import progress
    from busbar.kube.objects import create_missing
    from busbar.kube.wait import Deadline, SystemClock
    from busbar.manifests.image_pull import ImagePull, render

    with command_on_cluster(ImagePull) as (api, pull):
        deadline = Deadline(SystemClock(), ANSWER_SECONDS)
        done = create_missing(api, pull.path, render(pull), deadline, progress)
        total = len(pull.nodes)
        if done.error:
            missing = total - done.created - done.existing
            progress(
                f"note: image {pull.image} is not pulled ahead on {missing} of {total} nodes of pool "
                f"{pull.pool}: {done.error}. The measurement pulls it when it starts."
            )
        facts = {"image": pull.image, "nodes": total, "created": done.created, "existing": done.existing}
        typer.echo(json.dumps(facts, sort_keys=True))
