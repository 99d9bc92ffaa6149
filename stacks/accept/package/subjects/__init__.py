"""All subjects: a module measures, keeps what it has found, and has the rows that judge it.

The order of the imports is that of the criteria, and STAGES are in the order in which they run.
"""

# isort: off
from stacks.accept.package.kinds import KINDS as KINDS
from stacks.accept.package.subjects import inventory as inventory
from stacks.accept.package.subjects import cabling as cabling
from stacks.accept.package.subjects import paths as paths
from stacks.accept.package.subjects import nodes as nodes
from stacks.accept.package.subjects import collectives as collectives
from stacks.accept.package.subjects import stress as stress
from stacks.accept.package.subjects import storage as storage
from stacks.accept.package.subjects import training as training
from stacks.accept.package.subjects import soak as soak
from stacks.accept.package.subjects import machines as machines
# isort: on

STAGES = (
    inventory.STAGE, cabling.STAGE, paths.STAGE, nodes.NVLINK, nodes.PAIRS, nodes.RAILS, collectives.FIRST,
    collectives.REPEATS, stress.STAGE, storage.STAGE, training.STAGE, soak.STAGE, nodes.AFTER,
    machines.STAGE,
)  # fmt: skip
