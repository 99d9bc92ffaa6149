"""A load balancer that busbar did not set up: passes TCP connections on to servers in turn."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def tcp_proxy(address: str, port: int, servers: Sequence[str]) -> Iterator[None]:
    """Listens at `address` until the context ends; a server that refuses is passed over."""
    turns = itertools.cycle(servers)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in servers:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(3):
                    back, forth = await asyncio.open_connection(next(turns), port)
                await asyncio.gather(pump(reader, forth), pump(back, writer))
                return
        writer.close()

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(connected, address, port))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(listening.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
