"""All subjects: a module measures, keeps what it has found, and has the rows that judge it."""

from stacks.accept.package.kinds import KINDS as KINDS
from stacks.accept.package.subjects import cabling, collectives, inventory, nodes, optional, soak, stress

# In the order in which they run, which is also that of the rows.
STAGES = (
    inventory.STAGE, cabling.STAGE, optional.PATHS, nodes.NVLINK, nodes.PAIRS, nodes.RAILS, collectives.FIRST,
    collectives.REPEATS, stress.STAGE, optional.STORAGE, optional.TRAINING, soak.STAGE, nodes.AFTER,
    inventory.AT_THE_END,
)  # fmt: skip
for stage in STAGES:
    for key in [key for key in KINDS if key.startswith(f"{stage.name}.")]:
        KINDS[key] = KINDS.pop(key)
