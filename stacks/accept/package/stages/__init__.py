"""All stages, in the order in which they run. A stage is a module here, and its rows one in `rows`."""

from stacks.accept.package.stages import collectives, inventory

STAGES = (inventory.STAGE, collectives.FIRST, collectives.REPEATS)
