"""What is asked of which host, and when a host that passed is asked again."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.config import load
from busbar.preflight.spec import Spec, spec_of
from tests.support.clusters import host, site
from tests.unit.preflight.samples import HOST_KEY


def asked(pool: dict[str, Any] | None = None, **cluster: Any) -> Spec:
    def host(name: str, address: str) -> dict[str, str]:
        return {"name": name, "address": address, "host_key": HOST_KEY}

    content = {
        "name": "site",
        "ssh": {"agent": True},
        "hosts": {
            "load_balancers": [host("lb-1", "10.0.0.1")],
            "servers": [host("server-1", "10.0.0.11")],
            "workers": [host("worker-1", "10.0.0.21")],
        },
        "pools": {"h100": {"gpus": 8, "rails": 8, "rate_gbps": 400, **(pool or {})}},
        "k3s": {"sha256": {"amd64": "a" * 64}, **cluster.pop("k3s", {})},
        **cluster,
    }
    return spec_of(load(content))


def changed(before: Spec, after: Spec) -> list[str]:
    """The hosts that must be asked again."""
    return [
        old.name
        for old, new in zip(before.hosts, after.hosts, strict=True)
        if before.fingerprint(old) != after.fingerprint(new)
    ]


def test_a_worker_must_have_what_its_pool_says() -> None:
    spec = asked({"gpu_model": "H100", "min_disk_gb": 200})
    required = spec.requirements_of(spec.hosts[2])
    assert (required.gpus, required.rails, required.rate_gbps, required.gpu_model, required.min_disk_gb) == (
        8,
        8,
        400,
        "H100",
        200,
    )


def test_servers_need_room_for_etcd_and_images_and_load_balancers_for_a_package() -> None:
    spec = asked()
    assert [spec.requirements_of(each).min_disk_gb for each in spec.hosts] == [1, 10, 50]


def test_gpudirect_is_asked_for_unless_the_stack_says_otherwise() -> None:
    for validation, transport in (({}, "gpudirect-rdma"), ({"transport": "socket"}, "socket")):
        spec = asked(validation=validation)
        assert spec.requirements_of(spec.hosts[2]).transport == transport


def test_cgroup_v2_is_asked_for_from_kubernetes_1_35_on() -> None:
    for version, needed in (("v1.34.9+k3s1", False), ("v1.35.6+k3s1", True)):
        spec = asked(k3s={"version": version})
        assert spec.requirements_of(spec.hosts[1]).cgroup_v2 is needed


def test_the_same_stack_asks_nobody_again() -> None:
    assert changed(asked(), asked()) == []


def test_a_new_release_of_k3s_looks_at_its_hosts_again_before_they_change() -> None:
    assert changed(asked(), asked(k3s={"version": "v1.35.7+k3s1"})) == ["server-1", "worker-1"]


def test_a_label_looks_at_the_workers_again() -> None:
    assert changed(asked(), asked({"labels": {"zone": "b"}})) == ["worker-1"]


def test_a_place_in_the_fabric_looks_at_its_worker_again() -> None:
    def placed(*groups: str) -> Spec:
        content = site(workers={"h100": len(groups)})
        for worker, group in zip(content["hosts"]["workers"], groups, strict=True):
            worker["topology"] = {"rail_group": group}
        return spec_of(load(content))

    assert changed(placed("a", "b"), placed("a", "c")) == ["gpu-2"]


def test_another_measurement_looks_at_nobody_again() -> None:
    assert changed(asked(), asked(validation={"iterations": 50})) == []


def test_rails_are_offered_by_preflight_unless_the_site_names_pci_addresses_itself() -> None:
    def offered(**network_operator: Any) -> tuple[bool, tuple[str, ...]]:
        spec = asked(network_operator=network_operator)
        required = spec.requirements_of(spec.hosts[2])
        return required.offered, required.netdev_selectors

    assert offered() == (True, ())
    for selector in ("pfNames", "linkTypes"):
        assert offered(selectors={selector: ["x"]}) == (True, (selector,))
    assert offered(selectors={"pciAddresses": ["0000:1b:00.0"]}) == (False, ())
    assert offered(enabled=False) == (False, ())


@pytest.mark.parametrize(
    ("pool", "validation", "asked_for"),
    [
        ({"link_layer": "ethernet"}, {}, ("warn", 0, 0)),
        ({"link_layer": "ethernet"}, {"env": {"NCCL_IB_TC": "106", "NCCL_IB_SL": "3"}}, ("warn", 106, 3)),
        ({"link_layer": "ethernet"}, {"env": {"NCCL_IB_TC": "0x6a"}}, ("warn", 106, 0)),
        ({"link_layer": "ethernet"}, {"env": {"NCCL_IB_TC": "-1"}}, ("warn", 0, 0)),
        ({"link_layer": "ethernet"}, {"env": {"NCCL_IB_TC": "high"}}, ("warn", 0, 0)),
        ({"link_layer": "ethernet", "flow_control": "require"}, {}, ("require", 0, 0)),
        ({"link_layer": "ethernet"}, {"transport": "socket"}, ("ignore", 0, 0)),
        ({}, {"env": {"NCCL_IB_TC": "106"}}, ("ignore", 0, 0)),
    ],
)
def test_flow_control_is_judged_for_the_traffic_class_of_nccl_where_the_rails_are_roce(
    pool: dict[str, Any], validation: dict[str, Any], asked_for: tuple[str, int, int]
) -> None:
    spec = asked(pool, validation=validation)
    required = spec.requirements_of(spec.hosts[2])
    assert (required.flow_control, required.traffic_class, required.service_level) == asked_for


@pytest.mark.parametrize(
    ("pool", "env", "indexes"),
    [
        ({}, {}, (0, None)),
        ({}, {"NCCL_IB_PKEY": "1", "NCCL_IB_GID_INDEX": "3"}, (1, None)),
        ({"link_layer": "ethernet"}, {"NCCL_IB_GID_INDEX": "3"}, (0, 3)),
        ({"link_layer": "ethernet"}, {"NCCL_IB_GID_INDEX": "-1"}, (0, None)),
    ],
)
def test_the_entries_that_nccl_takes_from_a_port_are_those_of_its_variables(
    pool: dict[str, Any], env: dict[str, str], indexes: tuple[int, int | None]
) -> None:
    spec = asked(pool, validation={"env": env})
    required = spec.requirements_of(spec.hosts[2])
    assert (required.pkey_index, required.gid_index) == indexes


def with_nfs(folder: str = "/srv/busbar", workers: int = 2) -> Spec:
    cluster = site(workers={"h100": workers}, nfs_server={"host": "lb-1", "folder": folder})
    return spec_of(load(cluster))


def test_the_nfs_server_is_checked_again_when_its_folder_or_its_clients_change() -> None:
    assert changed(with_nfs(), with_nfs("/srv/other")) == ["lb-1"]
    before, after = with_nfs(workers=2), with_nfs(workers=3)
    kept = Spec(login=after.login, hosts=before.hosts, requirements=after.requirements, nfs=after.nfs)
    assert changed(before, kept) == ["lb-1"]


def test_with_a_new_nfs_server_the_workers_are_checked_too() -> None:
    without = spec_of(load(site(workers={"h100": 2})))
    assert changed(without, with_nfs()) == ["lb-1", "gpu-1", "gpu-2"]


def test_a_host_that_is_only_the_nfs_server_needs_little() -> None:
    cluster = site(nfs_server={"folder": "/srv/busbar"})
    cluster["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.50")
    spec = spec_of(load(cluster))
    assert spec.hosts[-1].role == "nfs"
    assert spec.requirements_of(spec.hosts[-1]).min_disk_gb == 1


def test_a_node_is_asked_for_the_names_that_it_downloads_from() -> None:
    images = [{"url": "https://files.example/a.tar", "sha256": "ab" * 32, "roles": ["worker"]}]
    spec = asked(k3s={"base_url": "https://mirror.example:8443/k3s", "images": images})
    names = [spec.values(host).get("NAMES") for host in spec.hosts]
    assert names[:3] == [None, "mirror.example", "files.example mirror.example"]


@pytest.mark.parametrize(
    "k3s", [{"flannel_backend": "none"}, {"agent_args": {"flannel-iface": "eth1"}}, {"agent_args": {}}]
)
def test_flannels_address_is_judged_where_busbar_chooses_its_interface(k3s: dict[str, Any]) -> None:
    spec = asked(k3s=k3s)
    assert spec.requirements_of(spec.hosts[2]).flannel is (k3s == {"agent_args": {}})


@pytest.mark.parametrize(
    ("operator", "all_hcas"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"values": {"devicePlugin": {"env": [{"name": "MOFED_ENABLED", "value": "false"}]}}}, False),
        ({"values": {"devicePlugin": {"env": [{"name": "OTHER", "value": "x"}]}}}, True),
    ],
)
def test_pods_get_all_hcas_with_gpudirect_storage_unless_the_values_say_otherwise(
    operator: dict[str, Any], all_hcas: bool
) -> None:
    own_nfd = {"values": {"nfd": {"enabled": True}}}
    spec = asked(gpu_operator=operator, network_operator=own_nfd)
    assert spec.requirements_of(spec.hosts[2]).all_hcas_with_gds is all_hcas


@pytest.mark.parametrize(
    ("load_balancers", "sharing"), [(2, ["lb-1", "lb-2"]), (0, ["server-1", "server-2", "server-3"])]
)
def test_the_hosts_that_share_an_address_look_whether_another_machine_has_it(
    load_balancers: int, sharing: list[str]
) -> None:
    data = site(load_balancers=load_balancers)
    data["hosts"]["virtual_ip"] = {"address": "192.0.2.100", "interface": "eth0"}
    spec = spec_of(load(data))
    assert [each.name for each in spec.hosts if "SHARED_ADDRESS" in spec.values(each)] == sharing


def test_behind_a_proxy_every_host_must_reach_it_and_none_resolves_what_it_downloads() -> None:
    spec = asked(http_proxy={"url": "http://[fd00::9]:3128"})
    assert [spec.values(host).get("PROXY") for host in spec.hosts] == ["fd00::9/3128"] * 3
    assert not any("NAMES" in spec.values(host) for host in spec.hosts)
    assert changed(asked(), spec) == ["lb-1", "server-1", "worker-1"]
