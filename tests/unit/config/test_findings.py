"""Every error names its path, its value and what is expected; all errors are reported at once."""

from pathlib import Path
from typing import Any

import pytest

from busbar.config import Bastion, ConfigError, load, section
from busbar.config.findings import show
from tests.support.clusters import H100_POOL, host, host_key, site
from tests.unit.config.edits import GONE, assert_said, edited, findings, noted, value_at

Edits = dict[str, Any]
SHARED = {"address": "192.0.2.100", "interface": "eth0"}
SERVER_2 = {**SHARED, "address": "192.0.2.12"}
BALANCER, API_SERVER = "hosts.load_balancers[0].address", "k3s.server_args.kube-apiserver-arg"
NONE, ONE, TWO = ({"load_balancers": count} for count in range(3))
SHA = {"sha256": {"amd64": "0" * 64}}
LONG = ".".join(letter * 60 for letter in "abcd")
INJECTIONS = ("';drop", "$(id)", "a b", "a\nb", "-1x ")

# Path, what is said of the value there, and values of which that is said.
WRONG: list[tuple[Any, ...]] = [
    ("hosts.workers[1].address",
     "is not an IPv4/IPv6 address or a host name, without scheme, login, port and brackets",
     "10.0.0.300", "10.0.0.3:22", "root@gpu-1", "[2001:db8::1]", f"{LONG}.{'e' * 10}",
     f"{'a' * 64}.example", "gpu.1", "gpu_1!"),
    ("hosts.workers[1].address", "is not the address of one machine",
     "0.0.0.0", "255.255.255.255", "ff02::1"),
    ("hosts.workers[0].name", "is not a DNS label", "GPU_1", "gpu.example"),
    ("hosts.servers[0].host_key", "is not an ed25519 host key", "ssh-rsa AAAAB3NzaC1yc2E=", "ssh-ed25519"),
    ("hosts.servers[0].host_key", "and 68 characters of base64, without a host name in front",
     "ssh-ed25519 AAAA...", host_key("x")[:-8], f"gpu-1 {host_key('x')}"),
    ("pools.h100.gpus", "True is true or false where a number is expected", True),
    ("pools.h100.gpus", "is not a whole number", "eight", 7.5, "²"),
    ("pools.h100.rate_gbps", "inf is not a number", float("inf")),
    ("pools.h100.link_layer", "'roce' is not one of 'infiniband' or 'ethernet'", "roce"),
    ("pools.h100.max_unavailable", "", 0, "0%", "101%", "all", "10 %", "-1", 1.5, True, ""),
    ("pools.h100.labels", "is not a Kubernetes label key", *({label: "1"} for label in (
        "-example.com/rail", f"{'a' * 254}/rail", "example..com/rail", "/rail",
    ))),
    ("pools.h100.labels", "is a label with which the kubelet ", *({label: "a"} for label in (
        "kubernetes.io/role", "feature.k8s.io/x", "app.kubernetes.io/name", "node-role.kubernetes.io/gpu",
        "node-restriction.kubernetes.io/x",
    ))),
    ("pools.h100.taints", "key 'team' with effect 'NoSchedule' is listed twice",
     [{"key": "team", "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule", "value": "a"}]),
    ("hosts.workers[0].topology.rail_group", "", "", "a b", "x" * 64),
    ("nfs_server.folder", "is not an absolute path without spaces, such as /srv/busbar", "srv"),
    ("nfs_server.folder", "is not a normalised path. Fix: /etc", "/srv/../etc"),
    ("nfs_server.folder",
     "is a folder of the system, or shared with others. Fix: use one such as /srv/busbar",
     "/etc/busbar", "/var/lib/rancher", "/srv", "/"),
    ("http_proxy.url", "is not the URL of a proxy with its port, such as http://proxy.example.com:3128",
     "http://proxy.example.com", "socks5://proxy:1080", "http://proxy:3128/%n"),
    ("http_proxy.url", "'http://[login]@proxy:3128' contains a login, which every", "http://me:pw@proxy:3128"),
    ("k3s.version", "'1.35.6' is not a K3s release such as v1.35.6+k3s1", "1.35.6"),
    ("k3s.cluster_cidr", "has host bits set; did you mean 10.42.0.0/16?", "10.42.0.1/16"),
    ("k3s.cluster_cidr", "is not a network in CIDR form", "ten"),
    ("k3s.cluster_cidr", "dual stack is not supported; give one", "10.42.0.0/16,fd00::/56"),
    ("k3s.base_url", "is not an http(s) URL", "ftp://mirror/k3s"),
    ("k3s.base_url", "contains a login", "https://me:pw@mirror/k3s"),
    ("k3s.checksums_file", "contains a control character", "sums\n.txt"),
    ("k3s.disable", "is not a DNS label", ["traefik,servicelb"]),
    (API_SERVER, "load balancer", ["secure-port=7443"], ["--secure-port=7443"]),
    ("ssh.key_file", "contains a control character", "id\0rsa"),
    ("gpu_operator.chart", "is not a chart", "-f values.yaml", "oci://me:pw@registry/chart"),
    *((f"{operator}.version", "is not a chart version: MAJOR.MINOR.PATCH such as 26.7.0",
       -1, 26.7, "26.7", "latest", "26.7.0 || 1", "v26.7.0;x", "") for operator in
      ("gpu_operator", "network_operator")),
    ("network_operator.resource", "is not an extended resource", "hostdev", "kubernetes.io/hostdev"),
    ("network_operator.resource", "the SR-IOV device plugin refuses the name 'host-dev'",
     "nvidia.com/host-dev"),
    ("validation.image", "is not a container image", "nccl/UPPER", "nccl:", "nccl@sha256:12",
     "https://ghcr.io/nccl", "a//b", "nccl:tag:tag"),
    ("validation.min_bytes", "'5X' is not a size", "5X"),
    ("validation.max_bytes", "such as 512M; binary, so there is no MB", "8GB"),
    ("validation.collectives", "got none, expected at least 1", []),
    ("validation.shm_size", "'64 GB' is not a Kubernetes quantity", "64 GB"),
    ("validation.hcas", "is not the name of an HCA", ["mlx5_0,mlx5_1"], ["^mlx5_0"]),
    ("validation.env", "is not the name of an environment variable", {"NCCL DEBUG": "INFO"}, {"A=B": "x"}),
    ("validation.env", "contains a control character", {"A": "x\0y"}),
    ("validation.env.NCCL_DEBUG", "Fix: remove it (busbar sets INFO)", "WARN", "VERSION", "", "warn"),
    ("validation.env.NCCL_IB_HCA", "validation.hcas", "mlx5_0"),
    ("k3s.snapshots.schedule", "has '25' as the hour, expected 0 to 23", "0 25 * * *"),
    ("k3s.snapshots.schedule", "has 'jan-foo' as the month, expected 1 to 12", "0 0 * jan-foo *"),
    ("k3s.snapshots.schedule", "has '7' as the day of the week, expected 0 to 6", "0 0 * * 1,7"),
    ("k3s.snapshots.schedule", "has '*/0' as the minute", "*/0 * * * *"),
    ("k3s.snapshots.schedule", "has '22-2' as the hour", "0 22-2 * * *"),
    ("k3s", "is empty, expected keys with values", None),
    ("pools", "is a list, expected keys with values", ["h100"]),
    ("hosts.servers", "is the plain value 'server-1', expected a list", "server-1"),
]  # fmt: skip
# Keys that break the host scripts, with a value and the reason.
BREAKING: list[tuple[str, Any, str]] = [
    ("data-dir", "/data", "/var/lib/rancher/k3s"),
    ("write-kubeconfig", "/root/config", "/etc/rancher/k3s/k3s.yaml"),
    ("write-kubeconfig+", "/root/config", "/etc/rancher/k3s/k3s.yaml"),
    ("vpn-auth", "name=tailscale,joinKey=x", "it is a key"),
    *(("kubelet-arg", [argument, "v=2"], repr(argument))
      for argument in ("root-dir=/data", "--register-node=false")),
]  # fmt: skip
WRONG += [
    (f"k3s.{setting}.{key}", reason, value)
    for setting in ("server_args", "agent_args")
    for key, value, reason in BREAKING
]
# Texts that end in a shell line, a URL, YAML or a Kubernetes name.
STRICT_TEXTS = [
    "name", "ssh.user", "hosts.workers[0].address", "hosts.workers[0].user", "hosts.virtual_ip.interface",
    "k3s.version", "k3s.base_url", "k3s.snapshots.schedule", "gpu_operator.version",
    "gpu_operator.repository", "gpu_operator.chart", "network_operator.version", "network_operator.chart",
    "network_operator.resource",
    "network_operator.image_repository", "mpi_operator.image", "validation.image", "validation.shm_size",
    "validation.memory", "validation.runtime_class", "validation.profile",
]  # fmt: skip
WRONG += [(path, "", *INJECTIONS) for path in STRICT_TEXTS]


