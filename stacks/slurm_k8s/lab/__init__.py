"""The parts of the lab that stacks/slurm_k8s needs."""
