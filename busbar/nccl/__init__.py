"""Reading nccl-tests output and NCCL's own evidence, and judging both against what the hardware can do."""
