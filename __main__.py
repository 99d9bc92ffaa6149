"""From a list of machines to a cluster with a measured fabric: components/cluster.py says how."""

from pathlib import Path

import pulumi

from busbar.components.cluster import Cluster
from busbar.components.engine.program import end_quietly_when_interrupted, leave_out_debug_messages
from busbar.components.engine.update_end import check_after_deletions


async def main() -> None:
    cluster = Cluster.of_stack("busbar", Path(__file__).resolve().parent)
    check_after_deletions(cluster.kubeconfig)
    cluster.export()
    await cluster.finish()


end_quietly_when_interrupted()
leave_out_debug_messages()
pulumi.run(main)
