"""Parts of the lab for Slurm: hosts with another Debian, its packages, and the simulator of nccl-tests."""
