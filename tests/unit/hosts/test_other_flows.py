"""The whole scripts of load balancers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hosts.recorded import Host, changes, in_order

pytestmark = pytest.mark.slow

OWNED = "write /var/lib/busbar/owner"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


OWNER = {"OWNER": "busbar/dev/lb-1", "INSTALL_ID": "11", "NODE_NAME": "lb-1"}
HAPROXY = "# Written by busbar\ngood\n  option httpchk GET /readyz\n"
KEEPALIVED = "# Written by busbar\ngood\n"


def balanced(host: Host, virtual_ip: str = "", *, haproxy: str = HAPROXY) -> list[str]:
    """The steps of an installation or an update."""
    payload = {"haproxy_cfg": haproxy, "keepalived_conf": KEEPALIVED, "ca_pem": "the CA"}
    values = {
        "API_PORT": "8443",
        "CA_FILE": f"{host.root}/etc/haproxy/busbar-ca.pem",
        "VIRTUAL_IP": virtual_ip,
    }
    facts = host.facts("haproxy", payload, VERB="install", **OWNER, **values)
    assert facts == {"node": "lb-1"}
    return host.steps


def installed(package: str) -> list[str]:
    return [
        f"touch /var/lib/busbar/{package}.installed",
        "apt-get update",
        f"apt-get install -y --no-install-recommends {package}",
    ]


CONFIG, CA = "/etc/haproxy/haproxy.cfg", "/etc/haproxy/busbar-ca.pem"
KEEPALIVED_CONFIG = "/etc/keepalived/keepalived.conf"


def is_loaded(steps: list[str], unit: str, file: str) -> None:
    """The program has checked a configuration before it gets its name, and it counts when it is loaded."""
    checks = [f"write {file}.busbar-new", f"{unit} checks {file}.busbar-new"]
    in_order(steps, *installed(unit), *checks, f"write {file}", f"systemctl reload-or-restart {unit}")
    in_order(steps, f"systemctl enable -q {unit}")
    in_order(steps, f"systemctl reload-or-restart {unit}", f"write /var/lib/busbar/{unit}.loaded", HEALTHY)


HEALTHY = "is https://127.0.0.1:8443 healthy?"
SHARED = "is https://10.0.0.9:8443 healthy?"
RECORDED = "write /var/lib/busbar/applied.sha256"


def test_a_load_balancer_is_marked_first_and_recorded_when_it_is_healthy(host: Host) -> None:
    steps = balanced(host)
    is_loaded(steps, "haproxy", CONFIG)
    was = [f"/var/lib/busbar/haproxy.{name}" for name in ("enabled", "active", "cfg.original")]
    in_order(steps, OWNED, installed("haproxy"), [f"write {CA}", *was_noted(was)], f"write {CONFIG}")
    in_order(steps, HEALTHY, RECORDED)
    assert host.files()[CA] == host.files()[CONFIG] == "644"


def was_noted(paths: list[str]) -> list[str]:
    """How a host was before busbar, for its removal."""
    return [f"{'write' if path.endswith('original') else 'touch'} {path}" for path in paths]


def test_two_load_balancers_share_an_address_once_haproxy_runs(host: Host) -> None:
    steps = balanced(host, "10.0.0.9")
    is_loaded(steps, "haproxy", CONFIG)
    is_loaded(steps, "keepalived", KEEPALIVED_CONFIG)
    in_order(steps, "systemctl reload-or-restart haproxy", "systemctl reload-or-restart keepalived")
    in_order(steps, [HEALTHY, SHARED], RECORDED)
    assert host.files()[KEEPALIVED_CONFIG] == "644"
    recorded = (host.root / "var/lib/busbar/applied.sha256").read_text().split()[1::2]
    assert {*recorded} == {f"{host.root}{path}" for path in (CONFIG, CA, KEEPALIVED_CONFIG)}


def test_a_shared_ipv6_address_is_asked_in_brackets(host: Host) -> None:
    in_order(balanced(host, "2001:db8::9"), "is https://[2001:db8::9]:8443 healthy?", RECORDED)


def test_the_preparation_of_a_load_balancer_only_downloads_its_packages(host: Host) -> None:
    assert host.facts("prepare", {}, NODE_NAME="lb-1", PACKAGES="haproxy keepalived") == {"node": "lb-1"}
    downloads = [step for step in host.steps if "--download-only" in step]
    assert [step.split()[-1] for step in downloads] == ["haproxy", "keepalived"]
    assert not (host.root / "var/lib/busbar").exists()


def test_a_load_balancer_with_the_same_configuration_loads_nothing(host: Host) -> None:
    balanced(host, "10.0.0.9")
    before = host.files()
    steps = balanced(host, "10.0.0.9")
    assert not [step for step in changes(steps) if ".busbar-new" not in step]
    in_order(steps, [HEALTHY, SHARED])
    assert host.files() == before


def test_a_removed_load_balancer_gives_up_its_address_before_haproxy_ends(host: Host) -> None:
    balanced(host, "10.0.0.9")
    facts = host.facts("haproxy", {}, VERB="remove", CA_FILE=f"{host.root}{CA}", **OWNER)
    assert facts == {"node": "lb-1", "removed": True}
    in_order(host.steps, "systemctl disable --now keepalived", "systemctl disable --now haproxy")
    for package in ("keepalived", "haproxy"):
        in_order(host.steps, f"systemctl disable --now {package}", f"apt-get purge -y {package}")
    assert host.steps[-2:] == ["write /var/lib/busbar.removed", "rm /var/lib/busbar.removed"]
    assert host.files() == {}


def test_a_load_balancer_of_another_stack_is_left_alone(host: Host) -> None:
    balanced(host)
    facts = host.facts("haproxy", {}, VERB="remove", CA_FILE="x", **{**OWNER, "INSTALL_ID": "22"})
    assert (facts["removed"], host.steps) == (False, [])
    done = host.run("haproxy", {}, VERB="begin", VIRTUAL_IP="", **OWNER)
    assert (done.returncode, host.steps) == (1, [])
    assert "VERB=begin is unknown. Fix: use one of: install remove" in done.stderr
