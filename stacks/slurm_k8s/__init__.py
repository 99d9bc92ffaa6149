"""Slurm on a measured cluster, by Slinky's slurm-operator."""
