"""The files that hosts get: K3s's config.yaml, registries.yaml, kubeconfig, haproxy.cfg, keepalived.conf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from busbar.config import Cluster, VirtualIp, load
from busbar.hosts import haproxy, k3s
from busbar.hosts.inventory import Inventory
from busbar.hosts.scripts import with_server

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHCZiZsoI4rLdzIgOAyl4xhV9+49bbTnNxAQJ+2pSurZ"


def host(name: str, address: str) -> dict[str, str]:
    return {"name": name, "address": address, "host_key": KEY}


def cluster(load_balancers: int = 1, **k3s_settings: Any) -> Cluster:
    hosts: dict[str, Any] = {
        "load_balancers": [host(f"lb-{n}", f"10.0.0.{n}") for n in range(1, load_balancers + 1)],
        "servers": [host(f"server-{n}", f"10.0.0.1{n}") for n in (1, 2, 3)],
        "workers": [host("worker-1", "10.0.0.21")],
    }
    if load_balancers == 2:
        hosts["virtual_ip"] = {"address": "10.0.0.8", "interface": "eth0", "router_id": 51}
    return load(
        {
            "name": "site",
            "ssh": {"agent": True},
            "hosts": hosts,
            "pools": {
                "h100": {
                    "gpus": 8,
                    "rails": 8,
                    "rate_gbps": 400,
                    "labels": {"zone": "a", "busbar.io/pool": "h100"},
                    "taints": [{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}],
                }
            },
            "k3s": {"sha256": {"amd64": "a" * 64}, **k3s_settings},
        },
        secret_keys=["s3AccessKey", "s3SecretKey"],
    )


def server_config(**settings: Any) -> dict[str, Any]:
    made = cluster(**settings)
    inventory = Inventory.of(made)
    text = k3s.server_config(
        made.k3s,
        node_name="server-1",
        tls_sans=k3s.tls_sans(
            made.k3s, inventory.servers[0], inventory.api_address, inventory.load_balancers
        ),
        token="servertoken",
        agent_token="agenttoken",
        s3_keys=("access", "secret") if made.k3s.snapshots.s3 else None,
    )
    return dict(yaml.safe_load(text))


def test_a_server_knows_its_tokens_and_every_address_it_is_reached_at_but_no_other_server() -> None:
    config = server_config()
    assert (config["token"], config["agent-token"]) == ("servertoken", "agenttoken")
    assert config["tls-san"] == ["10.0.0.1", "10.0.0.11", "server-1"]


def test_a_server_encrypts_secrets_and_opens_only_what_the_load_balancer_asks() -> None:
    config = server_config()
    assert config["secrets-encryption"] is True
    assert config["write-kubeconfig-mode"] == "0600"
    assert config["kube-apiserver-arg"] == ["authentication-config=/etc/rancher/k3s/auth-config.yaml"]


def test_how_a_server_comes_into_the_cluster_is_left_to_its_script() -> None:
    assert not {"cluster-init", "server", "node-ip"} & set(server_config())


def test_further_arguments_add_up_and_do_not_replace_ours() -> None:
    config = server_config(server_args={"kube-apiserver-arg": ["v=2"], "etcd-expose-metrics": True})
    assert config["kube-apiserver-arg"] == ["authentication-config=/etc/rancher/k3s/auth-config.yaml", "v=2"]
    assert config["etcd-expose-metrics"] is True


def test_snapshots_go_to_the_bucket_with_the_keys() -> None:
    config = server_config(snapshots={"schedule": "0 * * * *", "retention": 3, "s3": {"bucket": "etcd"}})
    s3 = {key: value for key, value in config.items() if key.startswith("etcd-s")}
    assert s3 == {
        "etcd-snapshot-schedule-cron": "0 * * * *",
        "etcd-snapshot-retention": 3,
        "etcd-s3": True,
        "etcd-s3-endpoint": "s3.amazonaws.com",
        "etcd-s3-bucket": "etcd",
        "etcd-s3-region": "us-east-1",
        "etcd-s3-access-key": "access",
        "etcd-s3-secret-key": "secret",
    }


def worker_config(labels: Sequence[tuple[str, str]] = (), **settings: Any) -> dict[str, Any]:
    made = cluster(**settings)
    login = {"node_name": "w", "server": "https://a", "token": "t"}
    return dict(yaml.safe_load(k3s.agent_config(made.k3s, made.pools["h100"], labels=labels, **login)))


def test_a_worker_joins_by_the_api_address_with_labels_and_taints() -> None:
    assert worker_config() == {
        "node-name": "w",
        "server": "https://a",
        "token": "t",
        "node-label": ["busbar.io/pool=h100", "zone=a"],
        "node-taint": ["nvidia.com/gpu=yes:NoSchedule"],
        "kubelet-arg": ["container-log-max-size=500Mi"],
    }


def test_a_worker_s_place_in_the_fabric_is_a_label_beside_those_of_its_pool() -> None:
    config = worker_config([("fabric.topograph.run/tier-0", "su03")])
    assert config["node-label"] == [
        "busbar.io/pool=h100", "fabric.topograph.run/tier-0=su03", "zone=a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"kubelet-arg": ["max-pods=200"]}, ["container-log-max-size=500Mi", "max-pods=200"]),
        ({"kubelet-arg+": "container-log-max-size=1Gi"}, ["container-log-max-size=1Gi"]),
        ({"kubelet-arg": ["--container-log-max-size=1Gi", "v=2"]}, ["--container-log-max-size=1Gi", "v=2"]),
        ({"kubelet-arg": "config=/etc/kubelet.yaml"}, ["config=/etc/kubelet.yaml"]),
    ],
)
def test_logs_on_workers_may_grow_unless_the_site_sets_their_size(
    arguments: dict[str, Any], expected: list[str]
) -> None:
    found = worker_config(agent_args=arguments)
    assert found.get("kubelet-arg", found.get("kubelet-arg+")) in (expected, expected[0])


def test_the_agents_token_pins_the_ca() -> None:
    assert k3s.secure_token("node", "pw", ca_sha256="ab" * 32) == f"K10{'ab' * 32}::node:pw"


def test_logins_for_registries_are_laid_into_registries_yaml() -> None:
    mirrors, tls = {"docker.io": {"endpoint": ["https://mirror"]}}, {"tls": {"ca_file": "/etc/mirror.pem"}}
    made = cluster(registries={"mirrors": mirrors, "configs": {"mirror": tls}})
    auth = {"auth": {"username": "u", "password": "p"}}
    text = k3s.registries(made.k3s, {"mirror": auth["auth"], "other": auth["auth"]})
    assert yaml.safe_load(text) == {"mirrors": mirrors, "configs": {"mirror": {**tls, **auth}, "other": auth}}
    assert made.k3s.registries["configs"] == {"mirror": tls}, "the configuration has no secrets"


def test_without_registries_there_is_no_file() -> None:
    assert k3s.registries(cluster().k3s) == ""


KUBECONFIG = """
clusters: [{name: default, cluster: {certificate-authority-data: Q0E=, server: "https://127.0.0.1:6443"}}]
users: [{name: default, user: {client-certificate-data: Yw==, client-key-data: aw==}}]
contexts: [{name: default, context: {cluster: default, user: default}}]
current-context: default
"""


def test_the_kubeconfig_points_at_the_load_balancer() -> None:
    made = yaml.safe_load(with_server(KUBECONFIG, server="https://10.0.0.1:6443", name="site"))
    assert "proxy-url" not in made["clusters"][0]["cluster"]
    assert made["clusters"] == [
        {"name": "site", "cluster": {"certificate-authority-data": "Q0E=", "server": "https://10.0.0.1:6443"}}
    ]
    assert made["users"] == [
        {"name": "site", "user": {"client-certificate-data": "Yw==", "client-key-data": "aw=="}}
    ]
    assert made["current-context"] == "site"


@pytest.mark.parametrize("text", ["", "no kubeconfig", "clusters: []"])
def test_a_text_that_is_not_a_kubeconfig_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a kubeconfig"):
        with_server(text, server="https://10.0.0.1:6443", name="site")


def haproxy_config() -> str:
    inventory = Inventory.of(cluster())
    return haproxy.haproxy_config(inventory.load_balancers, inventory.servers, None)


def settings(config: str) -> list[str]:
    """The lines that count: without indentation and comments."""
    lines = [line.strip() for line in config.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_whole_configuration_of_haproxy() -> None:
    default = (
        "default-server inter 5s fastinter 1s downinter 2s fall 3 rise 2 check check-ssl verify required"
    )
    assert settings(haproxy_config()) == [
        *(
            "global",
            "log /dev/log local0",
            "user haproxy",
            "group haproxy",
            "maxconn 8000",
            "hard-stop-after 30m",
        ),
        *("defaults", "mode tcp", "log global", "option tcplog", "option dontlognull", "timeout connect 5s"),
        *("option redispatch 1", "timeout check 5s"),
        *("timeout client 1h", "timeout server 1h", "timeout tunnel 1h"),
        *("frontend kubernetes_api", "bind *:6443", "default_backend servers"),
        *(
            "backend servers",
            "balance roundrobin",
            "option httpchk GET /readyz",
            "http-check expect status 200",
        ),
        "default-server on-marked-down shutdown-sessions",
        f"{default} ca-file /etc/haproxy/busbar-ca.pem",
        *(f"server server-{n} 10.0.0.1{n}:6443" for n in (1, 2, 3)),
        *("listen stats", "mode http", "bind 127.0.0.1:8404", "stats enable", "stats uri /"),
    ]


def test_the_whole_configuration_of_keepalived() -> None:
    made = cluster(load_balancers=2)
    both = Inventory.of(made).load_balancers
    shared = made.hosts.virtual_ip
    assert shared is not None
    config = haproxy.keepalived_config(both, shared, both[0])
    assert config.startswith("# Written by busbar: "), "how busbar knows its own file"
    assert settings(config) == [
        *("global_defs {", "script_user root", "enable_script_security", "}"),
        *("vrrp_script haproxy {", 'script "/usr/bin/systemctl is-active --quiet haproxy.service"'),
        *("interval 2", "fall 2", "rise 2", "}"),
        *("vrrp_instance kubernetes_api {", "state BACKUP", f"interface {shared.interface}"),
        *(f"virtual_router_id {shared.router_id}", "priority 150", "advert_int 1"),
        *("unicast_src_ip 10.0.0.1", "unicast_peer {", "10.0.0.2", "}"),
        *("virtual_ipaddress {", "10.0.0.8", "}", "track_script {", "haproxy", "}", "}"),
    ]
    assert "priority 100" in settings(haproxy.keepalived_config(both, shared, both[1]))


def test_servers_share_an_address_that_only_one_with_a_ready_api_has() -> None:
    made = cluster()
    shared = VirtualIp(address="10.0.0.8", interface="eth0")
    servers = Inventory.of(made).servers
    config = haproxy.keepalived_config(servers, shared, servers[1])
    assert config.startswith("# Written by busbar: one address for all servers.")
    assert settings(config) == [
        *("global_defs {", "script_user root", "enable_script_security", "}", "vrrp_script apiserver {"),
        'script "/usr/bin/curl -sf -o /dev/null --noproxy 127.0.0.1 --max-time 3 --cacert '
        '/var/lib/rancher/k3s/server/tls/server-ca.crt https://127.0.0.1:6443/readyz"',
        *("interval 3", "timeout 4", "fall 3", "rise 2", "}"),
        *("vrrp_instance kubernetes_api {", "state BACKUP", "nopreempt", "interface eth0"),
        *("virtual_router_id 51", "priority 149", "advert_int 1"),
        *("unicast_src_ip 10.0.0.12", "unicast_peer {", "10.0.0.11", "10.0.0.13", "}"),
        *("virtual_ipaddress {", "10.0.0.8", "}", "track_script {", "apiserver", "}", "}"),
    ]


def test_one_load_balancer_has_no_keepalived() -> None:
    [host] = Inventory.of(cluster()).load_balancers
    assert haproxy.keepalived_config([host], None, host) == ""


def test_a_kubeconfig_names_the_proxy_to_the_api() -> None:
    proxy = "http://127.0.0.1:3128"
    made = yaml.safe_load(
        with_server(KUBECONFIG, server="https://10.0.0.1:6443", name="site", proxy_url=proxy)
    )
    assert made["clusters"][0]["cluster"]["proxy-url"] == proxy
