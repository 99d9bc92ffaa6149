"""Prints what NCCL itself prints with NCCL_DEBUG=INFO (classes INIT, NET, ENV): only what can be asked for.

Formats: NVIDIA/nccl src/init.cc, src/transport/*.cc, src/misc/param.cc; the plugins' own messages.
"""

from collections.abc import Iterator

from tests.unit.judge.nccl.made.lines import Edge, Line, Said, line
from tests.unit.judge.nccl.made.spec import Hosts, Nccl


def messages(nccl: Nccl, hosts: Hosts) -> list[Line]:
    found: list[Line] = []
    if nccl.version is not None and nccl.versions == "bare":
        found.append(line(f"NCCL version {nccl.version}", Said("version", nccl.version)))
    on = range(len(hosts.names)) if nccl.on is None else nccl.on
    for position in on:
        found += _of_host(nccl, hosts, position)
    return found


def destroyed(nccl: Nccl, hosts: Hosts) -> Iterator[Line]:
    """What is printed at the end, around the summary."""
    for rank in range(hosts.ranks if nccl.destroyed else 0):
        text = f"comm 0x5a10 rank {rank} nranks {hosts.ranks} cudaDev {rank % hosts.gpus} busId 1b000"
        yield _message(hosts, rank // hosts.gpus, rank % hosts.gpus, f"{text} - Destroy COMPLETE")


def edge(nccl: Nccl, hosts: Hosts, host: int, device: int, way: str) -> Line:
    """The channel of DEVICE between HOST and its neighbour in the ring of hosts."""
    n, gpus = len(hosts.names), hosts.gpus
    mine = host * gpus + device % gpus
    other = ((host + 1) % n if way == "send" else (host - 1) % n) * gpus + device % gpus
    source, target = (mine, other) if way == "send" else (other, mine)
    gdr = "/GDRDMA" if nccl.gdr else ""
    proxy = "(0)" if nccl.proxy and way == "send" else ""
    via = f"NET/{nccl.net}/{device}{proxy}{gdr}"
    if nccl.old_edges:
        channel = f"Channel {device:02d} : {source}[{17000 + device}] -> {target}[{17000 + device}]"
    else:
        channel = f"Channel {device:02d}/0 : {source}[{source % gpus}] -> {target}[{target % gpus}]"
    label = f"NET/{nccl.net}/N{gdr}"
    return _message(hosts, host, device % gpus, f"{channel} [{way}] via {via}", Edge(label, nccl.gdr))


def _of_host(nccl: Nccl, hosts: Hosts, host: int) -> Iterator[Line]:
    if nccl.version is not None and nccl.versions == "process":
        yield _message(hosts, host, 0, f"NCCL version {nccl.version}", Said("version", nccl.version))
    if nccl.topology_file is not None:
        said = Said("topology_file", nccl.topology_file)
        yield _message(hosts, host, 0, f"NCCL_TOPO_FILE set by environment to {nccl.topology_file}", said)
    if nccl.plugin_path is not None:
        yield _message(hosts, host, 0, f"Plugin Path : {nccl.plugin_path}")
    if nccl.plugin is not None:
        yield _message(hosts, host, 0, f"P2P plugin {nccl.plugin}")
    if nccl.hcas:
        listed = " ".join(f"[{i}]{hca}" for i, hca in enumerate(nccl.hcas))
        yield _message(hosts, host, 0, f"NET/IB : Using {listed} [RO]; OOB eth0:10.0.0.{host + 1}<0>")
    if nccl.network is not None:
        yield _message(hosts, host, 0, f"Using network {nccl.network}", Said("network", nccl.network))
    for text in nccl.says:
        yield _said(hosts, host, text)
    for device in range(hosts.gpus if nccl.local is not None else 0):
        a, b = host * hosts.gpus + device, host * hosts.gpus + (device + 1) % hosts.gpus
        text = f"Channel 00/0 : {a}[{device}] -> {b}[{(device + 1) % hosts.gpus}] via {nccl.local}"
        yield _message(hosts, host, device, text, Edge(str(nccl.local), None))
    for device in range(nccl.devices if nccl.net is not None else 0):
        for way in ("send", "receive"):
            yield edge(nccl, hosts, host, device, way)
    for device in range(hosts.gpus if nccl.communicator else 0):
        rank = host * hosts.gpus + device
        about = f"rank {rank} nranks {hosts.ranks} cudaDev {device} nvmlDev {device} busId 1b000"
        counts = f"nRanks {hosts.ranks} nNodes {len(hosts.names)} localRanks {hosts.gpus} localRank {device}"
        mnnvl = int(nccl.mnnvl)
        yield _message(hosts, host, device, f"comm 0x5a10 rank {rank} {counts} MNNVL {mnnvl}")
        init = f"ncclCommInitRank comm 0x5a10 {about} commId 0x77 - Init COMPLETE"
        yield _message(hosts, host, device, init)


def _said(hosts: Hosts, host: int, text: str) -> Line:
    """`INFO text` or `WARN file:line text`."""
    level, _, body = text.partition(" ")
    if level == "INFO":
        network = body.removeprefix("Using network ")
        return _message(hosts, host, 0, body, None if network == body else Said("network", network))
    where, _, body = body.partition(" ")
    process = f"{hosts.names[host]}:{hosts.pid}:90 [0]"
    return Line((f"{process} {where} NCCL WARN {body}",), Said("warning", body), host * hosts.gpus)


def _message(hosts: Hosts, host: int, device: int, body: str, fact: Edge | Said | None = None) -> Line:
    process = f"{hosts.names[host]}:{hosts.pid + device}:90 [{device}]"
    return Line((f"{process} NCCL INFO {body}",), fact, host * hosts.gpus + device)
