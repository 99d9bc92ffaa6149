"""machines/crusoe under mocks: what it asks the provider for, and the list of hosts that it exports."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pulumi.runtime import mocks

from busbar.config import load
from busbar.config.stackfile import ROLES, hosts_schema, with_listed_hosts
from tests.program.harness import ROOT, Run, run_program, texts
from tests.support.clusters import site
from tests.support.host_lists import STACK, from_list

GPU = "h100-80gb-sxm-ib.8x"
MACHINES = {
    "name": "prod",
    "location": "us-east1-a",
    "ssh_key": "ssh-ed25519 AAAA admin",
    "allow": ["203.0.113.0/24"],
    "image": "ubuntu24.04:2026-08-01",
    "gpu_image": "ubuntu24.04-nvidia-sxm-docker:2026-08-01",
    "gpu_type": GPU,
    "gpu_count": 2,
    "pool": "h100",
}
INSTANCE = "crusoe:index/computeInstance:ComputeInstance"


def network(name: str, quantity: int, location: str = "us-east1-a", slices: str = GPU) -> dict[str, Any]:
    return {
        "id": name,
        "location": location,
        "capacities": [{"sliceType": slices, "quantity": quantity}, {"sliceType": "other", "quantity": 9999}],
    }


NETWORKS = [network("elsewhere", 999, "eu-iceland1-a"), network("small", 8), network("large", 600)]


def up(networks: list[dict[str, Any]] = NETWORKS, before: Run | None = None, **changes: Any) -> Run:
    """Run the program; `before`: the run that has made the state of the stack."""
    addresses = iter(range(1, 1000))

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ.endswith("RandomPassword"):
            return {"result": f"secret of {args.name}"}
        if args.typ == INSTANCE:
            number = next(addresses)
            public = {"type": "static", "address": f"198.51.100.{number % 250}"}
            private = {"address": f"10.0.{number // 250}.{number % 250 + 1}"}
            return {"networkInterfaces": [{"publicIpv4": public, "privateIpv4": private}]}
        return {}

    def call(args: mocks.MockCallArgs) -> dict[Any, Any]:
        if args.token == "pulumi:pulumi:readStackResourceOutputs":
            made = before.custom if before else []
            return {"outputs": {each.urn: {"type": each.type, "outputs": each.inputs} for each in made}}
        assert args.token == "crusoe:index/getIbNetworks:getIbNetworks"
        return {"ibNetworks": networks}

    return run_program(
        {},
        answer,
        program=ROOT / "machines" / "crusoe" / "__main__.py",
        project="crusoe-machines",
        config={"crusoe-machines:machines": json.dumps({**MACHINES, **changes})},
        call=call,
    )


@pytest.mark.parametrize("count", [2, 64])
def test_the_machines_are_exported_as_hosts_of_a_cluster(count: int) -> None:
    run = up(gpu_count=count)
    assert run.error is None
    listed = run.outputs["hosts"]
    jsonschema.validate(listed, hosts_schema())
    roles = [host["role"] for host in listed["hosts"]]
    assert roles == ["load_balancer", *["server"] * 3, *["worker"] * count]
    found = with_listed_hosts(from_list(site(), stack=STACK), ROLES, lambda _: listed).load(load)
    assert [each.name for each in found.workers] == [f"gpu-{number}" for number in range(1, count + 1)]


def test_gpu_machines_are_in_a_partition_with_room_and_no_machine_is_replaced_by_an_update() -> None:
    run = up()
    assert run.named("partition").inputs["ibNetworkId"] == "large"
    for each in run.of_type(INSTANCE):
        is_gpu = each.name.startswith("gpu-")
        assert (each.inputs.get("hostChannelAdapters") == [{"ibPartitionId": "partition-id"}]) == is_gpu
        assert each.request.protect and each.request.retainOnDelete == is_gpu


def test_only_named_networks_reach_ssh_and_the_api() -> None:
    run = up(allow=["203.0.113.0/24", "2001:db8::/32"])
    rules = [each.inputs for each in run.of_type("crusoe:index/vpcFirewallRule:VpcFirewallRule")]
    assert {rule["source"]: rule["destinationPorts"] for rule in rules} == {
        "203.0.113.0/24,2001:db8::/32": "22,6443",
        "10.0.0.0/16": "1-65535",
    }
    assert all(rule["network"] == "network-id" for rule in rules)


def test_too_little_capacity_ends_it_with_the_numbers() -> None:
    other = network("other", 400, slices="a100-80gb-sxm-ib.8x")
    run = up([network("small", 8), other])
    numbers = "need 16 slices in one InfiniBand network of us-east1-a: small has 8, other has 0. Fix: lower "
    assert str(run.error).startswith(f"2 more {GPU} {numbers}")
    assert not [each for each in run.custom if each.type.startswith("crusoe:")]


def test_only_new_machines_need_capacity_and_the_network_stays() -> None:
    before = up()
    full = [network("small", 800), network("large", 0)]
    again = up(full, before)
    assert again.error is None and again.named("partition").inputs["ibNetworkId"] == "large"
    error = str(up(full, before, gpu_count=3).error)
    assert (
        "need 8 slices in one InfiniBand network of us-east1-a (large): small has 800, large has 0" in error
    )


def test_a_host_key_is_installed_that_is_the_exported_one_and_in_no_plain_value(tmp_path: Path) -> None:
    run = up()
    listed = {host["name"]: host for host in run.outputs["hosts"]["hosts"]}
    for each in run.of_type(INSTANCE):
        key = tmp_path / each.name
        script = each.inputs["startupScript"]
        begin, end = script.index("-----BEGIN"), script.index("KEY\nmv ")
        key.write_text(script[begin:end])
        key.chmod(0o600)
        done = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True)
        assert done.stdout.split()[:2] == listed[each.name]["host_key"].split()
    assert len({host["host_key"] for host in listed.values()}) == len(listed)
    for resource in run.custom:
        assert all(secret for _, text, secret in texts(resource.raw) if "PRIVATE KEY" in text)
    assert not any(secret for _, _, secret in texts(run.raw_outputs))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "ubuntu24.04:latest"}, "machines.image: 'ubuntu24.04:latest' is not pinned"),
        ({"allow": []}, "machines.allow: got none, expected at least 1"),
        ({"gpu_cont": 2}, "machines.gpu_cont: unknown key; did you mean 'gpu_count'?"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(changes: dict[str, Any], said: str) -> None:
    assert said in str(up(**changes).error)
