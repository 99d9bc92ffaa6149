"""From a list of machines to a cluster with a measured fabric: components/cluster.py says how."""

from pathlib import Path

import pulumi

from busbar.components.cluster import Cluster
from busbar.components.engine.stack import end_quietly_when_interrupted, leave_out_debug_messages
from busbar.names import CLUSTER


async def main() -> None:
    cluster = Cluster.of_stack(CLUSTER, Path(__file__).resolve().parent)
    cluster.check_at_the_end()
    cluster.export()
    await cluster.finish()


end_quietly_when_interrupted()
leave_out_debug_messages()
pulumi.run(main)
