"""Settings of K3s with which a cluster of this size, or busbar's own steps, would fail."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import ConfigError, load
from tests.support.clusters import H100_POOL, site

SHA = {"sha256": {"amd64": "ab" * 32}}


def findings(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data)
    return [*map(str, caught.value.findings)]


def test_the_default_pod_network_is_large_enough_for_a_thousand_nodes() -> None:
    assert len(load(site(workers={"h100": 1000})).hosts.workers) == 1000


@pytest.mark.parametrize(("workers", "fits"), [(253, True), (254, False)])
def test_every_server_and_worker_needs_a_24_of_the_pod_network(workers: int, fits: bool) -> None:
    data = site(workers={"h100": workers}, k3s={**SHA, "cluster_cidr": "10.42.0.0/16"})
    if fits:
        load(data)
    else:
        [found] = findings(data)
        assert found.startswith(
            "k3s.cluster_cidr: '10.42.0.0/16' has room for 256 nodes (a /24 per node), got 257"
        )
        assert "Fix: use a /15 or larger" in found


def test_the_pod_network_that_is_asked_for_is_the_smallest_with_room_for_all() -> None:
    [found] = findings(site(workers={"h100": 509}, k3s={**SHA, "cluster_cidr": "10.42.0.0/16"}))
    assert "got 512. Fix: use a /15 or larger" in found


@pytest.mark.parametrize("argument", ["node-cidr-mask-size=25", "node-cidr-mask-size-ipv4=25"])
def test_a_smaller_network_per_node_leaves_room_for_more_nodes(argument: str) -> None:
    arguments = {"kube-controller-manager-arg": [argument]}
    k3s = {**SHA, "cluster_cidr": "10.42.0.0/16", "server_args": arguments}
    load(site(workers={"h100": 509}, k3s=k3s))
    [found] = findings(site(workers={"h100": 510}, k3s=k3s))
    assert "has room for 512 nodes (a /25 per node), got 513" in found


def test_a_pod_network_in_ipv6_has_a_64_per_node() -> None:
    k3s = {**SHA, "cluster_cidr": "fd00:42::/60", "service_cidr": "fd00:43::/112"}
    data = site(workers={"h100": 20}, k3s=k3s)
    for number, node in enumerate([*data["hosts"]["servers"], *data["hosts"]["workers"]], 1):
        node["address"] = f"2001:db8::{number}"
    [found] = findings(data)
    assert "has room for 16 nodes (a /64 per node), got 23" in found


def test_a_pod_network_smaller_than_the_network_of_one_node_has_no_room() -> None:
    [found] = findings(site(k3s={**SHA, "cluster_cidr": "10.42.0.0/25"}))
    assert "has room for 0 nodes" in found


def test_without_allocation_of_node_networks_the_size_is_not_checked() -> None:
    arguments = {"kube-controller-manager-arg": ["--allocate-node-cidrs=false"]}
    load(site(k3s={**SHA, "cluster_cidr": "10.42.0.0/25", "server_args": arguments}))


@pytest.mark.parametrize("setting", ["server_args", "agent_args"])
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("data-dir", "/data", "/var/lib/rancher/k3s"),
        ("https-listen-port", 7443, "port 6443"),
        ("bind-address", "10.0.0.1", "127.0.0.1:6443"),
        ("write-kubeconfig", "/root/config", "/etc/rancher/k3s/k3s.yaml"),
        ("write-kubeconfig+", "/root/config", "/etc/rancher/k3s/k3s.yaml"),
        ("datastore-endpoint", "postgres://x", "embedded etcd"),
        ("datastore-cafile", "/ca", "embedded etcd"),
        ("config", "/etc/k3s.yaml", "config.yaml.d/"),
        ("with-node-id", True, "name of the node"),
        ("disable-agent", True, "Ready"),
        ("disable-apiserver", True, "whole control plane"),
        ("cluster-reset", True, "by hand"),
        ("log", "/var/log/k3s.log", "journal"),
        ("docker", True, "containerd"),
        ("supervisor-port", 7443, "port 6443"),
        ("apiserver-port", 7443, "port 6443"),
        ("flannel-external-ip", True, "external network"),
        ("vpn-auth", "name=tailscale,joinKey=x", "it is a key"),
        ("rootless", True, "root"),
    ],
)
def test_a_key_that_breaks_the_host_scripts_is_refused_with_the_reason(
    setting: str, key: str, value: Any, reason: str
) -> None:
    found = [
        f for f in findings(site(k3s={**SHA, setting: {key: value}})) if f.startswith(f"k3s.{setting}.{key}")
    ]
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize("setting", ["server_args", "agent_args"])
@pytest.mark.parametrize("argument", ["root-dir=/data", "hostname-override=a", "--register-node=false"])
def test_an_argument_of_the_kubelet_that_breaks_the_host_scripts_is_refused(
    setting: str, argument: str
) -> None:
    [found] = findings(site(k3s={**SHA, setting: {"kubelet-arg": [argument, "v=2"]}}))
    assert found.startswith(f"k3s.{setting}.kubelet-arg: {argument!r}")


@pytest.mark.parametrize("argument", ["secure-port=7443", "--secure-port=7443"])
def test_another_port_of_the_api_is_refused(argument: str) -> None:
    [found] = findings(site(k3s={**SHA, "server_args": {"kube-apiserver-arg": [argument]}}))
    assert found.startswith(f"k3s.server_args.kube-apiserver-arg: {argument!r}: load balancer")


def test_other_arguments_are_passed_on_and_k3s_judges_them() -> None:
    arguments = {"kubelet-arg": ["max-pods=200", "v=2"], "etcd-expose-metrics": True, "quantum-tunnel": 1}
    assert load(site(k3s={**SHA, "server_args": arguments})).k3s.server_args == arguments


@pytest.mark.parametrize(
    ("label", "accepted"),
    [
        ("node.example.com/fabric", True),
        ("node.kubernetes.io/pool", True),
        ("gpu.node.kubernetes.io/pool", True),
        ("topology.kubernetes.io/zone", True),
        ("kubernetes.io/os", True),
        ("kubernetes.io/role", False),
        ("feature.k8s.io/x", False),
        ("app.kubernetes.io/name", False),
        ("node-role.kubernetes.io/gpu", False),
        ("node-restriction.kubernetes.io/x", False),
        ("mykubernetes.io/x", True),
    ],
)
def test_labels_are_those_that_the_kubelet_accepts(label: str, accepted: bool) -> None:
    data = site(pools={"h100": {**H100_POOL, "labels": {label: "a"}}})
    if accepted:
        load(data)
    else:
        [found] = findings(data)
        assert found.startswith(f"pools.h100.labels.{label}: {label!r} is a label with which the kubelet ")


def test_numbers_of_rotations_are_no_secrets_although_they_are_named_after_tokens() -> None:
    numbers = {"certificates": 1, "server_token": 3, "agent_token": 4}
    assert load(site(k3s={**SHA, "rotate": numbers})).k3s.rotate.model_dump() == numbers


def test_nothing_is_rotated_unless_it_is_asked_for() -> None:
    assert set(load(site()).k3s.rotate.model_dump().values()) == {0}


def test_a_number_of_a_rotation_is_not_negative() -> None:
    [found] = findings(site(k3s={**SHA, "rotate": {"certificates": -1}}))
    assert found.startswith("k3s.rotate.certificates: ")
