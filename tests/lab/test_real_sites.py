"""What real sites have and simple hosts do not; lab/README.md lists it under What breaks on real sites."""

import base64
import json
from collections.abc import Iterator

import pytest

from busbar.hosts import scripts
from lab.topology import MANAGEMENT_GATEWAY, MANAGEMENT_INTERFACE
from tests.support.lab import Change, Lab, eventually

HOSTS = ("lb-1", "server-1", "server-2", "server-3", "worker-1", "worker-2")
PUBLIC_IP = "flannel.alpha.coreos.com/public-ip"
DROP_IN = "/etc/rancher/k3s/config.yaml.d/90-test.yaml"
IMAGES = "/var/lib/rancher/k3s/agent/images"


def _node(lab: Lab, name: str) -> dict[str, dict[str, str]]:
    """The annotations of a Node, the status of its conditions, and its addresses by type."""
    node = json.loads(lab.kubectl(f"get node {name} -o json"))
    return {
        "annotations": node["metadata"]["annotations"],
        "conditions": {each["type"]: each["status"] for each in node["status"]["conditions"]},
        "addresses": {each["type"]: each["address"] for each in node["status"]["addresses"]},
    }


def _journal(lab: Lab, host: str, unit: str, since: str) -> str:
    return lab.ssh(host, f"journalctl -q -o cat -u {unit} --since @{since}")


def _now(lab: Lab, host: str) -> str:
    return lab.ssh(host, "date +%s").strip()


def test_pods_use_the_clusters_network_though_the_default_route_is_another(lab: Lab) -> None:
    for host in HOSTS:
        assert lab.ssh(host, "ip route show default").split()[:5] == [
            "default", "via", MANAGEMENT_GATEWAY, "dev", MANAGEMENT_INTERFACE,
        ]  # fmt: skip
    for name in HOSTS[1:]:
        node = _node(lab, name)
        assert node["annotations"][PUBLIC_IP] == node["addresses"]["InternalIP"], name


def test_only_the_rails_are_offered_of_the_four_hcas_of_a_worker(lab: Lab) -> None:
    found = lab.ssh("worker-1", "cd /sys/class/infiniband && cat */ports/1/state */ports/1/rate")
    assert "1: DOWN" in found and "200 Gb/sec (4X HDR)" in found
    policy = json.loads(lab.kubectl("get nicclusterpolicies.mellanox.com nic-cluster-policy -o json"))
    config = json.loads(policy["spec"]["sriovDevicePlugin"]["config"])
    assert config["resourceList"][0]["selectors"]["pciAddresses"] == ["0000:21:00.0", "0000:23:00.0"]


def test_the_package_lists_are_updated_once_another_apt_gives_up_its_locks(lab: Lab) -> None:
    # Without sources: what is tested is the lock, which apt-get takes all the same.
    update = (
        "APT_OPTIONS+=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=-)\n"
        "/usr/local/lib/busbar-lab/apt-locks.pl 6 & sleep 1\n"
        "apt_update\n"
        "if kill -0 $! 2>/dev/null; then echo too early; else echo after the other apt; fi\n"
    )
    text = scripts.text("haproxy").rstrip().removesuffix("main")
    encoded = base64.b64encode(f"{text}\nPAYLOAD='{{}}'; begin\n{update}".encode()).decode()
    assert lab.ssh("lb-1", f"echo {encoded} | base64 -d | bash -s").strip() == "after the other apt"


@pytest.fixture
def worker(lab: Lab) -> Iterator[str]:
    """A worker whose agent a test may break; afterwards it runs with its configuration."""
    host = "worker-2"
    yield host
    lab.ssh(host, f"rm -f {DROP_IN}; systemctl restart k3s-agent")
    eventually(lambda: _node(lab, host)["conditions"]["Ready"] == "True", 120, f"{host} is Ready again")


@pytest.mark.drill
def test_pod_traffic_over_the_interface_of_the_default_route_does_not_arrive(lab: Lab, worker: str) -> None:
    bridge = lab.ssh(worker, "ip -4 -o addr show cni0 | awk '{ print $4 }' | cut -d/ -f1").strip()
    ping = f"ping -c 1 -W 2 {bridge} >/dev/null && echo arrives || echo lost"
    assert lab.ssh("server-1", ping).strip() == "arrives"
    lab.ssh(
        worker,
        f"mkdir -p {DROP_IN.rpartition('/')[0]} && echo 'flannel-iface: {MANAGEMENT_INTERFACE}' > {DROP_IN}"
        " && systemctl restart k3s-agent",
    )
    address = lab.ssh(worker, f"ip -4 -o addr show {MANAGEMENT_INTERFACE}").split()[3].partition("/")[0]
    eventually(lambda: _node(lab, worker)["annotations"][PUBLIC_IP] == address, 60, f"{worker} at {address}")
    eventually(lambda: lab.ssh("server-1", ping).strip() == "lost", 60, f"pods of {worker} are out of reach")


@pytest.mark.drill
def test_a_start_imports_all_archives_only_without_a_cache_file(lab: Lab, worker: str) -> None:
    def imported() -> int:
        since = _now(lab, worker)
        lab.ssh(worker, "systemctl restart k3s-agent")
        return _journal(lab, worker, "k3s-agent", since).count("Importing images from")

    archives = int(lab.ssh(worker, f"ls {IMAGES}/*.tar* | wc -l"))
    assert archives > 0 and imported() == 0, "busbar makes the cache file"
    lab.ssh(worker, f"mv {IMAGES}/.cache.json /root/cache.json")
    try:
        assert imported() == archives
    finally:
        lab.ssh(worker, f"mv /root/cache.json {IMAGES}/.cache.json")


@pytest.mark.drill
def test_certificates_near_their_end_are_renewed_once_enough_servers_answer(
    lab: Lab, changed: Change
) -> None:
    admin = "/var/lib/rancher/k3s/server/tls/client-admin"
    short = "/etc/default/k3s"
    left = "sed -n 's/^ *client-certificate-data: *//p' /etc/rancher/k3s/k3s.yaml | base64 -d"
    left += " | openssl x509 -noout -checkend $((110 * 86400)) >/dev/null && echo long || echo short"
    resources = json.loads(lab.pulumi("stack", "export", "--stack", "dev").stdout)["deployment"]["resources"]
    [reads_it] = [each["urn"] for each in resources if each["urn"].endswith("-control-plane-kubeconfig")]
    # Without waiting for the 90 days after which an update reads it again.
    at_once = ("--replace", reads_it)
    lab.ssh(
        "server-1",
        f"echo CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS=100 > {short}; rm {admin}.crt; systemctl restart k3s",
    )
    lab.ssh("server-1", f"rm {short}")
    assert lab.ssh("server-1", left).strip() == "short"
    lab.ssh("server-2", "systemctl stop k3s")
    try:
        refused = changed(lambda cluster: None, *at_once, fails=True)
        assert "k3s was not restarted: etcd would lose its quorum" in refused, refused
        assert "silent: server-2-" in refused, refused
        assert lab.ssh("server-1", left).strip() == "short"
    finally:
        lab.ssh("server-2", "systemctl start k3s")
    changed(lambda cluster: None, *at_once)
    assert lab.ssh("server-1", left).strip() == "long"
