"""Bandwidth of collectives by the line rate of the fabric and the rate of NVLink, without measurements.

S is the message size, n the number of ranks, N of NVLink domains, g of GPUs per domain, B the line rate of a
domain, b that of a GPU, L the NVLink rate of a GPU.
- ring, N >= 2: each border carries 2S(n-1)/n, so busbw <= B.
- tree or NVLS tree, N = 2: each domain sends S once, so busbw may reach 2B(n-1)/n, above line rate.
- tree, N >= 3: inner domains send 2S: busbw <= B(n-1)/n; plain Tree was seen at 0.48 B.
- SHARP: each domain sends and receives S at any N: 2B(n-1)/n, limited by NVLink inside.
- all_gather, reduce_scatter: ring B; best case B(n-1)/n x N/(N-1). In one domain NVLS does not raise them.
- sendrecv: one GPU's rails, b. alltoall: B(n-1)/(g(n-g)).
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.judge.nccl.expected.system import RING_SHARE, System
from busbar.judge.nccl.units import gbps

# allowance for two printed decimals and the clock: a ring on N >= 3 cannot exceed line rate by more
SLACK = 1.02
# fraction of its bound that a tree reaches between two domains: 78.3 of 93.8 GB/s
TREE_SHARE = 0.83
# a ring loses about 15 % from 2 to 46 nodes: 0.9 B is the floor of two, 0.75 B that of more
LARGE_RING_SHARE = 0.75 / 0.9
# plain Tree on three or more nodes: 191 to 193 of 400 GB/s
TREE_SHARE_OF_MANY = 0.48


@dataclass(frozen=True, slots=True)
class Formula:
    """Bandwidths in GB/s; `expected` is None if no formula fits. `why`: the reasoning, for users."""

    expected: float | None
    ceiling: float | None
    why: str


def formula(system: System, collective: str, algorithm: str) -> Formula:
    """The bandwidths of COLLECTIVE on SYSTEM. `algorithm` only matters for all_reduce."""
    if system.ranks < 2:
        return Formula(None, None, "one rank: nothing is exchanged")
    if system.domains == 1:
        return _one_domain(system, collective, algorithm)
    if collective == "all_reduce":
        found = _all_reduce(system, algorithm)
    elif collective in ("all_gather", "reduce_scatter"):
        found = _gathering(system)
    elif collective in ("broadcast", "reduce"):
        found = Formula(ring(system), SLACK * system.line_rate, f"{collective}: each border carries S once")
    elif collective in ("alltoall", "alltoallv", "sendrecv"):
        found = _pairwise(system, collective)
    else:
        return Formula(None, None, f"{collective}: no formula for its bound is known")
    return _inside_nvlink(system, collective, found)


def ring(system: System) -> float:
    """Busbw of a ring over all domains."""
    return system.line_rate * (1.0 if system.domains == 2 else LARGE_RING_SHARE)


def tree_of_two(system: System) -> float:
    """Busbw of a tree between two domains: above line rate, limited by NVLink inside."""
    most = TREE_SHARE * _once(system)
    return most if system.domain_value is None else min(most, system.domain_value)


def _once(system: System) -> float:
    return 2 * system.line_rate * (system.ranks - 1) / system.ranks


def _inside_nvlink(system: System, collective: str, found: Formula) -> Formula:
    """FOUND, limited by the rate at which the GPUs of a domain exchange data."""
    cap = system.domain_cap
    if cap is not None and collective in ("all_gather", "reduce_scatter"):
        # a switch does not raise them: a GPU receives at most the rate of its NVLink and its rails
        cap = system.nvlink_gbps + system.rate_per_gpu
    expected, ceiling, why = found.expected, found.ceiling, found.why
    if cap is None or expected is None or ceiling is None or ceiling <= cap:
        return found
    if system.line_rate >= system.nvlink_gbps:
        # the fabric carries more than NVLink: the ring inside a domain is the limit
        expected = min(expected, RING_SHARE * system.nvlink_gbps)
    return Formula(min(expected, cap), cap, f"{why}; ceiling is {gbps(cap)} inside a domain")


def _one_domain(system: System, collective: str, algorithm: str) -> Formula:
    link = system.nvlink_gbps
    if link <= 0:
        of = f" ({system.gpu})" if system.gpu else ""
        return Formula(None, None, f"one node, and how fast NVLink joins its GPUs{of} is not known")
    expected, ceiling = RING_SHARE * link, link
    why = f"one NVLink domain: a ring reaches {RING_SHARE:g} of {gbps(link)} per GPU"
    if collective == "all_reduce":
        ceiling = max(link, system.domain_cap or link)
        if algorithm == "nvls" and system.nvls is not None:
            expected = system.nvls
            why = f"one NVLink domain with NVLS: {gbps(expected)} is the best published"
    elif collective in ("gather", "scatter", "hypercube"):
        return Formula(None, link, f"{collective}: no formula for its bound is known")
    return Formula(expected, ceiling, why)


def _all_reduce(system: System, algorithm: str) -> Formula:
    rate, once = system.line_rate, _once(system)
    if algorithm == "sharp":
        why = f"SHARP: S out and S in at any N: 2B(n-1)/n = {gbps(once)}"
        return Formula(tree_of_two(system), once, why)
    if system.domains == 2:
        two = f"two nodes: a tree sends S once and may reach 2B(n-1)/n = {gbps(once)}, above line rate"
        if algorithm in ("tree", "nvls"):
            return Formula(tree_of_two(system), once, two)
        # NCCL may choose Ring on its own, so a ring's value must be accepted
        return Formula(min(ring(system), once), once, f"ring: busbw <= B; {two}")
    if algorithm == "tree":
        why = f"plain Tree on {system.domains} nodes was seen at {TREE_SHARE_OF_MANY:g} B only"
        return Formula(TREE_SHARE_OF_MANY * rate, SLACK * rate, why)
    why = f"{system.domains} nodes: a ring loses up to 15 %; above B is not credible"
    return Formula(ring(system), SLACK * rate, why)


def _gathering(system: System) -> Formula:
    rate, n, domains = system.line_rate, system.ranks, system.domains
    best = rate * (n - 1) / n * domains / (domains - 1)
    why = f"ring: busbw <= B; at best B(n-1)/n x N/(N-1) = {gbps(best)}"
    return Formula(LARGE_RING_SHARE * rate, max(best, SLACK * rate), why)


def _pairwise(system: System, collective: str) -> Formula:
    n, g = system.ranks, system.gpus_per_domain
    if collective == "sendrecv":
        bound = system.rate_per_gpu
        why = f"sendrecv: one GPU's rails, b = {gbps(bound)}"
    else:
        bound = system.line_rate / g * (n - 1) / (n - g)
        why = f"{collective}: B(n-1)/(g(n-g)) = {gbps(bound)}"
    return Formula(LARGE_RING_SHARE * bound, SLACK * bound, why)
