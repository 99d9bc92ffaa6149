"""A site without load balancers: everything reaches the API at an endpoint of its own, or one of servers."""

import pytest
import yaml

from tests.program.answers import performed
from tests.program.harness import Run
from tests.support.clusters import site

ENDPOINT = "https://k8s.example.org:6443"


@pytest.fixture(scope="module")
def run() -> Run:
    return performed(site(load_balancers=0, api_endpoint={"address": "k8s.example.org"}))


def test_nothing_is_made_of_a_load_balancer(run: Run) -> None:
    assert not [each for each in run.resources if "HAProxy" in each or "load-balancer" in each]


def test_certificates_agents_preflight_kubeconfig_and_outputs_have_the_endpoint(run: Run) -> None:
    assert run.config("busbar-control-plane@server-2")["tls-san"][0] == "k8s.example.org"
    assert run.config("busbar-worker@gpu-1")["server"] == ENDPOINT
    assert yaml.safe_load(run.outputs["kubeconfig"])["clusters"][0]["cluster"]["server"] == ENDPOINT
    assert run.outputs["api_endpoint"] == ENDPOINT
    assert run.request("busbar-preflight-hosts")["api_endpoint"] == "k8s.example.org"


def test_workers_and_operators_wait_until_it_answers_with_a_certificate_of_its_name(run: Run) -> None:
    ready, asked = run.named("busbar-api-endpoint-ready"), run.request("busbar-api-endpoint-ready")
    assert (asked["setting"], asked["deadline_seconds"]) == ("api_endpoint", 300)
    assert "of the servers (192.0.2.11, 192.0.2.12, 192.0.2.13) without ending TLS" in asked["fix"]
    assert run.waits_for(ready, run.named("busbar-control-plane-kubeconfig"))
    for later in ("busbar-worker@gpu-1", "busbar-gpu-operator-release", "busbar-control-plane-taints"):
        assert run.waits_for(run.named(later), ready), later
    assert run.waits_for(ready, run.named("busbar-control-plane@server-3"))


def test_servers_that_share_an_address_stand_in_place_of_load_balancers() -> None:
    cluster = site(load_balancers=0)
    cluster["hosts"]["virtual_ip"] = {"address": "192.0.2.100", "interface": "eth0"}
    run = performed(cluster)
    assert not [each for each in run.resources if "HAProxy" in each]
    for number in (1, 2, 3):
        server = f"busbar-control-plane@server-{number}"
        assert run.values(server)["VIRTUAL_IP"] == "192.0.2.100"
        assert " timeout -k 15 2100 " in run.named(server).inputs["create"], "as keepalived may need"
        assert f"unicast_src_ip 192.0.2.1{number}" in run.files(server)["keepalived_conf"]
        assert run.config(server)["tls-san"][0] == "192.0.2.100"
    assert run.outputs["api_endpoint"] == "https://192.0.2.100:6443"
    prepared = run.request("busbar-prepare")["values"]
    assert prepared["server"]["PACKAGES"] == "keepalived" and "PACKAGES" not in prepared["worker"]
    ready = run.named("busbar-api-endpoint-ready")
    assert run.request(ready.name)["setting"] == "hosts.virtual_ip"
    assert run.waits_for(run.named("busbar-worker@gpu-1"), ready)
    assert run.waits_for(ready, run.named("busbar-control-plane@server-3")), "all have it in a certificate"
    server = run.request("busbar-preflight-hosts")["requirements"]["server"]
    assert (server["interface"], server["networks"]["hosts.virtual_ip.address"]) == ("eth0", "192.0.2.100")


def test_of_an_address_that_load_balancers_share_the_servers_have_no_part() -> None:
    run = performed(site(load_balancers=2))
    for step, is_shared in (("busbar-load-balancer@lb-2", True), ("busbar-control-plane@server-2", False)):
        assert bool(run.values(step).get("VIRTUAL_IP")) is is_shared
        assert bool(run.files(step).get("keepalived_conf")) is is_shared
