"""Keeps a program quiet: it prints nothing when the engine ends it, and sends no debug messages."""

from __future__ import annotations

import os
import sys
from types import TracebackType

import pulumi

WANTED = "BUSBAR_DEBUG_MESSAGES"


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


def leave_out_debug_messages() -> None:
    """Send the engine no debug messages unless BUSBAR_DEBUG_MESSAGES is set: `pulumi up --debug` shows them.

    The SDK sends about four per resource even if nobody sees them, each in its own call, for which the whole
    program waits (pulumi/pulumi sdk/python/lib/pulumi/log.py). docs/scale.md has the cost.
    """
    if not os.environ.get(WANTED):
        setattr(pulumi.log, "debug", _send_nothing)  # noqa: B010 - mypy knows it as a function


def _send_nothing(*_: object, **__: object) -> None:
    pass