@pytest.mark.parametrize(
    ("path", "message", "value"),
    [(path, message, value) for path, message, *values in WRONG for value in values],
    ids=lambda each: repr(each)[:60],
)
def test_an_invalid_value_is_named_with_path_and_expectation(path: str, message: str, value: Any) -> None:
    sections = TWO if "virtual_ip" in path else ONE
    found = [each for each in findings(edited({path: value}, **sections)) if each.startswith(path)]
    assert len(found) == 1
    assert message in found[0]


# Path, and values that are accepted and kept there.
RIGHT: list[tuple[Any, ...]] = [
    ("hosts.workers[0].address", "gpu.example.com", f"{LONG}.{'e' * 9}"),
    (BALANCER, "lb.example"),
    ("ssh.user", "root", "ubuntu", "svc_gpu-1", "CORP\\admin", "me@example.com"),
    ("network_operator.version", "26.7.0", "26.7.0-rc.2"),
    ("validation.image", "nccl", "mpioperator/mpi-operator:0.8.0",
     "ghcr.io/coreweave/nccl-tests:12.9.1-devel-ubuntu22.04-nccl2.28.3-1-8b67957",
     "registry.example.com:5000/a/b__c@sha256:" + "0" * 64, "localhost:5000/nccl:1"),
    ("validation.env.NCCL_DEBUG", "INFO", "TRACE"),
    ("validation.slots_per_worker", 8),
    ("k3s.snapshots.schedule", "0 */12 * * *", "5,35 0-6/2 1 JAN-mar Mon", "? 0 * * ?", "@every 6h"),
    ("k3s.registries", {
        "mirrors": {"docker.io": None, "*": {"endpoint": ["m.example"], "rewrite": {"^(.*)$": "p/$1"}}},
        "configs": {"m.example": {"tls": {"insecure_skip_verify": True}}},
    }),
    ("k3s.server_args", {
        "kubelet-arg": ["max-pods=200", "v=2"], "etcd-expose-metrics": True, "quantum-tunnel": 1,
    }),
    *(("pools.h100.labels", {label: "a"}) for label in (
        "node.example.com/fabric", "node.kubernetes.io/pool", "gpu.node.kubernetes.io/pool",
        "topology.kubernetes.io/zone", "kubernetes.io/os", "mykubernetes.io/x",
    )),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"),
    [(path, value) for path, *values in RIGHT for value in values],
    ids=lambda each: repr(each)[:60],
)
def test_a_value_in_the_form_of_its_field_is_kept_as_it_is(path: str, value: Any) -> None:
    assert value_at(load(edited({path: value})), path) == value


