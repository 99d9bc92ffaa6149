"""The Pulumi components of stacks/slurm."""
