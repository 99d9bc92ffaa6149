"""One run of nccl-tests, resolved from configuration and profile into plain values for any launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from busbar.config.cluster import Gpus, Hardware, NcclSettings
from busbar.judge.nccl.expected.profiles import Profile

# For every run; overridden by profile, transport and configuration, in this order.
BASE_ENV: Mapping[str, str] = {
    # The verdict needs these lines as evidence; without them it is never a pass. INIT and NET show the
    # channels, ENV the topology file; GRAPH would add the whole PCI tree of every rank. INFO stays on in the
    # measured run itself: its lines appear once, before the table, and describe the measured communicator.
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    # Connect all channels at init, as before NCCL 2.22: the evidence is then printed before the table.
    "NCCL_RUNTIME_CONNECT": "0",
    # NCCL's bootstrap is TCP also where the data is RDMA; a pod's cluster interface is always eth0.
    "NCCL_SOCKET_IFNAME": "eth0",
    # MPI only starts the ranks and compares: with TCP no second RDMA stack (UCX, HCOLL) disturbs them.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^openib,uct,usnic,ofi",
    # Copying from process to process needs ptrace, which a pod does not have: Open MPI 4 would warn.
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_coll_hcoll_enable": "0",
}
TRANSPORT_ENV: Mapping[str, Mapping[str, str]] = {"socket": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}}
# NCCL_ALGO: only all_reduce has algorithms besides the ring; other collectives fail with these set.
ALGORITHM_ENV: Mapping[str, Mapping[str, str]] = {
    "ring": {"NCCL_ALGO": "RING"},
    "tree": {"NCCL_ALGO": "TREE"},
    "nvls": {"NCCL_ALGO": "NVLS,NVLSTREE"},
    "sharp": {"NCCL_ALGO": "COLLNETCHAIN,COLLNETDIRECT", "NCCL_COLLNET_ENABLE": "1"},
}
# Fields that only the expectation needs: transport and algorithm are in the environment too.
OF_THE_VERDICT = {"gpu", "rails", "rate_gbps", "transport", "algorithm"}
DEFAULT_MPI_ARGS = ("--bind-to", "none", "--map-by", "slot")


@dataclass(frozen=True, kw_only=True)
class NcclRun:
    """One measurement over the nodes of a pool. Sizes in bytes.

    `gpu`, `rails`, `rate_gbps`: what each node has; None where that is not known. `host_paths`: devices and
    folders of the host that a container needs, with their kinds.
    """

    pool: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu: str | None
    rails: int | None
    rate_gbps: float | None
    collectives: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    step_factor: int
    iterations: int
    warmup: int
    deadline_seconds: int
    transport: str
    algorithm: str
    slots_per_worker: int
    host_paths: Mapping[str, str]
    env: Mapping[str, str]
    all_reduce_env: tuple[str, ...]
    mpi_args: tuple[str, ...]
    run: int

    @property
    def request(self) -> dict[str, Any]:
        """What is measured, as JSON values: the name of a job is a digest of it, and of no text of a script.

        What only the verdict depends on, or is not set, is left out: a new field gives no other name.
        """
        found = {key: value for key, value in vars(self).items() if key not in OF_THE_VERDICT}
        return {key: value for key, value in found.items() if value not in (None, (), {})}

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""
        return len(self.nodes) * self.slots_per_worker


def nccl_run(pool: str, nodes: Sequence[str], hardware: Gpus, validation: NcclSettings) -> NcclRun:
    """The measurement of some nodes: from the validation, else its profile, else the defaults."""
    profile = validation.system
    transport = validation.required_transport
    algorithm = validation.chosen("algorithm")
    env, all_reduce_env = _env(validation, profile, transport, algorithm)
    rails = hardware if isinstance(hardware, Hardware) else None
    of_profile = profile.mpi_args if profile else ()
    return NcclRun(
        pool=pool,
        nodes=tuple(nodes),
        gpus_per_node=hardware.gpus,
        gpu=hardware.gpu_model,
        rails=rails.rails if rails else None,
        rate_gbps=rails.rate_gbps if rails else None,
        collectives=tuple(validation.collectives),
        min_bytes=validation.chosen("min_bytes"),
        max_bytes=validation.chosen("max_bytes"),
        step_factor=validation.step_factor,
        iterations=validation.iterations,
        warmup=validation.warmup,
        deadline_seconds=validation.deadline_seconds,
        transport=transport,
        algorithm=algorithm,
        slots_per_worker=validation.slots_per_worker or hardware.gpus,
        host_paths={path.path: path.type for path in profile.host_paths} if profile else {},
        env=env,
        all_reduce_env=all_reduce_env,
        # `--bind-to` for `-bind-to`: Open MPI 4 takes both forms, 5 warns about the second.
        mpi_args=tuple(re.sub(r"^-(?=[^-].)", "--", each) for each in of_profile) or DEFAULT_MPI_ARGS,
        run=validation.run,
    )


def _env(
    validation: NcclSettings, profile: Profile | None, transport: str, algorithm: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The ranks' environment, and the names in it that only all_reduce may see."""
    env = {**BASE_ENV, **(profile.env if profile else {}), **TRANSPORT_ENV.get(transport, {})}
    if "algorithm" in validation.model_fields_set:
        env.pop("NCCL_ALGO", None)
        env |= ALGORITHM_ENV.get(algorithm, {})
    if algorithm == "sharp":
        # Logs the algorithm of each call: the only proof that SHARP was used and not the ring.
        env["NCCL_DEBUG_SUBSYS"] += ",TUNING"
    if validation.hcas:
        # "=" matches the whole name: mlx5_1 alone would also match mlx5_10 and mlx5_11.
        env["NCCL_IB_HCA"] = "=" + ",".join(validation.hcas)
    env |= validation.env
    only_all_reduce = ("NCCL_ALGO",) if "NCCL_ALGO" in env and algorithm not in ("ring", "auto") else ()
    return env, only_all_reduce