A100 = {"pools.h100.gpu_model": "A100"}
H100_PROFILE, NOIB = {"validation.profile": "h100-ib-8x400"}, {"validation.profile": "a100-noib"}
NFS = {"nfs_server.folder": "/srv/x"}
OWN_NFS = {"hosts.nfs_server": host("nfs-1", "192.0.2.50")}
CIDR_16, CIDR_25 = ({"k3s.cluster_cidr": f"10.42.0.0/{size}"} for size in (16, 25))
IN_IPV6 = {
    "k3s.cluster_cidr": "fd00:42::/60", "k3s.service_cidr": "fd00:43::/112",
    **{f"hosts.{role}[{n}].address": f"2001:db8::{role[0]}{n}".replace("s", "f").replace("w", "a")
       for role, count in (("servers", 3), ("workers", 20)) for n in range(count)},
}  # fmt: skip
MASK = "k3s.server_args.kube-controller-manager-arg"
NO_POOLS = {f"hosts.workers[{n}].pool": GONE for n in range(2)}
RAIL_GROUP = "hosts.workers[0].topology.rail_group"
TOO_MUCH = "3200 GB/s is more than pools.h100 can carry"
COREDNS = {"k3s.server_args.node-taint": ["role=infra:NoSchedule", "CriticalAddonsOnly=true:NoExecute"]}
TAINTED = {"pools.h100.taints": [{"key": "team", "effect": "NoSchedule"}]}
SHARP = {"validation.profile": "h100-sharp", "validation.expected_busbw_gbps": 470}
BUCKET = {"k3s.snapshots.s3.bucket": "etcd"}
NO_NFD, NFD_OFF = {"gpu_operator.enabled": False}, {"gpu_operator.values.nfd.enabled": False}

