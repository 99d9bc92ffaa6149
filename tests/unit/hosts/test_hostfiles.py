"""The files that hosts get: of K3s, registries, kubeconfig, haproxy, keepalived; and what they download."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import Cluster, K3s, VirtualIp, load
from busbar.hosts import haproxy, k3s
from busbar.hosts.inventory import Inventory
from busbar.hosts.scripts import with_server
from tests.support.clusters import site

TAINT = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}
POOL = {"labels": {"zone": "a", "busbar.io/pool": "h100"}, "taints": [TAINT]}


def cluster(load_balancers: int = 1, **k3s_settings: Any) -> Cluster:
    data = site(load_balancers=load_balancers, workers={"h100": 1})
    data["k3s"] |= k3s_settings
    data["pools"]["h100"] |= POOL
    return load(data, secret_keys=["s3AccessKey", "s3SecretKey"])


def server_config(**settings: Any) -> dict[str, Any]:
    made = cluster(**settings)
    inventory = Inventory.of(made)
    names = k3s.tls_sans(made.k3s, inventory.servers[0], inventory.api_address, inventory.load_balancers)
    keys = ("access", "secret") if made.k3s.snapshots.s3 else None
    tokens = {"token": "servertoken", "agent_token": "agenttoken"}
    text = k3s.server_config(made.k3s, node_name="server-1", tls_sans=names, **tokens, s3_keys=keys)
    return dict(yaml.safe_load(text))


def worker_config(labels: Sequence[tuple[str, str]] = (), **settings: Any) -> dict[str, Any]:
    made = cluster(**settings)
    login = {"node_name": "w", "server": "https://a", "token": "t"}
    return dict(yaml.safe_load(k3s.agent_config(made.k3s, made.pools["h100"], labels=labels, **login)))


def test_a_server_knows_its_tokens_and_addresses_encrypts_secrets_and_opens_only_what_is_asked() -> None:
    config = server_config()
    assert (config["token"], config["agent-token"]) == ("servertoken", "agenttoken")
    assert config["tls-san"] == ["192.0.2.1", "192.0.2.11", "server-1"]
    assert not {"cluster-init", "server", "node-ip"} & {*config}, "its script says how it joins"
    assert (config["secrets-encryption"], config["write-kubeconfig-mode"]) == (True, "0600")
    assert config["kube-apiserver-arg"] == ["authentication-config=/etc/rancher/k3s/auth-config.yaml"]


def test_further_arguments_add_up_and_do_not_replace_ours() -> None:
    config = server_config(server_args={"kube-apiserver-arg": ["v=2"], "etcd-expose-metrics": True})
    assert config["kube-apiserver-arg"] == ["authentication-config=/etc/rancher/k3s/auth-config.yaml", "v=2"]
    assert config["etcd-expose-metrics"] is True


def test_snapshots_go_to_the_bucket_with_the_keys() -> None:
    config = server_config(snapshots={"schedule": "0 * * * *", "retention": 3, "s3": {"bucket": "etcd"}})
    assert {key: value for key, value in config.items() if key.startswith("etcd-s")} == {
        "etcd-snapshot-schedule-cron": "0 * * * *",
        "etcd-snapshot-retention": 3,
        **{"etcd-s3": True, "etcd-s3-endpoint": "s3.amazonaws.com", "etcd-s3-region": "us-east-1"},
        **{"etcd-s3-bucket": "etcd", "etcd-s3-access-key": "access", "etcd-s3-secret-key": "secret"},
    }


def test_a_worker_joins_by_the_api_address_with_labels_of_its_pool_and_its_own_and_taints() -> None:
    place = "fabric.topograph.run/tier-0"
    assert worker_config([(place, "su03")]) == {
        **{"node-name": "w", "server": "https://a", "token": "t"},
        "node-label": ["busbar.io/pool=h100", f"{place}=su03", "zone=a"],
        "node-taint": ["nvidia.com/gpu=yes:NoSchedule"],
        "kubelet-arg": ["container-log-max-size=500Mi"],
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"kubelet-arg": ["max-pods=200"]}, ["container-log-max-size=500Mi", "max-pods=200"]),
        ({"kubelet-arg+": "container-log-max-size=1Gi"}, ["container-log-max-size=1Gi"]),
        ({"kubelet-arg": ["--container-log-max-size=1Gi", "v=2"]}, ["--container-log-max-size=1Gi", "v=2"]),
        ({"kubelet-arg": "config=/etc/kubelet.yaml"}, ["config=/etc/kubelet.yaml"]),
    ],
)
def test_logs_on_workers_grow_unless_the_site_says(arguments: dict[str, Any], expected: list[str]) -> None:
    found = worker_config(agent_args=arguments)
    assert found.get("kubelet-arg", found.get("kubelet-arg+")) in (expected, expected[0])


def test_logins_for_registries_are_laid_into_registries_yaml() -> None:
    mirrors, tls = {"docker.io": {"endpoint": ["https://mirror"]}}, {"tls": {"ca_file": "/etc/mirror.pem"}}
    made = cluster(registries={"mirrors": mirrors, "configs": {"mirror": tls}})
    auth = {"auth": {"username": "u", "password": "p"}}
    text = k3s.registries(made.k3s, {"mirror": auth["auth"], "other": auth["auth"]})
    assert yaml.safe_load(text) == {"mirrors": mirrors, "configs": {"mirror": {**tls, **auth}, "other": auth}}
    assert made.k3s.registries["configs"] == {"mirror": tls}, "the configuration has no secrets"
    assert k3s.registries(cluster().k3s) == "", "without registries there is no file"


KUBECONFIG = """
clusters: [{name: default, cluster: {certificate-authority-data: Q0E=, server: "https://127.0.0.1:6443"}}]
users: [{name: default, user: {client-certificate-data: Yw==, client-key-data: aw==}}]
contexts: [{name: default, context: {cluster: default, user: default}}]
current-context: default
"""


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:3128"])
def test_the_kubeconfig_points_at_the_load_balancer_through_the_proxy_to_it(proxy: str | None) -> None:
    server = "https://10.0.0.1:6443"
    made = yaml.safe_load(with_server(KUBECONFIG, server=server, name="site", proxy_url=proxy))
    api = {"certificate-authority-data": "Q0E=", "server": server, **({"proxy-url": proxy} if proxy else {})}
    user = {"client-certificate-data": "Yw==", "client-key-data": "aw=="}
    assert made["clusters"] == [{"name": "site", "cluster": api}]
    assert made["users"] == [{"name": "site", "user": user}]
    assert made["current-context"] == "site"


@pytest.mark.parametrize("text", ["", "no kubeconfig", "clusters: []"])
def test_a_text_that_is_not_a_kubeconfig_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a kubeconfig"):
        with_server(text, server="https://10.0.0.1:6443", name="site")


def test_haproxy_asks_every_server_whether_it_is_ready_and_trusts_only_the_ca_of_the_cluster() -> None:
    inventory = Inventory.of(cluster())
    lines = words(haproxy.haproxy_config(inventory.load_balancers, inventory.servers, None))
    assert [line for line in lines if line.startswith("server ")] == [
        f"server server-{number} 192.0.2.1{number}:6443" for number in (1, 2, 3)
    ]
    assert {"bind *:6443", "option httpchk GET /readyz", "http-check expect status 200"} <= {*lines}
    assert {"timeout tunnel 1h", "bind 127.0.0.1:8404"} <= {*lines}
    [checks] = [line for line in lines if line.startswith("default-server inter ")]
    assert checks.endswith(" check check-ssl verify required ca-file /etc/haproxy/busbar-ca.pem")


def words(config: str) -> list[str]:
    """The lines of a file of busbar, without the space before them."""
    assert config.startswith("# Written by busbar"), "how busbar knows its own file"
    return [" ".join(line.split()) for line in config.splitlines()]


def test_of_two_load_balancers_the_first_has_the_address_while_haproxy_runs_there() -> None:
    made = cluster(load_balancers=2)
    both = Inventory.of(made).load_balancers
    assert haproxy.keepalived_config(both[:1], None, both[0]) == "", "the only one has no keepalived"
    for host, peer, priority in ((both[0], both[1], 150), (both[1], both[0], 100)):
        lines = words(haproxy.keepalived_config(both, made.hosts.virtual_ip, host))
        own = {f"priority {priority}", f"unicast_src_ip {host.address}", peer.address, "192.0.2.100"}
        assert {*own, "interface eth0", 'script "/usr/bin/systemctl is-active --quiet haproxy.service"'} <= {
            *lines
        }


def test_servers_share_an_address_that_only_one_with_a_ready_api_has_and_keeps() -> None:
    servers = Inventory.of(cluster()).servers
    shared = VirtualIp(address="10.0.0.8", interface="eth0")
    lines = words(haproxy.keepalived_config(servers, shared, servers[1]))
    assert {"nopreempt", "unicast_src_ip 192.0.2.12", "192.0.2.11", "192.0.2.13", "10.0.0.8"} <= {*lines}
    [asks] = [line for line in lines if line.startswith("script ")]
    assert "--cacert /var/lib/rancher/k3s/server/tls/server-ca.crt" in asks
    assert asks.endswith(' https://127.0.0.1:6443/readyz"')


BINARY, ARM, ARCHIVE = "1" * 64, "2" * 64, "c" * 64
SUMS = f"""\
# published with the release
{BINARY}  k3s
{ARM} *k3s-arm64

