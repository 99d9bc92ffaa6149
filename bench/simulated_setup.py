"""Makes a site of simulated hosts for bench/scale.py: its configuration, keys, certificate and process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncssh

from bench.project import ROOT
from bench.simulated_site import PORT, Site
from tests.support.api_server import kubeconfig
from tests.support.clusters import all_operators, site
from tests.support.prepared_api import self_signed
from tests.support.reports import report

POOLS = 10
GROUPS = (("lb", "load_balancers"), ("server", "servers"), ("worker", "workers"))


def configuration(folder: Path, workers: int) -> dict[str, Any]:
    """`busbar:cluster` with workers in POOLS pools, without operators and measurement."""
    names = [f"pool-{number}" for number in range(min(POOLS, workers))]
    made = site(
        workers={name: len(range(index, workers, len(names))) for index, name in enumerate(names)},
        **all_operators(enabled=False),
        validation={"enabled": False},
        ssh={"key_file": str(folder / "login"), "port": PORT},
    )
    for group, (_, key) in enumerate(GROUPS, 1):
        for index, host in enumerate(made["hosts"][key]):
            host["address"] = f"127.{group}.{index // 250}.{index % 250 + 1}"
    return made


def simulated(
    folder: Path, config: dict[str, Any], *, delay: float, dead: Sequence[str], rebooted: Sequence[str]
) -> Site:
    """Write the host keys into `config`; returns the hosts with what they answer."""
    login = asyncssh.generate_private_key("ssh-ed25519")
    login.write_private_key(str(folder / "login"))
    hosts = {}
    for role, key in GROUPS:
        for host in config["hosts"][key]:
            private = asyncssh.generate_private_key("ssh-ed25519")
            host["host_key"] = " ".join(private.export_public_key().decode().split()[:2])
            about = report(
                hostname=host["name"], machine=f"machine-{host['name']}", addresses=[host["address"]],
                listening=[], **({} if role == "worker" else {"gpus": None, "hcas": [], "gdr": None}),
            )  # fmt: skip
            hosts[host["name"]] = {
                "role": role,
                "address": host["address"],
                "key": private.export_private_key().decode(),
                "report": about.model_dump(mode="json", exclude={"epoch"}),
            }
    tls = self_signed(folder, config["hosts"]["load_balancers"][0]["address"])
    ca_pem = tls.read_text()[tls.read_text().index("-----BEGIN CERTIFICATE") :]
    return Site(
        hosts=hosts,
        client_key=login.export_public_key().decode(),
        delay=delay,
        dead=list(dead),
        rebooted=list(rebooted),
        ca_pem=ca_pem,
        tls_file=str(tls),
        kubeconfig=kubeconfig(6443, ca_pem.encode()),
        nodes=[_node(host["name"]) for host in config["hosts"]["workers"]],
        counts=str(folder / "counts.json"),
    )


def _node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"},
        },
    }


@contextmanager
def running(folder: Path, hosts: Site) -> Iterator[None]:
    """The hosts answer while this is open."""
    file = folder / "simulated.json"
    file.write_text(json.dumps(asdict(hosts)))
    command = [sys.executable, str(ROOT / "bench" / "simulated_site.py"), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the simulated hosts did not start")
        try:
            yield
        finally:
            process.terminate()
