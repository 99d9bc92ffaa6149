"""The whole scripts of load balancers."""

from pathlib import Path

import pytest

from tests.unit.hosts.recorded import Host, in_order

pytestmark = pytest.mark.slow

OWNER = {"OWNER": "busbar/dev/lb-1", "INSTALL_ID": "11", "NODE_NAME": "lb-1"}
PAYLOAD = {
    "haproxy_cfg": "# Written by busbar\ngood\n  option httpchk GET /readyz\n",
    "keepalived_conf": "# Written by busbar\ngood\n",
    "ca_pem": "the CA",
}
CONFIG, CA = "/etc/haproxy/haproxy.cfg", "/etc/haproxy/busbar-ca.pem"
KEEPALIVED = "/etc/keepalived/keepalived.conf"
HEALTHY = "is https://127.0.0.1:8443 healthy?"
SHARED = "is https://10.0.0.9:8443 healthy?"
RECORDED = "write /var/lib/busbar/applied.sha256"


def balanced(host: Host, virtual_ip: str) -> list[str]:
    """The steps of an installation or an update."""
    values = {"API_PORT": "8443", "CA_FILE": f"{host.root}{CA}", "VIRTUAL_IP": virtual_ip}
    assert host.facts("haproxy", PAYLOAD, VERB="install", **OWNER, **values) == {"node": "lb-1"}
    return host.steps


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[str]]:
    """One of two load balancers, and the steps of its installation."""
    host = Host(tmp_path_factory.mktemp("balancer") / "root")
    steps = balanced(host, "10.0.0.9")
    host.save()
    return host, steps


@pytest.fixture
def balancer(installed: tuple[Host, list[str]]) -> Host:
    return installed[0].restore()


@pytest.mark.parametrize(("unit", "file"), [("haproxy", CONFIG), ("keepalived", KEEPALIVED)])
def test_a_file_is_checked_before_loading(installed: tuple[Host, list[str]], unit: str, file: str) -> None:
    steps = installed[1]
    installs = f"apt-get install -y --no-install-recommends {unit}"
    package = [f"touch /var/lib/busbar/{unit}.installed", installs]
    checked = [f"write {file}.busbar-new", f"{unit} checks {file}.busbar-new"]
    loaded = [f"systemctl reload-or-restart {unit}", f"write /var/lib/busbar/{unit}.loaded"]
    in_order(steps, "write /var/lib/busbar/owner", *package, *checked, f"write {file}", *loaded, RECORDED)
    assert f"systemctl enable -q {unit}" in steps


def test_haproxy_is_noted_as_it_was_and_runs_before_keepalived(installed: tuple[Host, list[str]]) -> None:
    steps = installed[1]
    noted = [f"touch /var/lib/busbar/haproxy.{state}" for state in ("enabled", "active")]
    noted += ["write /var/lib/busbar/haproxy.cfg.original", f"write {CA}"]
    in_order(steps, noted, f"write {CONFIG}")
    in_order(steps, "systemctl reload-or-restart haproxy", "systemctl reload-or-restart keepalived")
    in_order(steps, [HEALTHY, SHARED], RECORDED)


def test_the_files_of_a_load_balancer_are_recorded_and_can_be_read(balancer: Host) -> None:
    recorded = balancer.text("var/lib/busbar/applied.sha256").split()[1::2]
    assert {*recorded} == {f"{balancer.root}{path}" for path in (CONFIG, CA, KEEPALIVED)}
    modes = balancer.files()
    assert {modes[path] for path in (CONFIG, CA, KEEPALIVED)} == {"644"}


def test_a_shared_ipv6_address_is_asked_in_brackets(balancer: Host) -> None:
    assert "is https://[2001:db8::9]:8443 healthy?" in balanced(balancer, "2001:db8::9")


def test_the_preparation_of_a_load_balancer_only_downloads_its_packages(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.facts("prepare", {}, NODE_NAME="lb-1", PACKAGES="haproxy keepalived") == {"node": "lb-1"}
    downloads = [step.split()[-1] for step in host.steps if "--download-only" in step]
    assert downloads == ["haproxy", "keepalived"]
    assert not (host.root / "var/lib/busbar").exists()


def test_a_removed_load_balancer_gives_up_its_address_before_haproxy_ends(balancer: Host) -> None:
    facts = balancer.facts("haproxy", {}, VERB="remove", CA_FILE=f"{balancer.root}{CA}", **OWNER)
    assert facts == {"node": "lb-1", "removed": True}
    in_order(balancer.steps, "systemctl disable --now keepalived", "systemctl disable --now haproxy")
    for package in ("keepalived", "haproxy"):
        in_order(balancer.steps, f"systemctl disable --now {package}", f"apt-get purge -y {package}")
    assert balancer.steps[-2:] == ["write /var/lib/busbar.removed", "rm /var/lib/busbar.removed"]
    assert balancer.files() == {}
