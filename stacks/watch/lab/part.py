"""The parts that `make up-watch` and the drills of watch need in the lab."""

from lab.capabilities import Part
from stacks.watch.lab import images
from stacks.watch.lab.prepare import prepare
from stacks.watch.lab.tools import TOOLS
from stacks.watch.package import config

PART = Part(tools=TOOLS, archives=images.archives(), prepare=lambda file: prepare(config.read(file)))
