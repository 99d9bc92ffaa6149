"""Keys that cannot be changed once a cluster is made: what is refused, and how the first value comes back."""

from collections.abc import Mapping
from typing import Any

import pytest

from busbar.config import K3s
from busbar.finding import Finding
from busbar.preflight import unchangeable
from busbar.preflight.report import FirstValues
from tests import unchangeable_page
from tests.support.reports import report

MADE = {"cluster_cidr": "10.42.0.0/16", "service_cidr": "10.43.0.0/16"}


def of(**changes: Any) -> dict[str, str]:
    return unchangeable.values(K3s.model_validate({**MADE, **changes}))


def server_args(**changes: Any) -> dict[str, Any]:
    return {"server_args": {key.replace("_", "-"): value for key, value in changes.items()}}


ADDRESSES = {"server-1": "10.0.0.11", "server-2": "10.0.0.12"}
NOTHING: dict[str, Any] = {
    **{"pod_networks": (), "etcd_addresses": {}},
    **{"service_cidr": "", "cluster_dns": ""},
}
FOUND: dict[str, Any] = {
    **{"pod_networks": ("10.42.0.0/24", "10.42.1.0/24"), "etcd_addresses": ADDRESSES},
    **{"service_cidr": "10.43.0.0/16", "cluster_dns": "10.43.0.10"},
}


def refused(configured: Mapping[str, str], note: Any = None, **objects: Any) -> list[Finding]:
    """The findings of three servers; the API of the first one does not answer, and the third has no K3s yet.

    `note`: by default that of a cluster with MADE.
    """
    servers = {"server-3": report(node_address="10.0.0.13")}
    for name, answer in (("server-1", NOTHING), ("server-2", FOUND | objects)):
        values = FirstValues(note=of() if note is None else note, **answer)
        servers[name] = report(node_address=ADDRESSES[name], first_values=values)
    return [*unchangeable.check(configured, servers)]


def test_a_cluster_that_stays_as_it_was_made_is_not_refused() -> None:
    assert refused(of()) == []
    assert refused(of(), note={}) == []


ISSUER = "https://kubernetes.default.svc.cluster.local"
BACK = "write back {}, or make a new cluster"
SERVICES = "write back {}; another object of the kind ServiceCIDR adds addresses"
ARGS = "k3s.server_args"
ISSUER_KEY = f"{ARGS}.kube-apiserver-arg.service-account-issuer"
MASK_KEY = f"{ARGS}.kube-controller-manager-arg.node-cidr-mask-size"
ANOTHER_ISSUER = server_args(kube_apiserver_arg=["service-account-issuer=https://new.example"])
SMALLER_PARTS = server_args(kube_controller_manager_arg=["node-cidr-mask-size-ipv4=25"])
# Changes, the key that is named, its first and its configured value, the fix.
CASES: list[tuple[dict[str, Any], str, str, str, str]] = [
    ({"cluster_cidr": "10.44.0.0/16"}, "k3s.cluster_cidr", "10.42.0.0/16", "10.44.0.0/16", BACK),
    # A larger one.
    ({"cluster_cidr": "10.40.0.0/14"}, "k3s.cluster_cidr", "10.42.0.0/16", "10.40.0.0/14", BACK),
    ({"service_cidr": "10.53.0.0/16"}, "k3s.service_cidr", "10.43.0.0/16", "10.53.0.0/16", SERVICES),
    (server_args(cluster_dns="10.43.0.9"), f"{ARGS}.cluster-dns", "10.43.0.10", "10.43.0.9", "write back {}"),
    (server_args(cluster_domain="x.example"), f"{ARGS}.cluster-domain", "cluster.local", "x.example", BACK),
    (ANOTHER_ISSUER, ISSUER_KEY, ISSUER, "https://new.example", "list {} too, after a new one"),
    (SMALLER_PARTS, MASK_KEY, "24", "25", BACK),
    ({"flannel_backend": "wireguard-native"}, "k3s.flannel_backend", "vxlan", "wireguard-native", BACK),
]


@pytest.mark.parametrize(("changes", "key", "first", "now", "fix"), CASES)
def test_a_change_is_refused_with_the_way_back(
    changes: dict[str, Any], key: str, first: str, now: str, fix: str
) -> None:
    (found,) = refused(of(**changes))
    says = f"{key} cannot be changed: the cluster was made with {first}, the file says {now}"
    assert (found.kind, found.what, found.fix) == ("error", says, fix.format(first))


def test_each_key_of_the_table_is_tried() -> None:
    tried = {key for _, key, *_ in CASES}
    assert {key.name for key in unchangeable.KEYS} - tried == {"k3s.server_args.secrets-encryption-provider"}


def test_the_page_has_the_table_of_all_keys() -> None:
    page = unchangeable_page.PAGE.read_text()
    assert unchangeable_page.generated(page) == page, "make docs"


def test_what_follows_from_a_refused_key_is_not_refused_beside_it() -> None:
    found = refused(of(service_cidr="10.53.0.0/16", **server_args(cluster_domain="site.example")))
    named = [each.what.partition(" ")[0] for each in found]
    assert named == ["k3s.service_cidr", "k3s.server_args.cluster-domain"]


def test_an_issuer_is_added_before_the_first_one() -> None:
    issuers = ("https://new.example", ISSUER)
    arguments = [f"service-account-issuer={each}" for each in issuers]
    assert refused(of(**server_args(kube_apiserver_arg=arguments))) == []


@pytest.mark.parametrize(
    ("first", "then", "is_refused"),
    [("aescbc", "secretbox", False), ("secretbox", "aescbc", True), ("secretbox", "secretbox", False)],
)
def test_the_provider_of_secrets_changes_as_k3s_migrates(first: str, then: str, is_refused: bool) -> None:
    note = of(**server_args(secrets_encryption_provider=first))
    assert bool(refused(of(**server_args(secrets_encryption_provider=then)), note)) == is_refused


def test_objects_of_the_cluster_decide_where_the_note_was_written_after_a_wrong_update() -> None:
    wrong = {"cluster_cidr": "10.44.0.0/16", "service_cidr": "10.53.0.0/16"}
    assert refused(of(), note=of(**wrong)) == [], "the way back is open"
    named = [each.what.partition(" ")[0] for each in refused(of(**wrong), note=of(**wrong))]
    assert named == ["k3s.cluster_cidr", "k3s.service_cidr"]


def test_a_cluster_without_a_note_is_known_by_its_nodes() -> None:
    (found,) = refused(of(cluster_cidr="10.44.0.0/16"), note={})
    assert "was made with a network that contains 10.42.0.0/24, 10.42.1.0/24, the file says" in found.what
    assert refused(of(cluster_cidr="10.40.0.0/14"), note={}) == []


def test_the_note_decides_while_no_api_answers() -> None:
    (found,) = refused(of(cluster_cidr="10.44.0.0/16"), **NOTHING)
    assert (found.host, found.what.partition(" ")[0]) == ("server-1", "k3s.cluster_cidr")


def test_another_address_of_the_same_server_is_refused() -> None:
    (found,) = refused(of(), etcd_addresses={"server-1": "10.0.0.99", "server-2": "10.0.0.12"})
    assert found.host == "server-1"
    assert found.what.endswith("in etcd, 10.0.0.99, cannot be changed; the machine has 10.0.0.11")
