"""What proves the run: digests of gradients, NCCL's own messages."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from records import NCCL_KEY, gather

_CHUNK = 1 << 24  # elements: bounds the memory that a digest needs
_MASK = (1 << 64) - 1


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """64 bits that depend on every bit of the float32 tensors and on its position.

    Computed where the tensors are: integer sums wrap around and do not depend on their order, so ranks with
    the same bits have the same digest.
    """
    total = 0
    for number, tensor in enumerate(tensors, 1):
        bits = tensor.detach().reshape(-1).view(torch.int32)
        for start in range(0, bits.numel(), _CHUNK):
            chunk = bits[start : start + _CHUNK].to(torch.int64)
            weights = torch.arange(start, start + chunk.numel(), device=chunk.device) * 2 + 1
            total += int((chunk * weights).sum()) * (2 * number + 1)
    return f"{total & _MASK:016x}"


class NcclMessages:
    """NCCL writes its messages to a file of each process; rank 0 prints those of all ranks, in one piece.

    So they are in one log, whole lines, however many hosts there are.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir())
        self._file = folder / f"nccl.{socket.gethostname()}.{os.getpid()}.log"
        os.environ["NCCL_DEBUG_FILE"] = str(self._file)

    def print_all(self) -> None:
        """Print every rank's messages behind their number and size: a line that is lost or cut shows."""
        for rank, text in enumerate(gather(self._text())):
            if dist.get_rank() != 0:
                continue
            lines = [line for line in text.splitlines() if line.strip()]
            size = sum(len(line.encode()) + 1 for line in lines)
            print(json.dumps({NCCL_KEY: rank, "lines": len(lines), "bytes": size}, separators=(",", ":")))
            for line in lines:
                print(line)
        sys.stdout.flush()

    def print_own(self) -> None:
        """Print this process's messages on stderr: where the run fails, they are the only hint."""
        print(self._text(), file=sys.stderr, flush=True)

    def remove(self) -> None:
        """Remove the file."""
        self._file.unlink(missing_ok=True)

    def _text(self) -> str:
        try:
            return self._file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""  # gloo, or nothing was printed: the reader of the log decides what that means
