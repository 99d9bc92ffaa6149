"""A cold `busbar up` of the lab whose GPU Operator and Network Operator take minutes, as on real nodes.

An operator's pod finds no node until its time is over, counted from the creation of its Deployment: then a
worker gets the label that the pod asks for. Prints the time from the first operator's Deployment to the end
of the update, and its ratio to the slower operator. Takes the lab down before and after. Needs root.

    python bench/slow_operators.py [--gpu-operator 240] [--network-operator 120]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.by_hand import ADMIN
from bench.lab_site import cluster, fresh_hosts, lab
from bench.project import Project
from lab.engine.environment import environment
from lab.hosts import ssh
from lab.topology import hosts

STACK = "bench"
GPU, NETWORK = "gpu-operator", "network-operator"
NAMESPACES = {GPU: "gpu-operator", NETWORK: "nvidia-network-operator"}
LABEL = "bench/started"
APPEAR_SECONDS = 600
POLL_SECONDS = 0.5
AIM = 1.2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu-operator", type=float, default=240)
    parser.add_argument("--network-operator", type=float, default=120)
    wanted = parser.parse_args()
    os.environ.update(environment())
    delays = {GPU: wanted.gpu_operator, NETWORK: wanted.network_operator}
    config = cluster()
    config["gpu_operator"] |= {"timeout_seconds": 900, "values": {"operator": {"affinity": _affinity()}}}
    config["network_operator"] |= {
        "timeout_seconds": 900,
        "values": {"operator": {"nodeSelector": {f"{LABEL}-{NETWORK}": "yes"}}},
    }
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as name:
        fresh_hosts()
        try:
            project = Project(Path(name))
            project.configure(STACK, config)
            began: list[float] = []
            for operator, seconds in delays.items():
                threading.Thread(target=_start_after, args=(operator, seconds, began), daemon=True).start()
            print(
                project.succeed(sys.executable, "-m", "busbar", "up", STACK, "--yes", "--skip-preview").text
            )
            seconds = time.monotonic() - min(began)
        finally:
            lab("down")
    longest = max(delays.values())
    print(
        f"from the first operator to the end: {seconds:.0f} s = {seconds / longest:.2f} x the "
        f"{longest:.0f} s of the slower one (aim: {AIM})"
    )


def _affinity() -> dict[str, object]:
    started = {"key": f"{LABEL}-{GPU}", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [started]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _start_after(operator: str, seconds: float, began: list[float]) -> None:
    _retry(f"{operator}: its Deployment", "get", "deployment", operator, "--namespace", NAMESPACES[operator])
    began.append(time.monotonic())
    time.sleep(seconds)
    _retry(f"{operator}: its label", "label", "node", "worker-1", f"{LABEL}-{operator}=yes", "--overwrite")


def _retry(what: str, *words: str) -> None:
    """Run kubectl on a server until it succeeds. Raises RuntimeError with its last error at the deadline."""
    server = next(host for host in hosts() if host.role == "server")
    command = ssh.command(server, ["/usr/local/bin/k3s", "kubectl", "--kubeconfig", ADMIN, *words])
    until = time.monotonic() + APPEAR_SECONDS
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"{what} timed out after {APPEAR_SECONDS} s: {done.stderr.strip()}")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
