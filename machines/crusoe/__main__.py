"""Machines at Crusoe, exported as the list that `hosts_from` of a cluster's stack reads (README.md)."""

import asyncio
import base64
import hashlib
import json
import struct
from collections.abc import Awaitable
from typing import Annotated, Any

import pulumi
import pulumi_random
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pulumi.runtime.settings import register_package
from pydantic import Field, ValidationError

from busbar.components.engine.stack import ask_engine
from busbar.config.cluster import Place
from busbar.config.findings import finding
from busbar.config.stackfile import host_list
from busbar.config.types import Cidr, DnsLabel, Int, Matching, NonEmpty
from busbar.models import ConfigModel

BRIDGE, PROVIDER = "1.1.3", "1.1.1"
REMOTE = {"remote": {"url": "registry.opentofu.org/crusoecloud/crusoe", "version": PROVIDER}}
PACKAGE = ("terraform-provider", BRIDGE, "", "crusoe", PROVIDER)
IB_NETWORKS = "crusoe:index/getIbNetworks:getIbNetworks"
SLICES = 8  # of a GPU machine, each with a GPU and an HCA
Image = Annotated[str, Matching(r"[^:]+:(?!latest$).+", "pinned: IMAGE:TAG, with another tag than latest")]


class Machines(ConfigModel):
    """`crusoe-machines:machines`."""

    name: DnsLabel
    location: NonEmpty
    ssh_key: NonEmpty
    allow: Annotated[list[Cidr], Field(min_length=1)]
    image: Image
    type: NonEmpty = "c1a.8x"
    gpu_image: Image
    gpu_type: NonEmpty
    gpu_count: Annotated[Int, Field(ge=1)]
    pool: DnsLabel
    cidr: Cidr = "10.0.0.0/16"
    ib_network: NonEmpty | None = None
    rail_groups: dict[DnsLabel, Place] = Field(default={})


def token(kind: str) -> str:
    return f"crusoe:index/{kind[0].lower()}{kind[1:]}:{kind}"


async def choose_network(config: Machines, package: Awaitable[str]) -> str:
    """The InfiniBand network with room for the machines that this stack does not have yet."""
    own = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    # The outputs would lack what an update has made that failed before its end.
    state = ask_engine("readStackResourceOutputs", {"stackName": own}, "the state of this stack")["outputs"]
    machines = [urn for urn, each in state.items() if each["type"] == token("ComputeInstance")]
    made = [urn for urn in machines if "::gpu-" in urn]
    partitions = (each["outputs"] for each in state.values() if each["type"] == token("IbPartition"))
    slices, chosen = SLICES * (config.gpu_count - len(made)), config.ib_network
    chosen = chosen or next((each.get("ibNetworkId") for each in partitions), None)
    answer = await pulumi.runtime.invoke_async(IB_NETWORKS, {}, package_ref=package)
    free: dict[str, int] = {}
    for network in answer["ibNetworks"]:
        if network["location"] == config.location:
            fitting = [each for each in network["capacities"] if each["sliceType"] == config.gpu_type]
            free[network["id"]] = sum(int(each["quantity"]) for each in fitting)
    enough = [each for each, count in free.items() if count >= slices and chosen in (None, each)]
    if slices > 0 and not enough:
        has = ", ".join(f"{each} has {count}" for each, count in free.items()) or "there is none"
        raise pulumi.RunError(
            f"{slices // SLICES} more {config.gpu_type} need {slices} slices in one InfiniBand network "
            f"of {config.location}{f' ({chosen})' if chosen else ''}: {has}. Fix: lower gpu_count"
        )
    return str(chosen or enough[0])


def host_key(secret: str) -> tuple[str, str]:
    """A script that installs a host key, the same for the same secret, and its public line."""
    seed = hashlib.sha256(secret.encode()).digest()
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()

    def text(*values: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(each)) + each for each in values)

    blob = text(b"ssh-ed25519", public)
    inner = bytes(8) + blob + text(seed + public, b"")  # a library would make these 8 bytes anew each time
    inner += bytes(range(1, 1 + -len(inner) % 8))
    whole = b"openssh-key-v1\0" + text(b"none", b"none", b"") + struct.pack(">I", 1) + text(blob, inner)
    lines = base64.encodebytes(whole).decode()
    file = "/etc/ssh/ssh_host_ed25519_key"
    script = (
        f"#!/bin/bash\nset -euo pipefail\numask 077\ncat > {file}.new <<'KEY'\n"
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}-----END OPENSSH PRIVATE KEY-----\nKEY\n"
        f"mv {file}.new {file}\nssh-keygen -y -f {file} > {file}.pub\nsystemctl restart ssh\n"
    )
    return script, f"ssh-ed25519 {base64.b64encode(blob).decode()}"


