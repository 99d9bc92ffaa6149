"""What a program prints when the engine ends it."""

from __future__ import annotations

import sys
from types import TracebackType


def end_quietly_when_interrupted() -> None:
    """Print no traceback of a KeyboardInterrupt; any other exception is printed as before.

    The engine ends a program that still runs, after a failed step or Ctrl-C, with SIGINT to the process group
    of its language host (pulumi/pulumi sdk/go/common/resource/plugin/plugin.go, InterruptChildren), and shows
    what the program prints beside the real reason.
    """
    sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
