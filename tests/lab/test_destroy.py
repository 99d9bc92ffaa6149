"""A destroy leaves every host as it was before the first update."""

import base64
import sys
import time

import pytest

from lab.hosts import nspawn
from lab.topology import hosts
from tests.support import host_state
from tests.support.host_state import State
from tests.support.lab import UP_SECONDS, Lab, eventually

pytestmark = pytest.mark.drill

HOSTS = tuple(host.name for host in hosts())
# What the site had before is compared too: a rule of the packet filter, and a file among K3s's.
SITE = (
    "iptables -w -A FORWARD -s 192.0.2.1/32 -m comment --comment site -j DROP"
    " && mkdir -p /etc/rancher/k3s && echo 'mirrors: {}' > /etc/rancher/k3s/registries.yaml"
)


def _state(lab: Lab, host: str) -> State:
    encoded = base64.b64encode(host_state.SCRIPT.encode()).decode()
    return host_state.parse(lab.ssh(host, f"echo {encoded} | base64 -d | bash"))


def _busbar(lab: Lab, what: str, *words: str) -> None:
    began = time.monotonic()
    done = lab.run(sys.executable, "-m", "busbar", *words, seconds=UP_SECONDS)
    print(f"{what}: {time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stdout + done.stderr


def _new_machines(lab: Lab) -> None:
    """Boot all hosts anew, and wait until the services of their first boot have ended."""
    for host in hosts():
        nspawn.stop(nspawn.folder(host))
    lab.boot()
    booted = "test -e /var/lib/busbar-lab-apt && systemctl is-active busbar-lab-apt || true"
    for name in HOSTS:
        eventually(lambda name=name: lab.ssh(name, booted).strip() == "inactive", 120, f"{name} has booted")  # type: ignore[misc]


def test_a_destroy_leaves_every_host_as_it_was_before_the_first_update(lab: Lab) -> None:
    _busbar(lab, "destroy", "destroy", "dev", "--yes")
    try:
        _new_machines(lab)
        for host in HOSTS:
            lab.ssh(host, SITE)
        before = {host: _state(lab, host) for host in HOSTS}
        _busbar(lab, "a first update", "up", "dev", "--yes", "--skip-preview")
        installed, _ = host_state.differences(before["lb-1"], _state(lab, "lb-1"))
        assert any("/etc/haproxy/haproxy.cfg" in line for line in installed), "an installation is seen"
        _busbar(lab, "a destroy", "destroy", "dev", "--yes")
        wrong = []
        for host in HOSTS:
            found, tolerated = host_state.differences(before[host], _state(lab, host))
            print("\n".join(f"tolerated on {host}: {line}" for line in tolerated))
            wrong += [f"{host}: {line}" for line in found]
        assert not wrong, "\n".join(wrong)
    finally:
        _busbar(lab, "what is left of it", "destroy", "dev", "--yes")
        _new_machines(lab)
        _busbar(lab, "the usual cluster", "up", "dev", "--yes", "--skip-preview")
