"""Keys that cannot be changed once a cluster is made, and the check that refuses it.

K3s compares such values only when a server joins (k3s-io/k3s pkg/cluster/bootstrap.go, compareConfig), never
when one restarts. The config.yaml of a server cannot decide, because after a wrong update it has the wrong
value. So the first values are read from objects of the cluster, and else from a note that each server keeps
since the cluster was made (host/k3s-server.sh). Writing a first value back is never refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import eq

from busbar.config.checks import node_prefix
from busbar.config.cluster import K3s, arguments_of, parsed
from busbar.finding import Finding, Fix
from busbar.kube.health import outside
from busbar.preflight.report import FirstValues, Report
from busbar.text import listed

NOTE = "note on the servers"
_WRITE_BACK = "write back {first}"
_NEW_CLUSTER = f"{_WRITE_BACK}, or make a new cluster"
# By default a cluster's DNS has the tenth address of the network of the services.
_DNS_NUMBER = 10
_NAMED = 3


@dataclass(frozen=True)
class Key:
    """A key of a stack file, and how a change of its value is found.

    `value`: its value, or K3s's default. `read`: where the first value is; `fix` has a place for it. `keeps`:
    whether a configured value (the second argument) keeps the first one. `follows`: the key of its default.
    """

    name: str
    value: Callable[[K3s], str]
    why: str
    read: str = NOTE
    fix: str = _NEW_CLUSTER
    keeps: Callable[[str, str], bool] = eq
    follows: str = ""


def _argument(key: str, default: str) -> Callable[[K3s], str]:
    return lambda k3s: ",".join(arguments_of(k3s.server_args, key)) or default


def _dns(k3s: K3s) -> str:
    default = ipaddress.ip_network(k3s.service_cidr)[_DNS_NUMBER]
    return _argument("cluster-dns", str(default))(k3s)


_domain = _argument("cluster-domain", "cluster.local")


def _issuers(k3s: K3s) -> str:
    given = map(parsed, arguments_of(k3s.server_args, "kube-apiserver-arg"))
    issuers = [value for name, value in given if name == "service-account-issuer"]
    return ",".join(issuers) or f"https://kubernetes.default.svc.{_domain(k3s)}"


CLUSTER_CIDR, SERVICE_CIDR = "k3s.cluster_cidr", "k3s.service_cidr"
CLUSTER_DNS, CLUSTER_DOMAIN = "k3s.server_args.cluster-dns", "k3s.server_args.cluster-domain"
NODE_PREFIX = "k3s.server_args.kube-controller-manager-arg.node-cidr-mask-size"
KEYS = (
    Key(
        CLUSTER_CIDR,
        lambda k3s: k3s.cluster_cidr,
        "each Node keeps its part (k3s-io/k3s#2603, #3967, kubernetes/kubernetes#82773)",
        read=f"{NOTE}, and `spec.podCIDR` of the Nodes, which decides",
    ),
    Key(
        SERVICE_CIDR,
        lambda k3s: k3s.service_cidr,
        "each Service keeps its ClusterIP (k3s-io/k3s#3489)",
        read="ServiceCIDR `kubernetes`",
        fix=f"{_WRITE_BACK}; another object of the kind ServiceCIDR adds addresses",
    ),
    Key(
        CLUSTER_DNS,
        _dns,
        "the Service keeps its ClusterIP, and the kubelets have it",
        read="Service `kube-dns` in kube-system",
        fix=_WRITE_BACK,
        follows=SERVICE_CIDR,
    ),
    Key(
        CLUSTER_DOMAIN,
        _domain,
        "names that pods use have it, and the issuer of tokens (k3s-io/k3s pkg/daemons/control/server.go)",
    ),
    Key(
        "k3s.server_args.kube-apiserver-arg.service-account-issuer",
        _issuers,
        "tokens of running pods name it; a new one is listed before it (kube-apiserver's reference)",
        fix="list {first} too, after a new one",
        keeps=lambda first, configured: {*first.split(",")} <= {*configured.split(",")},
        follows=CLUSTER_DOMAIN,
    ),
    Key(
        NODE_PREFIX,
        lambda k3s: str(node_prefix(k3s)),
        "the parts of all Nodes have one size (kubernetes/kubernetes#114560, k3s-io/k3s#10442)",
        read="`spec.podCIDR` of the Nodes",
        follows=CLUSTER_CIDR,
    ),
    Key(
        "k3s.flannel_backend",
        lambda k3s: k3s.flannel_backend,
        "hosts with different backends do not reach each other's pods (k3s-io/k3s#3409, #5011)",
    ),
    Key(
        "k3s.server_args.secrets-encryption-provider",
        _argument("secrets-encryption-provider", "aescbc"),
        "K3s changes `aescbc` to `secretbox` only (its Secrets Encryption, Migrating Providers)",
        fix=_WRITE_BACK,
        keeps=lambda first, configured: configured in (first, "secretbox"),
    ),
)


def values(k3s: K3s) -> dict[str, str]:
    """Key -> the value that a cluster would be made with."""
    return {key.name: key.value(k3s) for key in KEYS}


def refusal(where: str, key: str, first: str, now: str, fix: str) -> Finding:
    """A change of a key that is not possible. `fix` has a place for the first value, as that of a Key."""
    what = f"{key} cannot be changed: the cluster was made with {first}, the file says {now}"
    return Finding((where,), what, fix.format(first=first))


def check(configured: Mapping[str, str], servers: Mapping[str, Report]) -> Iterator[Finding]:
    """Find changes that a running cluster would not survive; `configured`: as `values`."""
    found = {name: report.first_values for name, report in servers.items() if report.first_values}
    if not found:
        return
    known, refused = _first_values(found.values(), configured[CLUSTER_CIDR]), set[str]()
    for key in KEYS:
        first, now = known.get(key.name), configured[key.name]
        if first is None or key.keeps(first, now):
            continue
        refused.add(key.name)
        if key.follows not in refused:
            yield refusal(next(iter(found)), key.name, first, now, key.fix)
    members = next((each.etcd_addresses for each in found.values() if each.etcd_addresses), {})
    for name in found:
        address, now = members.get(name), servers[name].node_address
        if address and now not in ("", address):
            what = f"the address of a server in etcd, {address}, cannot be changed; the machine has {now}"
            fix = Fix(
                f"give it {address} again, or remove and add it", ("docs", "hosts", "'Renaming and moving'")
            )
            yield Finding((name,), what, fix)


def _first_values(found: Iterable[FirstValues], configured: str) -> dict[str, str]:
    """Key -> its first value, of all keys for which one is known; `configured`: the network of the pods."""
    known = [*found]
    first = dict(next((each.note for each in known if each.note), {}))
    objects = next((each for each in known if each.pod_networks), None)
    if objects is None:
        return first
    of_services = {SERVICE_CIDR: objects.service_cidr, CLUSTER_DNS: objects.cluster_dns}
    first |= {key: value for key, value in of_services.items() if value}
    first[NODE_PREFIX] = objects.pod_networks[0].partition("/")[2]
    of_note = first.get(CLUSTER_CIDR)
    # The note of a cluster that had been changed before it was written is wrong.
    if of_note is None or outside(objects.pod_networks, of_note):
        parts = f"a network that contains {listed(objects.pod_networks, _NAMED)}"
        first[CLUSTER_CIDR] = parts if outside(objects.pod_networks, configured) else configured
    return first
