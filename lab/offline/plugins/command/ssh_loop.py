"""One event loop for all SSH work of the process, driven from the threads that serve the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ssh", daemon=True).start()
    return loop


_starting = threading.Lock()


def wait_for(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` on the loop and wait for its result; its exceptions are raised here."""
    with _starting:
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(work, loop).result()
