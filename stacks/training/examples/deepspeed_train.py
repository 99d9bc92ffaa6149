"""A small training by DeepSpeed with ZeRO stage 1: each rank keeps a part of the optimizer's state.

Started with MASTER_ADDR and MASTER_PORT by mpirun, or by what sets RANK, WORLD_SIZE and LOCAL_RANK. It needs
torch and deepspeed.

    deepspeed_train.py FOLDER [STEPS]

Every 20 steps all ranks write their part of a checkpoint below FOLDER; a start that finds one resumes from it
with as many ranks as wrote it. FOLDER must be on storage that all pods share.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deepspeed
import torch

WIDTH = 64
BATCH = 256
EVERY = 20
# Read when DeepSpeed starts; mpirun tells them by other names.
FROM_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
}


def main(folder: Path, steps: int) -> None:
    """Train, print the loss, write checkpoints."""
    if "RANK" not in os.environ:
        os.environ.update({name: os.environ[theirs] for name, theirs in FROM_MPI.items()})
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deepspeed.init_distributed(auto_mpi_discovery=False)
    model = torch.nn.Linear(WIDTH, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": 1},
            # DeepSpeed's own optimizers are compiled when they are first used.
            "zero_allow_untested_optimizer": True,
        },
    )
    engine.load_checkpoint(str(folder))
    if engine.global_steps and rank == 0:
        print(f"resumed after step {engine.global_steps} with {world} ranks", flush=True)
    # A different batch per rank and step, also after a restart.
    for step in range(engine.global_steps + 1, steps + 1):
        generator = torch.Generator().manual_seed(step * 1_000_003 + rank)
        inputs = torch.randn(BATCH, WIDTH, generator=generator).to(engine.device)
        loss = ((engine(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        engine.backward(loss)
        engine.step()
        if step % EVERY == 0:
            engine.save_checkpoint(str(folder))
            if rank == 0:
                print(f"step {step} of {steps}, {world} ranks: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
