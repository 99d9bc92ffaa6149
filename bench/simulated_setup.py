"""Makes a site of simulated hosts for bench/scale.py: its configuration, keys, certificate and process."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncssh
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.project import ROOT
from bench.simulated_site import PORT, Site
from tests.support.clusters import all_operators, site
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
    ca_pem = _certificate(folder / "tls.pem", config["hosts"]["load_balancers"][0]["address"])
    user = {"name": "default", "user": {"token": "simulated"}}
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "users": [user], "current-context": "default",
        "clusters": [{"name": "default", "cluster": {
            "server": "https://127.0.0.1:6443",
            "certificate-authority-data": base64.b64encode(ca_pem.encode()).decode(),
        }}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    }  # fmt: skip
    return Site(
        hosts=hosts,
        client_key=login.export_public_key().decode(),
        delay=delay,
        dead=list(dead),
        rebooted=list(rebooted),
        ca_pem=ca_pem,
        tls_file=str(folder / "tls.pem"),
        kubeconfig=yaml.safe_dump(kubeconfig),
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


def _certificate(path: Path, address: str) -> str:
    """A key and a self-signed certificate for `address` in one file; returns the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulated")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_text(private.decode() + pem)
    return pem


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
