"""A bring-up of 10, 110 and 440 workers in 10 pools: the real engine and program, simulated SSH hosts.

Prints for each size: wall time, what of it the installations alone take at that many at the same time, time
per worker, CPU time, the largest process, connections, the size of the state, and the time of a second update
with nothing to do. The hosts (bench/simulated_site.py) are one process that answers every script after a set
delay; the operators and the measurement are off.

    python bench/scale.py [--workers 10 110 440] [--delay 2] [--parallel 50] [--dead-percent 1]
"""

from __future__ import annotations

import argparse
import base64
import datetime
import ipaddress
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncssh
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.simulated_site import PORT, Site  # noqa: E402
from lab.engine.environment import environment  # noqa: E402
from tests.support.clusters import all_operators, site  # noqa: E402
from tests.unit.preflight.samples import report  # noqa: E402

DEADLINE_SECONDS = 3600
POOLS = 10
GROUPS = (("lb", "load_balancers"), ("server", "servers"), ("worker", "workers"))


@dataclass(frozen=True)
class Measured:
    """One update: wall and CPU seconds (without the hosts), the largest process in MiB, and its output."""

    seconds: float
    cpu_seconds: float
    rss_mib: float
    code: int
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 110, 440])
    parser.add_argument("--delay", type=float, default=2.0, help="seconds per installation")
    parser.add_argument("--parallel", type=int, help="as `busbar up --parallel`; its default otherwise")
    parser.add_argument(
        "--dead-percent", type=float, default=0, help="workers that answer preflight and then no more"
    )
    wanted = parser.parse_args()
    print(
        f"{'workers':>7} {'wall s':>7} {'installs':>8} {'ms/worker':>9} {'CPU s':>6} {'MiB':>5} {'conns':>6}"
        f" {'at once':>7} {'state MB':>8} {'again s':>7}"
    )
    for workers in wanted.workers:
        with tempfile.TemporaryDirectory(prefix="busbar-scale-") as folder:
            _measure(Path(folder), workers, wanted)


def _measure(folder: Path, workers: int, wanted: argparse.Namespace) -> None:
    config = _config(folder, workers)
    dead = [f"gpu-{number}" for number in range(1, math.floor(workers * wanted.dead_percent / 100) + 1)]
    simulated = _simulated(folder, config, wanted.delay, dead)
    bench = _Bench(folder, config)
    with _running(folder, simulated):
        first = bench.up(wanted.parallel)
        counts = json.loads((folder / "counts.json").read_text())
        if first.code != 0 and not dead:
            raise SystemExit(f"busbar up failed:\n{first.text[-6000:]}")
        state = bench.state_bytes()
        again = None if dead else bench.up(wanted.parallel)
    # Server 1, then the other servers one by one, the load balancer, then the workers in waves.
    at_once = counts["most_installing"]
    ideal = wanted.delay * (3 + 1 + math.ceil(workers / at_once))
    print(
        f"{workers:>7} {first.seconds:>7.1f} {ideal:>8.1f} {1000 * first.seconds / workers:>9.0f}"
        f" {first.cpu_seconds:>6.1f} {first.rss_mib:>5.0f} {counts['connections']:>6}"
        f" {counts['most_connections']:>7} {state / 1e6:>8.1f}"
        f" {f'{again.seconds:.1f}' if again else '-':>7}",
        flush=True,
    )
    if again and again.code != 0:
        raise SystemExit(f"the second update failed:\n{again.text[-6000:]}")
    if dead:
        done = counts["scripts"].get("k3s-agent", 0)
        named = [name for name in dead if name in first.text]
        print(f"        {len(dead)} dead: exit {first.code}, {len(named)} named, {done} agents asked")
        print(first.text[-3000:])


def _config(folder: Path, workers: int) -> dict[str, Any]:
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


def _simulated(folder: Path, config: dict[str, Any], delay: float, dead: list[str]) -> Site:
    """Keys for every host, entered in `config` too, and what the hosts answer."""
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
        dead=dead,
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
def _running(folder: Path, simulated: Site) -> Iterator[None]:
    file = folder / "simulated.json"
    file.write_text(json.dumps(asdict(simulated)))
    command = [sys.executable, str(ROOT / "bench" / "simulated_site.py"), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the simulated hosts did not start")
        try:
            yield
        finally:
            process.terminate()


class _Bench:
    """A project folder, a backend and a stack of their own."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._backend = folder / "backend"
        self._backend.mkdir()
        self._project = folder / "site"
        self._project.mkdir()
        for path in ROOT.iterdir():
            if path.name not in {".git", ".lab", ".busbar"} and not path.match("Pulumi.*.yaml"):
                (self._project / path.name).symlink_to(path)
        (self._project / "Pulumi.scale.yaml").write_text(
            yaml.safe_dump({"config": {"busbar:cluster": config}})
        )
        self._env = {
            **os.environ,
            **environment(),
            "PULUMI_BACKEND_URL": f"file://{self._backend}",
            "PULUMI_CONFIG_PASSPHRASE": "bench",
        }

    def up(self, parallel: int | None) -> Measured:
        command = [sys.executable, "-m", "busbar", "up", "scale", "--yes", "--skip-preview"]
        command += ["--parallel", str(parallel)] if parallel else []
        log = self._project / "up.log"
        started = time.perf_counter()
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=self._project, env=self._env, stdout=out, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(process.pid, 0)
        return Measured(
            seconds=time.perf_counter() - started,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            rss_mib=usage.ru_maxrss / 1024,
            code=os.waitstatus_to_exitcode(status),
            text=log.read_text(),
        )

    def state_bytes(self) -> int:
        """The size of the checkpoint that the engine writes after every step."""
        return max(path.stat().st_size for path in self._backend.rglob("stacks/**/scale.json*"))


if __name__ == "__main__":
    main()
