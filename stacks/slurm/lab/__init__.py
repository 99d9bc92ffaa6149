"""What the lab needs for Slurm: hosts of another Debian, its packages, and nccl-tests' simulator on them."""
