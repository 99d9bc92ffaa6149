"""All stages, in the order in which they run. A stage is a module here, and its rows one in `rows`."""

from stacks.accept.package.stages import cabling, collectives, inventory, nodes, soak, storage, stress

STAGES = (
    inventory.STAGE, cabling.STAGE, nodes.NVLINK, nodes.PAIRS, nodes.RAILS, collectives.FIRST,
    collectives.REPEATS, stress.STAGE, storage.STAGE, soak.STAGE, nodes.AFTER,
)  # fmt: skip