# Each row: the changes, the site, and the only finding as phrases in their order.
TOGETHER: list[tuple[Edits, Edits, str]] = [
    # Hosts and their addresses.
    ({"hosts.virtual_ip": GONE}, TWO, "hosts.virtual_ip: missing: two load balancers share"),
    ({"hosts.virtual_ip": SHARED}, ONE, "hosts.virtual_ip: given with one load balancer"),
    ({"hosts.virtual_ip": SHARED}, NONE | {"servers": 1}, "got 1 server and no load balancer, expected at"),
    ({"hosts.virtual_ip.address": "192.0.2.1"}, TWO, "is the address of hosts.load_balancers[0]"),
    ({"hosts.virtual_ip": SERVER_2}, NONE, "'192.0.2.12' is the address of hosts.servers[1]"),
    ({BALANCER: "192.0.2.12"}, ONE, "hosts.servers[1].address: '192.0.2.12' is also the address of"),
    ({BALANCER: "lb-1.example"}, TWO, "'lb-1.example': keepalived takes only IPv4"),
    ({BALANCER: "2001:db8::7"}, TWO, "'2001:db8::7': keepalived takes only IPv4"),
    ({}, {"servers": 2}, "hosts.servers: got 2, expected an odd number"),
    ({}, {"servers": 4}, "hosts.servers: got 4, expected an odd number"),
    ({}, NONE, "hosts.load_balancers: missing: the Kubernetes API needs an address. Fix: list"),
    ({"api_endpoint": {}}, NONE, "api_endpoint.address: missing: IP address or host name."),
    ({"api_endpoint.address": "10.44.0.1"}, NONE, "'10.44.0.0/14' contains api_endpoint '10.44.0.1', so"),
    ({"hosts.workers[0].pool": "h10"}, ONE, "'h10' is not in pools; did you mean 'h100'?"),
    ({"pools.h200": H100_POOL}, ONE, "pools.h200: has no worker"),
    ({"hosts.workers[2].pool": GONE}, {"workers": {"a": 1, "b": 2}}, "there is more than one pool: a, b"),
    ({"hosts.servers[0].host_key": GONE}, ONE, "missing: The host's ed25519 host key: `ssh-keyscan"),
    ({f"hosts.workers[{n}].quarantine": "fan" for n in range(2)}, {"workers": {"a": 1, "b": 2}},
     "hosts.workers[0].quarantine: all workers of pool a are in quarantine"),
    (NFS | {"hosts.nfs_server": host("nfs-1", "a.example"), "hosts.workers[1].address": "A.example"}, ONE,
     "hosts.workers[1].address: 'a.example' is also the address of hosts.nfs_server"),
    # Levels of the fabric, where schedulers pass over a Node without one.
    ({f"hosts.workers[{n}].topology.rail_group": "a" for n in (0, 2)}, {"workers": {"h100": 3}},
     "hosts.workers[1].topology.rail_group: missing: 2 of 3 workers of pool h100 have it ... Fix: set it"),
    ({RAIL_GROUP: "a"} | NO_POOLS, ONE, "hosts.workers[1].topology.rail_group: missing: 1 of 2 workers of"),
    ({RAIL_GROUP: "a", "pools.h100.labels": {"fabric.topograph.run/tier-0": "x"}}, {"workers": {"h100": 1}},
     f"pools.h100.labels: 'fabric.topograph.run/tier-0' is the label of {RAIL_GROUP}. Fix: remove it here"),
    # The NFS server.
    (OWN_NFS, ONE, "nfs_server: missing, and hosts.nfs_server is given"),
    (NFS, ONE, "nfs_server.host: missing. Fix: name a load balancer or server"),
    (NFS | {"nfs_server.host": "lb-1"} | OWN_NFS, ONE,
     "nfs_server.host: given together with hosts.nfs_server"),
    (NFS | {"nfs_server.host": "lb-2"}, ONE, "nfs_server.host: 'lb-2' is not in hosts"),
    (NFS | {"nfs_server.host": "gpu-1"}, ONE, "nfs_server.host: 'gpu-1' is a worker"),
    (NFS | {"nfs_server.host": "gpu-1"} | NO_POOLS, ONE, "nfs_server.host: 'gpu-1' is a worker"),
    # Networks.
    ({"k3s.service_cidr": "fd00:43::/112"}, ONE, "k3s.cluster_cidr '10.44.0.0/14' are not of one family"),
    ({"hosts.workers[1].address": "2001:db8::1"}, ONE, "and hosts.workers[1] '2001:db8::1' are not of one"),
    ({"k3s.cluster_cidr": "192.0.0.0/16"}, ONE, "contains hosts.load_balancers[0] '192.0.2.1' and 3 more"),
    (CIDR_16, {"workers": {"h100": 254}},
     "k3s.cluster_cidr: '10.42.0.0/16' has room for 256 nodes (a /24 per node), got 257 ... a /15 or larger"),
    (CIDR_16, {"workers": {"h100": 509}}, "got 512. Fix: use a /15 or larger"),
    *((CIDR_16 | {MASK: [f"{mask}=25"]}, {"workers": {"h100": 510}},
       "has room for 512 nodes (a /25 per node), got 513")
      for mask in ("node-cidr-mask-size", "node-cidr-mask-size-ipv4")),
    (IN_IPV6, {"workers": {"h100": 20}}, "has room for 16 nodes (a /64 per node), got 23"),
    (CIDR_25, ONE, "has room for 0 nodes"),
    # Keys that are unknown, with the one that was meant.
    *(({path: 1}, ONE, f"{path}: unknown key; {hint}") for path, hint in (
        ("hosts.sevrers", "did you mean 'servers'?"),
        ("validation.expected_busbw", "did you mean 'expected_busbw_gbps'?"),
        ("pools.h100.min-disk-gb", "did you mean 'min_disk_gb'?"),
        ("zzz", "expected one of: name, ssh, pools, validation"),
    )),
    *(({"http_proxy.url": "http://proxy:3128", "http_proxy.no_proxy": [name]}, ONE,
       f"http_proxy.no_proxy[0]: {name!r} is not a name, a domain such as .example.com")
      for name in ("a.example,b.example", "10.0.0.0/33", "*", "http://a.example")),
    # Registries that K3s would ignore.
    *(({"k3s.registries": registries}, ONE, f"k3s.registries: {said}") for registries, said in (
        ({"mirror": {}}, "{'mirror': {}} unknown key 'mirror'; did you mean 'mirrors'?"),
        ({"mirrors": {"https://docker.io/": {}}},
         "{'mirrors': {'https://docker.io/': {}}} mirrors has the URL 'https://docker.io/'. Fix: docker.io"),
    )),
    # Keys, checksums, K3s.
    ({"ssh": {}}, ONE, "ssh: no SSH key configured. Fix: set ssh.key_file, or ssh.agent: true"),
    ({"ssh": {"key_file": "id", "agent": True}}, ONE, "more than one key configured: ssh.key_file"),
    ({"k3s": {}}, ONE, "k3s.version: the checksum of 'v1.35.6+k3s1' is unknown. Fix: save the"),
    ({"k3s.images": [{"url": "http://m/a.tar"}]}, ONE, "k3s.images[0]: the checksum of 'http://m/a.tar'"),
    ({"k3s.server_args.cluster-init": True}, ONE, "cluster-init: busbar writes this key itself"),
    ({"k3s.agent_args.node-label+": ["a=b"]}, ONE, "node-label+: busbar writes this key itself. Fix: use"),
    ({API_SERVER: "--authentication-config=/etc/a"}, ONE, "'--authentication-config=/etc/a' contradicts"),
    ({API_SERVER: ["anonymous-auth=true"]}, ONE, "'anonymous-auth=true' contradicts"),
    # Past the check of keys that a running cluster keeps.
    ({API_SERVER: ["service-cluster-ip-range=10.96.0.0/16"]}, ONE, "not supported: k3s.service_cidr sets it"),
    ({"k3s.server_args.kube-controller-manager-arg": ["--cluster-cidr=10.96.0.0/14"]}, ONE,
     "'--cluster-cidr=10.96.0.0/14' is not supported: k3s.cluster_cidr sets it"),
    ({API_SERVER: ["--oidc-client-id=k3s"]}, ONE, "'--oidc-client-id=k3s': the API server does not start"),
    ({"k3s.authentication.jwt": ["https://login.example.com"]}, ONE, "k3s.authentication.jwt[0]: "),
    *((BUCKET | {f"k3s.snapshots.s3.{key}": value}, ONE, f"k3s.snapshots.s3.{key}: ... {said}")
      for key, value, said in (
          ("bucket", "Etcd_Snapshots", "is not the name of a bucket"),
          ("endpoint", "https://s3.example.com", "is not HOST or HOST:PORT (without https://)"),
          ("region", "eu central", "is not a region"),
          ("folder", "/etcd\n", "is not a folder of a bucket"),
      )),
    # Operators.
    ({"network_operator.version": "26.4.0", "gpu_operator.version": "v26.3.2"}, ONE,
     "gpu_operator.version: ... does not support GPUDirect RDMA together with Net"),
    (NO_NFD, ONE, "network_operator.values.nfd.enabled: missing: ... gpu_operator.enabled: false leaves out"),
    (NFD_OFF, ONE,
     "network_operator.values.nfd.enabled: missing: ... gpu_operator.values.nfd.enabled: false leaves out"),
    # The validation.
    ({"validation.accept_warnings": ["slow"]}, ONE, "'slow' is too short: expected at least 8 characters"),
    ({"validation.profile": "h100-ib-8x4000"}, ONE, "is not a profile; did you mean 'h100-ib-8x400'?"),
    ({"validation.expected_by_collective.all_gather": 350}, ONE, "is not in validation.collectives"),
    ({"validation.max_bytes": "1G", "validation.min_bytes": "2G"}, ONE,
     "2147483648 is more than validation.max_bytes"),
    ({"validation.slots_per_worker": 9}, ONE,
     "validation.slots_per_worker: 9 is more than the 8 GPUs of pools.h100"),
    (NOIB | A100, ONE, "validation.profile: a100-noib accepts TCP between hosts, and pools.h100 has 8 rails. "
     "Fix: ... validation.transport: socket"),
    (H100_PROFILE | A100, ONE, "h100-ib-8x400 is for H100, and pools.h100 has A100"),
    (H100_PROFILE | {"pools.h100.gpu_model": "H100 PCIe"}, ONE, "is for H100, and pools.h100 has H100 PCIe"),
    (H100_PROFILE | {"pools.h100.link_layer": "ethernet"}, ONE,
     "is for infiniband, and pools.h100.link_layer is ethernet"),
    ({"validation.profile": "roce"}, ONE, "roce is for roce, and pools.h100.link_layer is infiniband"),
    ({"validation.profile": "roce", "pools.h100.validation.expected_busbw_gbps": 300}, ONE,
     "validation.profile: roce is for roce, "),
    ({"validation.expected_busbw_gbps": 3200}, ONE, f"validation.expected_busbw_gbps: {TOO_MUCH}, ... "
     "Fix: give GB/s (10^9 bytes), not Gb/s, or the pool a value of its own"),
    ({"validation.expected_busbw_gbps": 3200} | NO_POOLS, ONE, TOO_MUCH),
    ({"validation.collectives": ["all_gather"], "validation.expected_by_collective.all_gather": 3200}, ONE,
     f"validation.expected_by_collective.all_gather: {TOO_MUCH}, "),
    (SHARP | {"validation.algorithm": "ring"}, {"workers": {"h100": 12}}, "more than pools.h100 can carry"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "sections", "phrases"), TOGETHER, ids=[f"{n}-{row[2][:60]}" for n, row in enumerate(TOGETHER)]
)
def test_what_does_not_fit_the_rest_is_refused(edits: Edits, sections: Edits, phrases: str) -> None:
    [found] = findings(edited(edits, **sections))
    assert_said(found, phrases)


