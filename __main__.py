"""From a list of machines to a cluster with a measured fabric: components/cluster.py says how."""

from pathlib import Path

import pulumi

from busbar.components.cluster import Cluster
from busbar.components.engine.program import end_quietly_when_interrupted, leave_out_debug_messages


async def main() -> None:
    cluster = Cluster.of_stack("busbar", Path(__file__).resolve().parent)
    cluster.export()
    await cluster.finish()


end_quietly_when_interrupted()
leave_out_debug_messages()
pulumi.run(main)
