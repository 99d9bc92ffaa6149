"""A text that ends in a shell line, a URL, YAML or a Kubernetes name has the form of its field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from busbar.config import ConfigError, load, warnings
from tests.support.clusters import H100_POOL, host_key, site

INJECTION = "';drop"


def with_value(path: str, value: Any) -> dict[str, Any]:
    """A valid site with one value set, the path written as in a message."""
    data = copy.deepcopy(site(load_balancers=2))
    *steps, last = path.replace("[", ".[").split(".")
    node: Any = data
    for step in steps:
        node = node[int(step[1:-1])] if step.startswith("[") else node.setdefault(step, {})
    if last.startswith("["):
        node[int(last[1:-1])] = value
    else:
        node[last] = value
    return data


def findings(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data)
    return [*map(str, caught.value.findings)]


STRICT_TEXTS = [
    "name",
    "ssh.user",
    "hosts.workers[0].address",
    "hosts.workers[0].user",
    "hosts.virtual_ip.interface",
    "k3s.version",
    "k3s.base_url",
    "k3s.snapshots.schedule",
    "gpu_operator.version",
    "gpu_operator.repository",
    "gpu_operator.chart",
    "network_operator.version",
    "network_operator.chart",
    "network_operator.resource",
    "network_operator.image_repository",
    "mpi_operator.image",
    "validation.image",
    "validation.shm_size",
    "validation.memory",
    "validation.runtime_class",
    "validation.profile",
]


@pytest.mark.parametrize("path", STRICT_TEXTS)
@pytest.mark.parametrize("value", [INJECTION, "$(id)", "a b", "a\nb", "-1x "], ids=repr)
def test_a_text_that_is_not_in_the_form_of_its_field_is_refused(path: str, value: Any) -> None:
    assert any(finding.startswith(f"{path}: ") for finding in findings(with_value(path, value)))


@pytest.mark.parametrize("path", ["gpu_operator.version", "network_operator.version"])
@pytest.mark.parametrize("value", [-1, 26.7, "26.7", "latest", "26.7.0 || 1", "v26.7.0;x", ""])
def test_a_chart_version_is_a_full_semantic_version(path: str, value: Any) -> None:
    found = [finding for finding in findings(with_value(path, value)) if finding.startswith(f"{path}: ")]
    assert "is not a chart version: MAJOR.MINOR.PATCH such as 26.7.0" in found[0]


@pytest.mark.parametrize("value", ["26.7.0", "26.7.0-rc.2"])
def test_a_chart_version_may_be_a_pre_release(value: str) -> None:
    assert load(with_value("network_operator.version", value)).network_operator.version == value


@pytest.mark.parametrize(
    "image",
    [
        "nccl",
        "mpioperator/mpi-operator:0.8.0",
        "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957",
        "registry.example.com:5000/a/b__c@sha256:" + "0" * 64,
        "localhost:5000/nccl:1",
    ],
)
def test_the_usual_forms_of_an_image_are_accepted(image: str) -> None:
    assert load(with_value("validation.image", image)).validation.image == image


@pytest.mark.parametrize(
    "image", ["nccl/UPPER", "nccl:", "nccl@sha256:12", "https://ghcr.io/nccl", "a//b", "nccl:tag:tag"]
)
def test_what_a_container_runtime_refuses_is_not_an_image(image: str) -> None:
    assert "is not a container image" in findings(with_value("validation.image", image))[0]


@pytest.mark.parametrize("user", ["root", "ubuntu", "svc_gpu-1", "CORP\\admin", "me@example.com"])
def test_the_usual_forms_of_a_login_are_accepted(user: str) -> None:
    assert load(with_value("ssh.user", user)).ssh.user == user


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("ssh.key_file", "id\0rsa", "contains a control character"),
        ("k3s.checksums_file", "sums\n.txt", "contains a control character"),
        ("validation.hcas", ["mlx5_0,mlx5_1"], "is not the name of an HCA"),
        ("validation.hcas", ["^mlx5_0"], "is not the name of an HCA"),
        ("validation.env", {"NCCL DEBUG": "INFO"}, "is not the name of an environment variable"),
        ("validation.env", {"A=B": "x"}, "is not the name of an environment variable"),
        ("validation.env", {"A": "x\0y"}, "contains a control character"),
        ("k3s.disable", ["traefik,servicelb"], "is not a DNS label"),
        ("gpu_operator.chart", "-f values.yaml", "is not a chart"),
        ("gpu_operator.chart", "oci://me:pw@registry/chart", "is not a chart"),
        ("network_operator.resource", "hostdev", "is not an extended resource"),
        ("network_operator.resource", "kubernetes.io/hostdev", "is not an extended resource"),
    ],
)
def test_a_text_that_breaks_what_it_is_put_into_is_refused(path: str, value: Any, message: str) -> None:
    assert any(
        finding.startswith(path) and message in finding for finding in findings(with_value(path, value))
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bucket", "Etcd_Snapshots", "is not the name of a bucket"),
        ("endpoint", "https://s3.example.com", "is not HOST or HOST:PORT (without https://)"),
        ("region", "eu central", "is not a region"),
        ("folder", "/etcd\n", "is not a folder of a bucket"),
    ],
)
def test_a_bucket_is_described_in_the_form_that_k3s_takes(field: str, value: str, message: str) -> None:
    data = with_value("k3s.snapshots", {"s3": {"bucket": "etcd", field: value}})
    found = [finding for finding in findings(data) if finding.startswith(f"k3s.snapshots.s3.{field}: ")]
    assert message in found[0]


def test_a_resource_name_that_the_device_plugin_refuses_is_refused() -> None:
    [found] = findings(with_value("network_operator.resource", "nvidia.com/host-dev"))
    assert found.startswith("network_operator.resource: the SR-IOV device plugin refuses the name 'host-dev'")


def test_a_resource_name_of_another_tool_is_not_checked_for_the_device_plugin() -> None:
    data = with_value("network_operator.resource", "nvidia.com/host-dev")
    data["network_operator"]["enabled"] = False
    assert load(data).network_operator.resource == "nvidia.com/host-dev"


def test_a_number_that_is_not_ascii_is_a_finding_and_not_a_crash() -> None:
    data = site(validation={"slots_per_worker": 1})
    data["pools"]["h100"]["gpus"] = "²"
    assert any("'²' is not a whole number" in finding for finding in findings(data))


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def pool_with(**changes: Any) -> dict[str, Any]:
    return site(pools={"h100": {**H100_POOL, **changes}})


def test_a_taint_may_not_be_listed_twice() -> None:
    [found] = findings(pool_with(taints=[TAINT, {**TAINT, "value": "other"}]))
    assert found.startswith(
        "pools.h100.taints: key 'nvidia.com/gpu' with effect 'NoSchedule' is listed twice"
    )


def test_one_key_with_two_effects_is_two_taints() -> None:
    assert len(load(pool_with(taints=[TAINT, {**TAINT, "effect": "NoExecute"}])).pools["h100"].taints) == 2


def test_one_host_key_on_two_hosts_is_a_warning() -> None:
    data = site()
    data["hosts"]["workers"][1]["host_key"] = data["hosts"]["workers"][0]["host_key"]
    [found] = [note for note in map(str, warnings(load(data))) if "host_key" in note]
    assert found.startswith("hosts.workers[0].host_key: the same key as hosts.workers[1]")
    assert "ssh-keygen -A" in found


def test_a_bastion_that_shares_its_host_key_is_a_warning() -> None:
    data = site()
    data["ssh"]["bastion"] = {"address": "192.0.2.200", "host_key": host_key("gpu-1")}
    assert any("the same key as ssh.bastion" in note for note in map(str, warnings(load(data))))
