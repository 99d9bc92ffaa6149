"""A small log of two healthy hosts, made line by line in nccl-tests' format; tests change it as they need."""

from __future__ import annotations


class Made:
    """A log as two hosts of eight H100 print it; every part can be changed before `lines`."""

    def __init__(self) -> None:
        self.hosts, self.gpus = ["worker-0", "worker-1"], 8
        self.low, self.high = 2**29, 2**33
        self.peak, self.name = 390.0, "all_reduce"
        self.redop, self.root = "sum", -1
        self.network, self.gdr, self.devices = "IB", "/GDRDMA", range(8)
        self.validation, self.wrong, self.gpu = 1, "0", "NVIDIA H100 80GB HBM3"
        self.in_place_errors: str | None = None
        self.info: list[str] = []
        self.factor: float | None = None

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.gpus

    def preamble(self) -> list[str]:
        out = [
            "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
            f"# Collective test starting: {self.name}_perf",
            f"# nThread 1 nGpus 1 minBytes {self.low} maxBytes {self.high} step: 2(factor) warmup iters: 5 "
            f"iters: 20 agg iters: 1 validation: {self.validation} graph: 0",
            "#",
            "# Using devices",
        ]
        for rank in range(self.ranks):
            host, device = self.hosts[rank // self.gpus], rank % self.gpus
            where = f"on {host:>10s} device {device:2d} [0000:1b:00] {self.gpu}"
            out.append(f"#  Rank {rank:2d} Group  0 Pid {40 + rank:6d} {where}")
        return out

    def evidence(self) -> list[str]:
        out = []
        for index, host in enumerate(self.hosts):
            process = f"{host}:40:90 [0] NCCL INFO"
            hcas = " ".join(f"[{d}]mlx5_{d}:1/IB" for d in self.devices)
            out += [
                f"{process} NCCL version 2.28.7+cuda12.9",
                f"{process} NCCL_TOPO_FILE set by environment to /opt/topo.xml",
                f"{process} NET/IB : Using {hcas} [RO]; OOB eth0:10.0.0.{index}<0>",
                f"{process} Using network {self.network}",
            ]
            for device in self.devices:
                wire = f"via NET/{self.network}/{device}{self.gdr}"
                for way in ("send", "receive"):
                    out.append(f"{process} Channel {device:02d}/0 : 0[0] -> 8[0] [{way}] {wire}")
        return out + self.info

    def rows(self) -> list[str]:
        out, size = [], self.low
        n = self.ranks
        known = {"all_reduce": 2 * (n - 1) / n, "sendrecv": 1.0, "broadcast": 1.0}
        k = self.factor or known.get(self.name, (n - 1) / n)
        while size <= self.high:
            time = size / (self.peak / k) / 1000
            printed = f"{time:.0f}" if time >= 10000 else f"{time:.1f}"
            algbw = size / float(printed) / 1000
            half = f"{printed:>7s}  {algbw:6.2f}  {algbw * k:6.2f}  "
            second = self.in_place_errors or self.wrong
            out.append(
                f"{size:12d}  {size // 4:12d}  {'float':>8s}  {self.redop:>6s}  {self.root:6d}  "
                f"{half}{self.wrong:>5s}  {half}{second:>5s}"
            )
            size *= 2
        return out

    def lines(self) -> list[str]:
        rows = self.rows()
        header = "#       size         count      type   redop    root"
        columns = "     time   algbw   busbw #wrong"
        average = sum(float(r.split()[7]) + float(r.split()[11]) for r in rows) / len(rows) / 2
        return [
            *self.preamble(),
            *self.evidence(),
            f"#{'':62s}out-of-place{'':23s}in-place",
            header + columns + columns,
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
            *rows,
            "# Out of bounds values : 0 OK",
            f"# Avg bus bandwidth    : {average:g} ",
            "#",
            f"# Collective test concluded: {self.name}_perf",
        ]
