"""The parts that `make up-slurm_k8s` and the drills of slurm_k8s need in the lab."""

from lab.capabilities import Part
from stacks.slurm_k8s.lab.images import operator_image, slurm_image
from stacks.slurm_k8s.lab.prepare import prepare
from stacks.slurm_k8s.lab.tools import TOOLS

PART = Part(
    tools=TOOLS, archives=(operator_image.ARCHIVE, slurm_image.ARCHIVE), prepare=lambda _file: prepare()
)
