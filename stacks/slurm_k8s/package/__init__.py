"""Slurm on a measured cluster: the parts of stacks/slurm_k8s without Pulumi.

Data flow one way: config and the cluster's outputs -> Helm values; slurmrestd of the running cluster ->
states of nodes, the probe -> outputs. The core of busbar does not import this package.
"""