ALSO, BOTH_GIVEN = "is also the", "api_endpoint: given together with hosts"
# Each row: the changes, the site, and the beginnings of all findings, which are reported at once.
SEVERAL: list[tuple[Edits, Edits, list[str]]] = [
    ({"name": GONE, "hosts.workers[1].address": "10.0.0.300",
      "k3s": {"version": "v1.31.1+k3s1", "images": "none", "server_args": {"token": "x"}}}, {"servers": 2},
     ["hosts.servers: ", "hosts.workers[1].address: ", "k3s.images: ", "k3s.server_args.token: ",
      "k3s.version: ", "name: "]),
    ({"hosts.virtual_ip": GONE, "hosts.workers[0].name": "server-1", "ssh": {},
      "k3s": {"cluster_cidr": "192.0.0.0/16"}}, TWO,
     ["hosts.virtual_ip: ", "hosts.workers[0].name: ", "k3s.cluster_cidr: ", "k3s.version: ", "ssh: "]),
    (NFS | {"hosts.nfs_server": host("gpu-1", "192.0.2.11")}, ONE,
     ["hosts.servers[0].address: ", "hosts.workers[0].name: "]),
    ({"hosts.workers[1]": host("gpu-1", "192.0.2.11", pool="h100")}, ONE,
     [f"hosts.workers[1].address: '192.0.2.11' {ALSO} address of hosts.servers[0]. Fix: list each machine",
      f"hosts.workers[1].name: 'gpu-1' {ALSO} name of hosts.workers[0]. Fix: rename one"]),
    ({"api_endpoint.address": "10.9.8.7"}, TWO,
     [f"{BOTH_GIVEN}.load_balancers. Fix: remove one", f"{BOTH_GIVEN}.virtual_ip. Fix: remove one"]),
    ({"hosts.virtual_ip": {**SHARED, "address": "2001:db8::1"}}, NONE,
     [f"hosts.servers[{n}].address: " for n in range(3)]),
    ({"k3s.service_cidr": "10.44.128.0/17", "hosts.workers[0].address": "10.44.0.9"}, ONE,
     ["k3s.cluster_cidr: ", "k3s.service_cidr: "]),
    # The leading v of a chart's version is as its repository has it.
    ({"gpu_operator.version": "26.7.0", "network_operator.version": "v26.7.0"}, ONE,
     ["gpu_operator.version: ", "network_operator.version: "]),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "sections", "beginnings"), SEVERAL)
