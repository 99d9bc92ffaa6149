"""From hosts to a measured Slurm cluster: the parts of stacks/slurm without Pulumi.

Data flow one way: config and the hosts' facts -> Slurm's files; a job's log -> verdict -> outputs. The core
of busbar does not import this package.
"""
