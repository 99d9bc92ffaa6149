"""Slurm on plain hosts, measured by the same gate."""