def test_all_errors_are_reported_at_once(edits: Edits, sections: Edits, beginnings: list[str]) -> None:
    found = sorted(findings(edited(edits, **sections)))
    assert [text[: len(start)] for text, start in zip(found, beginnings, strict=True)] == beginnings


# Each row: changes that are well, and the site.
FITTING: list[tuple[Edits, Edits]] = [
    ({"hosts.load_balancers": GONE, "api_endpoint.address": "10.9.8.7"}, NONE),
    ({"hosts.virtual_ip": SHARED}, NONE | {"servers": 5}),
    ({f"hosts.workers[{n}].quarantine": "fan" for n in range(2)} | {"validation.enabled": False}, ONE),
    (CIDR_16, {"workers": {"h100": 253}}),
    *((CIDR_16 | {MASK: [f"{mask}=25"]}, {"workers": {"h100": 509}})
      for mask in ("node-cidr-mask-size", "node-cidr-mask-size-ipv4")),
    (CIDR_25 | {MASK: ["--allocate-node-cidrs=false"]}, ONE),
    ({}, {"workers": {"h100": 1000}}),
    (NO_NFD | {"network_operator.enabled": False}, ONE),
    *((off | {"network_operator.values.nfd.enabled": own}, ONE)
      for off in (NO_NFD, NFD_OFF) for own in (True, False)),
    ({"network_operator.resource": "nvidia.com/host-dev", "network_operator.enabled": False}, ONE),
    ({"gpu_operator.version": "v26.3.2", "network_operator.version": "26.4.0",
      "network_operator.enabled": False}, ONE),
    ({"pools.h100.taints": [{"key": "a", "effect": each} for each in ("NoSchedule", "NoExecute")]}, ONE),
    (TAINTED | {"k3s.server_args.node-taint": [
        "CriticalAddonsOnly=true:NoExecute", "node-role.kubernetes.io/control-plane=true:NoSchedule",
    ]}, ONE),
    (COREDNS | TAINTED | {"k3s.disable": ["coredns"]}, ONE),
    # CoreDNS runs on workers.
    (COREDNS, ONE),
    (NOIB | A100 | {"validation.transport": "socket", "validation.expected_busbw_gbps": 5}, ONE),
    ({"validation.enabled": False, "validation.profile": "a40"}, ONE),
    (SHARP, {"workers": {"h100": 12}}),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "sections"), FITTING)
