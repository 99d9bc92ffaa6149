"""The parts that `make up-slurm` and the drills of Slurm need in the lab."""

from lab.capabilities import Part
from stacks.slurm.lab.hosts import boot
from stacks.slurm.lab.topology import HOSTS

PART = Part(prepare=lambda _file: boot(), hosts=HOSTS)
