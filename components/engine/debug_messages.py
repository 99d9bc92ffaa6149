"""Keeps the debug messages of Pulumi's SDK from the engine, which waits for each of them."""

from __future__ import annotations

import os

import pulumi

WANTED = "BUSBAR_DEBUG_MESSAGES"


def leave_out_debug_messages() -> None:
    """Send the engine none, unless the variable BUSBAR_DEBUG_MESSAGES is set: `pulumi up --debug` shows them.

    The SDK sends about four per resource, each in a call of its own, for which all of the program waits, also
    where nobody sees them (pulumi/pulumi sdk/python/lib/pulumi/log.py). docs/scale.md says what that costs.
    """
    if not os.environ.get(WANTED):
        setattr(pulumi.log, "debug", _send_nothing)  # noqa: B010 - mypy knows it as a function


def _send_nothing(*_: object, **__: object) -> None:
    pass