def test_what_fits_the_rest_is_accepted(edits: Edits, sections: Edits) -> None:
    load(edited(edits, **sections))


SMALL = {"validation.min_bytes": "1M", "validation.max_bytes": "1023M"}
IMAGES = ("validation.image", "mpi_operator.image")
IMAGE = "has no fixed tag: another image may run the next time. Fix: give its tag or its digest"
KEY_OF_LB = {"hosts.nfs_server": {**host("nfs-1", "192.0.2.50"), "host_key": host_key("lb-1")}} | NFS
# Each row: the changes, the site, and the only warning about the path of its first phrase; where
# the phrase is a path alone, there is none.
NOTES: list[tuple[Edits, Edits, str]] = [
    ({"k3s.disable": ["traefik", "coredns"]}, ONE, "k3s.disable[1]: without coredns the launcher of the"),
    ({"k3s.disable": ["traefik", "our-storage"]}, ONE, "k3s.disable[1]: 'our-storage' is not a component"),
    ({"k3s.flannel_backend": "none"}, ONE, "k3s.flannel_backend: none: no Node becomes Ready"),
    (BUCKET, ONE, "k3s.snapshots.s3.folder: missing: another cluster with this bucket ... Fix: set it to"),
    (BUCKET | {"k3s.snapshots.s3.folder": "prod"}, ONE, "k3s.snapshots.s3.folder"),
    *(({path: image}, ONE, f"{path}: {image!r} {IMAGE}") for path in IMAGES
      for image in ("r.example:5000/nccl-tests", "nccl-tests:latest")),
    *(({path: image}, ONE, path) for path in IMAGES
      for image in ("r.example:5000/nccl-tests:1", f"r.example/nccl-tests@sha256:{'0' * 64}")),
    ({"hosts.virtual_ip": SHARED}, NONE, "hosts.virtual_ip"),
    ({}, {"workers": {"h100": 1}}, "hosts.workers: with one worker"),
    ({"hosts.workers[1].host_key": host_key("gpu-1")}, ONE,
     "hosts.workers[0].host_key: the same key as hosts.workers[1] ... ssh-keygen -A"),
    ({"ssh.bastion": {"address": "192.0.2.200", "host_key": host_key("gpu-1")}}, ONE,
     "hosts.workers[0].host_key: the same key as ssh.bastion"),
    (KEY_OF_LB, ONE, "hosts.nfs_server.host_key: the same key as hosts.load_balancers[0]:"),
    (NFS | {"nfs_server.host": "lb-1"}, {"workers": {"h100": 16}}, "nfs_server"),
    (H100_PROFILE, ONE, "validation"),
    ({"validation.expected_busbw_gbps": 241}, ONE, "validation"),
    ({"validation.expected_busbw_gbps": 240}, ONE,
     "validation.expected_busbw_gbps: 240 GB/s is far below what pools.h100 should do, 481 GB/s"),
    ({"validation.tolerance": 0.5}, ONE, "validation"),
    ({"validation.tolerance": 0.6}, ONE,
     "validation.tolerance: 0.6 accepts 40% of the expected bandwidth. Fix: 0.1 accepts 90 %"),
    (SMALL, ONE, "validation.max_bytes: 1072693248 bytes are too few for the bandwidth of a fabric."),
    (SMALL | {"validation.max_bytes": "1G"}, ONE, "validation"),
    (SMALL | {"validation.transport": "socket", "validation.expected_busbw_gbps": 1}, ONE, "validation"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "sections", "phrases"), NOTES, ids=[f"{n}-{row[2][:60]}" for n, row in enumerate(NOTES)]
)
def test_what_may_be_wrong_is_a_warning(edits: Edits, sections: Edits, phrases: str) -> None:
    path, colon, _ = phrases.partition(": ")
    found = noted(edited(edits, **sections), path)
    if not colon:
        assert found == []
        return
    [said] = found
    assert_said(said, phrases)


