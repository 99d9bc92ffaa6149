"""The time of a large model's checkpoint at a measured speed."""

from __future__ import annotations

# Adam in mixed precision: weights 2 bytes, master weights 4, two moments 8. Other optimizers need 12 to 16.
BYTES_PER_PARAMETER = 14
_MIB = 1 << 20


def checkpoint_seconds(parameters: float, mib_s: float) -> float:
    """Seconds to write the training state of a model with `parameters` at `mib_s` MiB/s, above 0."""
    return parameters * BYTES_PER_PARAMETER / (mib_s * _MIB)
