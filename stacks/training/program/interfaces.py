"""How much each network interface of the pod has sent."""

from __future__ import annotations

from pathlib import Path

from records import emit, gather

FOLDER = Path("/sys/class/net")


def sent() -> dict[str, int]:
    """Bytes sent so far by each interface but the loopback. RDMA does not count: the kernel never sees it."""
    counters = {path.name: path / "statistics" / "tx_bytes" for path in FOLDER.iterdir() if path.name != "lo"}
    return {name: int(path.read_text()) for name, path in sorted(counters.items()) if path.exists()}


def report(before: dict[str, int], *, local_rank: int) -> None:
    """Print what each interface has sent since `before`: on the host with the least, and with the most."""
    now = sent()
    own = {name: count - before.get(name, 0) for name, count in now.items()} if local_rank == 0 else None
    hosts = [each for each in gather(own) if each is not None]
    names = sorted({name for host in hosts for name in host})
    of_name = {name: [host.get(name, 0) for host in hosts] for name in names}
    emit("interfaces", hosts=len(hosts), sent={name: [min(n), max(n)] for name, n in of_name.items()})