def test_a_section_by_itself_reports_all_its_errors_below_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        section(Bastion, "bastion", {"address": "10.0.0.300", "host_key": host_key("a"), "usr": "jump"})
    assert [*map(str, caught.value.findings)] == [
        "bastion.address: '10.0.0.300' is not an IPv4/IPv6 address or a host name, without scheme, login, "
        "port and brackets",
        "bastion.usr: unknown key; did you mean 'user'?",
    ]


def test_a_configuration_that_is_not_an_object_is_refused() -> None:
    assert findings("dev") == ["busbar:cluster: is not an object. Fix: see Pulumi.h100.example.yaml"]


def test_the_key_may_be_a_secret_of_the_stack() -> None:
    assert load(site(ssh={}), secret_keys={"sshPrivateKey"}).ssh.key_file is None


def test_a_bucket_for_snapshots_needs_both_of_its_keys() -> None:
    data = site(k3s={**SHA, "snapshots": {"s3": {"bucket": "etcd"}}})
    [found] = findings(data, secret_keys={"s3AccessKey"})
    assert found.startswith("k3s.snapshots.s3: busbar:s3SecretKey is not set")


def with_images(*names: str) -> dict[str, Any]:
    images = [{"url": f"http://mirror/{name}", "sha256": "0" * 64} for name in names]
    return site(k3s={**SHA, "images": images})


def test_image_archives_have_a_format_that_k3s_reads_and_names_of_their_own() -> None:
    assert load(with_images("a.tar", "b.tar.gz", "c.tgz", "d.tar.zst"))
    assert findings(with_images("a.tar", "b.zip", "sub/a.tar")) == [
        "k3s.images[1].url: 'http://mirror/b.zip' is not a .tar, .tar.gz, .tgz or .tar.zst archive"
    ]
    assert findings(with_images("a.tar", "sub/a.tar")) == [
        "k3s.images: the file name 'a.tar' is there twice; hosts store archives by it. Fix: rename one"
    ]


def test_a_checksums_file_names_every_image_archive_without_a_checksum(tmp_path: Path) -> None:
    names = ("k3s", "a.tar", "c.tar")
    (tmp_path / "sums.txt").write_text("".join(f"{'0' * 64}  {name}\n" for name in names[:2]))
    images = [{"url": f"http://mirror/{name}.tar"} for name in "abc"]
    images[1]["sha256"] = "0" * 64
    data = site(k3s={"checksums_file": "sums.txt", "images": images})
    assert findings(data, root=tmp_path) == [
        "k3s.images[2]: the checksum of 'http://mirror/c.tar' is unknown. "
        "Fix: set sha256, or add it to k3s.checksums_file"
    ]
    with (tmp_path / "sums.txt").open("a") as file:
        file.write(f"{'0' * 64}  c.tar\n")
    assert load(data, root=tmp_path)


def test_a_wrong_line_of_a_checksums_file_is_named_and_cut_after_80_characters(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(f"# of release 1\n\n{'A' * 64} *bin/k3s\n{'x' * 100}\n")
    assert findings(site(k3s={"checksums_file": "sums.txt"}), root=tmp_path) == [
        f"k3s.checksums_file: line 4 of 'sums.txt' is not in the format of sha256sum: '{'x' * 80}'"
    ]


def test_a_long_value_is_cut_to_the_limit_and_stays_quoted() -> None:
    assert show("x" * 18, limit=20) == f"'{'x' * 18}'"
    cut = show("x" * 19, limit=20)
    assert (cut, len(cut)) == (f"'{'x' * 15}...'", 20)
    assert show([1] * 20, limit=20) == "[1, 1, 1, 1, 1, ..."


def test_an_expectation_at_the_ceiling_is_accepted() -> None:
    [said] = findings(site(validation={"expected_busbw_gbps": 3200}))
    ceiling = float(said.split(" GB/s")[1].split()[-1])
    assert load(site(validation={"expected_busbw_gbps": ceiling}))
    assert findings(site(validation={"expected_busbw_gbps": ceiling + 1}))
