"""What is asked of which host, and when a host that passed is asked again."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import load
from busbar.preflight.spec import Spec, spec_of
from tests.support.clusters import site
from tests.unit.preflight.samples import HOST_KEY

ROWS = yaml.safe_load(Path(__file__).with_name("requirements.yaml").read_text())


def asked(pool: dict[str, Any] | None = None, **cluster: Any) -> Spec:
    groups = {"load_balancers": "lb-1", "servers": "server-1", "workers": "worker-1"}
    hosts = {
        group: [{"name": name, "address": f"10.0.0.{number}", "host_key": HOST_KEY}]
        for number, (group, name) in enumerate(groups.items(), 1)
    }
    content = {
        **{"name": "site", "ssh": {"agent": True}, "hosts": hosts},
        "pools": {"h100": {"gpus": 8, "rails": 8, "rate_gbps": 400, **(pool or {})}},
        "k3s": {"sha256": {"amd64": "a" * 64}, **cluster.pop("k3s", {})},
    }
    return spec_of(load(content | cluster))


def changed(before: Spec, after: Spec) -> list[str]:
    """The hosts that must be asked again."""
    return [
        old.name
        for old, new in zip(before.hosts, after.hosts, strict=True)
        if before.fingerprint(old) != after.fingerprint(new)
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["case"])
def test_a_host_must_have_what_its_pool_and_the_stack_say(row: dict[str, Any]) -> None:
    spec = asked(row.get("pool"), **row.get("stack", {}))
    [host] = [each for each in spec.hosts if each.name == row.get("host", "worker-1")]
    required = spec.requirements_of(host).model_dump(mode="json")
    assert {key: required[key] for key in row["want"]} == row["want"]


def test_servers_need_room_for_etcd_and_images_and_load_balancers_for_a_package() -> None:
    spec = asked()
    assert [spec.requirements_of(each).min_disk_gb for each in spec.hosts] == [1, 10, 50]


@pytest.mark.parametrize(
    ("pool", "stack", "again"),
    [
        ({}, {}, []),
        ({}, {"k3s": {"version": "v1.35.7+k3s1"}}, ["server-1", "worker-1"]),
        ({"labels": {"zone": "b"}}, {}, ["worker-1"]),
        ({}, {"validation": {"iterations": 50}}, []),
    ],
    ids=["nothing new", "a release of K3s", "a label", "another measurement"],
)
def test_changed_hosts_are_asked_again(pool: dict[str, Any], stack: dict[str, Any], again: list[str]) -> None:
    assert changed(asked(), asked(pool, **stack)) == again


def test_a_place_in_the_fabric_looks_at_its_worker_again() -> None:
    def placed(*groups: str) -> Spec:
        content = site(workers={"h100": len(groups)})
        for worker, group in zip(content["hosts"]["workers"], groups, strict=True):
            worker["topology"] = {"rail_group": group}
        return spec_of(load(content))

    assert changed(placed("a", "b"), placed("a", "c")) == ["gpu-2"]


def test_the_nfs_server_or_its_workers_are_checked_again_for_another_folder_client_or_server() -> None:
    def with_nfs(folder: str = "/srv/busbar", workers: int = 2) -> Spec:
        return spec_of(load(site(workers={"h100": workers}, nfs_server={"host": "lb-1", "folder": folder})))

    assert changed(with_nfs(), with_nfs("/srv/other")) == ["lb-1"]
    before, after = with_nfs(workers=2), with_nfs(workers=3)
    kept = Spec(login=after.login, hosts=before.hosts, requirements=after.requirements, nfs=after.nfs)
    assert changed(before, kept) == ["lb-1"]
    without = spec_of(load(site(workers={"h100": 2})))
    assert changed(without, with_nfs()) == ["lb-1", "gpu-1", "gpu-2"]


def test_a_node_is_asked_for_the_names_that_it_downloads_from() -> None:
    images = [{"url": "https://files.example/a.tar", "sha256": "ab" * 32, "roles": ["worker"]}]
    spec = asked(k3s={"base_url": "https://mirror.example:8443/k3s", "images": images})
    names = [spec.values(host).get("NAMES") for host in spec.hosts]
    assert names[:3] == [None, "mirror.example", "files.example mirror.example"]


@pytest.mark.parametrize(
    ("load_balancers", "sharing"), [(2, ["lb-1", "lb-2"]), (0, ["server-1", "server-2", "server-3"])]
)
def test_hosts_with_a_shared_address_look_for_another_owner(load_balancers: int, sharing: list[str]) -> None:
    data = site(load_balancers=load_balancers)
    data["hosts"]["virtual_ip"] = {"address": "192.0.2.100", "interface": "eth0"}
    spec = spec_of(load(data))
    assert [each.name for each in spec.hosts if "SHARED_ADDRESS" in spec.values(each)] == sharing


def test_behind_a_proxy_every_host_must_reach_it_and_none_resolves_what_it_downloads() -> None:
    spec = asked(http_proxy={"url": "http://[fd00::9]:3128"})
    assert [spec.values(host).get("PROXY") for host in spec.hosts] == ["fd00::9/3128"] * 3
    assert not any("NAMES" in spec.values(host) for host in spec.hosts)
    assert changed(asked(), spec) == ["lb-1", "server-1", "worker-1"]
