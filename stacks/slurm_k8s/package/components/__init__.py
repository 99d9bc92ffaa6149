"""Pulumi components of stacks/slurm_k8s."""
