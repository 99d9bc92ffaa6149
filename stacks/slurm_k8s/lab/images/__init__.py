"""Images of the operator and of Slurm for the lab: a site pulls SchedMD's."""
