"""A site with Slurm, what preflight found on it, and what its hosts report."""

from collections.abc import Mapping
from typing import Any

import yaml

from busbar.preflight.report import Report
from stacks.slurm.package import config, preflight
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.preflight import Spec
from tests.support.clusters import H100_POOL
from tests.support.clusters import host as plain_host
from tests.support.reports import report


def host(name: str, number: int, **more: Any) -> dict[str, Any]:
    return plain_host(name, f"10.0.0.{number}", **more)


def configured(**changes: Any) -> dict[str, Any]:
    """The object `busbar-slurm:slurm`: a controller, a login host, two compute hosts with 8 H100 each."""
    made = {
        "name": "site",
        "ssh": {"agent": True},
        "hosts": {
            "controller": host("ctl", 1),
            "login": [host("login", 2)],
            "compute": [host("gpu-1", 11), host("gpu-2", 12)],
        },
        "pools": {"h100": dict(H100_POOL)},
        "accounting": {"enabled": True},
    }
    return {**made, **changes}


def stack_file(**changes: Any) -> str:
    return yaml.safe_dump({"config": {f"{config.PROJECT}:{config.KEY}": configured(**changes)}})


def slurm(**changes: Any) -> Slurm:
    return config.load(configured(**changes))


def compute(*hosts: Mapping[str, Any]) -> dict[str, Any]:
    """`hosts` with these compute hosts: compute({"topology": {...}}, ...)."""
    listed = [host(f"gpu-{number}", 10 + number, **more) for number, more in enumerate(hosts, 1)]
    return {**configured()["hosts"], "compute": listed}


COMMON = {"slurm": "24.11.5-4", "slurm_ids": "64030:64030", "cgroup": "v2", "arch": "x86_64"}
NODE = {
    **COMMON,
    **{"cpus": 224, "sockets": 2, "cores": 56, "threads": 2, "memory_bytes": 2 << 40},
    **{"gpu_minors": [*range(8)], "gpus": 8, "driver": "580.95.05"},
}


def facts(made: Slurm, **of_host: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What preflight found on every host; `of_host` changes one: facts(made, gpu_1={...})."""
    found = {each.name: dict(NODE if each.role == "worker" else COMMON) for each in preflight.hosts_of(made)}
    for name, change in of_host.items():
        found[name.replace("_", "-")] |= change
    return found


ALSO = {
    **{
        "hostname": "gpu-1",
        "slurm_ids": ":",
        "available": "24.11.5-4",
        "installed": "",
        "foreign": "",
        "cluster": "",
    },
    **{
        "role": "",
        "sockets": 2,
        "cores": 56,
        "threads": 2,
        "gpu_minors": [*range(8)],
        "home": "nfs4 nas:/home",
        "users": {},
        "missing_debs": "",
        "missing_programs": "",
        "pmix": 1,
    },
}


def reported(also: Mapping[str, Any] | None = None, **changes: Any) -> Report:
    """A good compute host's report; `also` changes what stacks/slurm asks for."""
    return report(also={**ALSO, **(also or {})}, **changes)


def spec(made: Slurm | None = None, **changes: Any) -> Spec:
    return preflight.spec_of(made or slurm()).model_copy(update={"install_id": "0123456789abcdef", **changes})
