"""From hosts to a measured Slurm cluster: what stacks/slurm needs beside Pulumi.

One way: config and what preflight found -> Slurm's files; a job's log -> verdict -> outputs. The core of
busbar does not import this package.
"""
