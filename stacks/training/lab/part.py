"""The parts that `make up-training` and the drills of training need in the lab."""

from lab.capabilities import Part
from stacks.training.lab.images import archives
from stacks.training.lab.prepare import prepare
from stacks.training.lab.tools import ALL
from stacks.training.package import config

PART = Part(tools=ALL, archives=archives(), prepare=lambda file: prepare(config.read(file)))
