"""All rows: a module per stage. The order of these imports is that of the criteria."""

# isort: off
from stacks.accept.package.rows import inventory as inventory
from stacks.accept.package.rows import cabling as cabling
from stacks.accept.package.rows import nodes as nodes
from stacks.accept.package.rows import collectives as collectives
from stacks.accept.package.rows import stress as stress
from stacks.accept.package.rows import storage as storage
from stacks.accept.package.rows import training as training
from stacks.accept.package.rows import soak as soak