{ARCHIVE.upper()}  ./dist/system.tar.zst
{"5" * 64}  cuda+12.tar
"""
MIRROR = "http://mirror/images"
IMAGES = [
    {"url": f"{MIRROR}/system.tar.zst", "roles": ["server", "worker"]},
    {"url": f"{MIRROR}/nccl.tar", "roles": ["worker"], "sha256": "4" * 64},
]
WITH_FILE = {"checksums_file": "sums.txt"}


def downloads(project: Path, role: str = "server", **settings: Any) -> dict[str, str]:
    """The downloads of a host script, with the checksums of SUMS unless the project has others."""
    if not (project / "sums.txt").exists():
        (project / "sums.txt").write_text(SUMS)
    return k3s.download_values(K3s.model_validate(settings), role, project)


def test_a_host_gets_the_binary_of_each_architecture_and_the_archives_of_its_role(tmp_path: Path) -> None:
    settings = {"base_url": "http://mirror/k3s", **WITH_FILE, "images": IMAGES}
    of_both = f"{ARCHIVE} {MIRROR}/system.tar.zst"
    assert downloads(tmp_path, "worker", **settings) == {
        "VERSION": "v1.35.6+k3s1",
        "URL_AMD64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s",
        "SHA256_AMD64": BINARY,
        "URL_ARM64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s-arm64",
        "SHA256_ARM64": ARM,
        "IMAGES": f"{of_both}\n{'4' * 64} {MIRROR}/nccl.tar",
    }
    assert downloads(tmp_path, "server", **settings)["IMAGES"] == of_both


def test_a_checksum_in_the_configuration_comes_before_the_file(tmp_path: Path) -> None:
    image = {**IMAGES[0], "sha256": "E" * 64}
    found = downloads(tmp_path, **WITH_FILE, sha256={"amd64": "F" * 64}, images=[image])
    assert found["SHA256_AMD64"] == "f" * 64
    assert found["IMAGES"] == f"{'e' * 64} {MIRROR}/system.tar.zst"


def test_an_archive_is_found_by_the_name_that_its_url_stands_for(tmp_path: Path) -> None:
    image = {"url": f"{MIRROR}/cuda%2B12.tar", "roles": ["server"]}
    assert downloads(tmp_path, **WITH_FILE, images=[image])["IMAGES"] == f"{'5' * 64} {MIRROR}/cuda%2B12.tar"


def test_an_architecture_without_a_checksum_is_left_out_of_the_values(tmp_path: Path) -> None:
    found = downloads(tmp_path, sha256={"arm64": ARM})
    assert sorted(found) == ["IMAGES", "SHA256_ARM64", "URL_ARM64", "VERSION"]
