"""A regression whose loss falls within a few steps, at any number of parameters.

Inputs and targets are two fixed linear images of the same 16 random numbers. The model is a chain of square
linear layers with residual connections that starts as the identity.
"""

from __future__ import annotations

import math

import torch
from torch import nn

LATENT = 16
LAYERS = 4
BATCH = 32
LEARNING_RATE = 0.05 * LATENT / LAYERS
MOMENTUM = 0.9
_FLOAT_BYTES = 4


class Chain(nn.Module):
    """At least `gradient_bytes` of float32 parameters, in layers of equal width."""

    def __init__(self, gradient_bytes: int) -> None:
        super().__init__()
        self.width = max(LATENT * 2, math.isqrt((gradient_bytes - 1) // (_FLOAT_BYTES * LAYERS)) + 1)
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width, bias=False) for _ in range(LAYERS))
        for layer in self.layers:
            nn.init.zeros_(layer.weight)

    @property
    def gradient_bytes(self) -> int:
        """Bytes that an all-reduce of all gradients carries."""
        return LAYERS * self.width**2 * _FLOAT_BYTES

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Task:
    """Batches by (step, rank): the same on every attempt, different on every rank."""

    def __init__(self, width: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        self._inputs, self._targets = (
            _rows(width, generator).to(device) * math.sqrt(width / LATENT) for _ in range(2)
        )
        self._device = device

    def batch(self, step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, BATCH rows each."""
        generator = torch.Generator().manual_seed(1_000_003 * (step + 1) + rank)
        latent = torch.randn(BATCH, LATENT, generator=generator).to(self._device)
        return latent @ self._inputs, latent @ self._targets


def _rows(width: int, generator: torch.Generator) -> torch.Tensor:
    """LATENT orthonormal rows."""
    return torch.linalg.qr(torch.randn(width, LATENT, generator=generator)).Q.T.contiguous()