async def main() -> None:
    try:
        config = Machines.model_validate(pulumi.Config().require_object("machines"))
    except ValidationError as error:
        found = [str(finding(each, Machines).below("machines")) for each in error.errors()]
        raise pulumi.RunError("\n".join(found)) from None
    parameter = base64.b64encode(json.dumps(REMOTE).encode()).decode()
    package = asyncio.ensure_future(register_package(*PACKAGE, parameter))

    def make(kind: str, name: str, opts: pulumi.ResourceOptions | None = None, **inputs: Any) -> Any:
        inputs["name"] = f"{config.name}-{name}"
        return pulumi.CustomResource(token(kind), name, inputs, opts, package_ref=package)

    ib_network = await choose_network(config, package)
    network = make("VpcNetwork", "network", cidr=config.cidr)
    subnet = make("VpcSubnet", "subnet", cidr=config.cidr, location=config.location, network=network.id)
    rule: Any = {"network": network.id, "action": "allow", "direction": "ingress", "sourcePorts": "1-65535"}
    rule["destination"], named = config.cidr, ",".join(config.allow)
    make("VpcFirewallRule", "admins", protocols="tcp", source=named, destinationPorts="22,6443", **rule)
    rule |= {"source": config.cidr, "destinationPorts": "1-65535"}
    make("VpcFirewallRule", "inside", protocols="tcp,udp", **rule)
    partition = make("IbPartition", "partition", ibNetworkId=ib_network)

    def machine(name: str, role: str, *, retain: bool = False, **more: Any) -> Any:
        secret = pulumi_random.RandomPassword(f"{name}-host-key", length=64, special=False).result
        # Another image, type or ssh_key replaces a machine: with the servers the cluster's data would go.
        opts = pulumi.ResourceOptions(protect=True, retain_on_delete=retain)
        made = make(
            "ComputeInstance", name, opts, location=config.location, sshKey=config.ssh_key,
            networkInterfaces=[{"subnet": subnet.id, "publicIpv4": {"type": "static"}}],
            startupScript=pulumi.Output.secret(secret.apply(lambda known: host_key(known)[0])),
            installCrusoeWatchAgent=False, **more,
        )  # fmt: skip
        public = pulumi.Output.unsecret(secret.apply(lambda known: host_key(known)[1]))
        address = made.networkInterfaces.apply(lambda found: found[0]["privateIpv4"]["address"])
        known = {"address": address, "host_key": public, "user": "ubuntu", "provider_id": made.id}
        return {"name": name, "role": role, **known}, made

    plain: Any = {"type": config.type, "image": config.image}
    front, bastion = machine("lb-1", "load_balancer", **plain)
    hosts = [front, *(machine(f"server-{number}", "server", **plain)[0] for number in range(1, 4))]
    for name in (f"gpu-{number}" for number in range(1, config.gpu_count + 1)):
        host, _ = machine(
            name, "worker", retain=True, type=config.gpu_type, image=config.gpu_image,
            hostChannelAdapters=[{"ibPartitionId": partition.id}],
        )  # fmt: skip
        place = {"topology": {"rail_group": config.rail_groups[name]}} if name in config.rail_groups else {}
        hosts.append({**host, "pool": config.pool, **place})
    listed = pulumi.Output.from_input({"version": 1, "hosts": hosts})
    pulumi.export("hosts", listed.apply(lambda found: host_list(found, "hosts") and found))
    pulumi.export("ib_network", ib_network)
    public = bastion.networkInterfaces.apply(lambda found: found[0]["publicIpv4"]["address"])
    pulumi.export("bastion", {"address": public, "host_key": front["host_key"], "user": "ubuntu"})


pulumi.run(main)
