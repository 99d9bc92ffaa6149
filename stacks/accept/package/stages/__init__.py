"""All stages, in the order in which they run. A stage is a module here, and its rows one in `rows`."""

from stacks.accept.package.stages import (
    cabling,
    collectives,
    inventory,
    nodes,
    soak,
    storage,
    stress,
    training,
)

STAGES = (
    inventory.STAGE, cabling.STAGE, nodes.NVLINK, nodes.PAIRS, nodes.RAILS, collectives.FIRST,
    collectives.REPEATS, stress.STAGE, storage.STAGE, training.STAGE, soak.STAGE, nodes.AFTER,
)  # fmt: skip
