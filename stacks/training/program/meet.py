"""Waits until HOST accepts connections on PORT. Usage: meet.py HOST PORT SECONDS"""

from __future__ import annotations

import socket
import sys
import time


def main(host: str, port: int, seconds: float) -> None:
    """Exits with 1 and the last error where the time is over."""
    limit = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() >= limit:
                sys.exit(f"# busbar: {host}:{port} timed out after {seconds:.0f} s: {error}")
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
