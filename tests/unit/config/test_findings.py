"""Every error names its path, its value and what is expected; all errors are reported at once."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest

from busbar.config import Bastion, ConfigError, load, section, warnings
from busbar.config.findings import show
from tests.support.clusters import H100_POOL, host, host_key, site

GONE = object()
SHARED = {"address": "192.0.2.100", "interface": "eth0"}
SERVER_2 = {**SHARED, "address": "192.0.2.12"}
BALANCER, API_SERVER = "hosts.load_balancers[0].address", "k3s.server_args.kube-apiserver-arg"
NONE, ONE, TWO = ({"load_balancers": count} for count in range(3))
OLD_NETWORK, SMALL = {"network_operator": {"version": "26.4.0"}}, {"validation": {"max_bytes": "1G"}}
SHA = {"sha256": {"amd64": "0" * 64}}


def findings(data: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data, **options)
    return [*map(str, caught.value.findings)]


def test_a_section_by_itself_reports_all_its_errors_below_its_path() -> None:
    with pytest.raises(ConfigError) as caught:
        section(Bastion, "bastion", {"address": "10.0.0.300", "host_key": host_key("a"), "usr": "jump"})
    assert [*map(str, caught.value.findings)] == [
        "bastion.address: '10.0.0.300' is not an IPv4/IPv6 address or a host name, without scheme, login, "
        "port and brackets",
        "bastion.usr: unknown key; did you mean 'user'?",
    ]


def edited(path: str, value: Any, **sections: Any) -> dict[str, Any]:
    """A valid site with one value put in, or taken out (GONE); the path is written as in a message."""
    data = copy.deepcopy(site(**sections))
    *steps, last = path.replace("[", ".[").split(".")
    place: Any = data
    for step in steps:
        place = place[int(step[1:-1])] if step.startswith("[") else place.setdefault(step, {})
    place[last] = value
    if value is GONE:
        del place[last]
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("hosts.workers[1].address", "10.0.0.300", "'10.0.0.300' is not an IPv4/IPv6 address or a host name"),
        ("hosts.workers[1].address", "10.0.0.3:22", "or a host name, without scheme, login, port and"),
        ("hosts.workers[1].address", "root@gpu-1", "or a host name, without scheme, login, port and"),
        ("hosts.workers[1].address", "0.0.0.0", "is not the address of one machine"),
        ("hosts.workers[1].address", "255.255.255.255", "is not the address of one machine"),
        ("hosts.workers[1].address", "ff02::1", "is not the address of one machine"),
        ("hosts.workers[1].address", "[2001:db8::1]", "port and brackets"),
        ("hosts.workers[0].name", "GPU_1", "'GPU_1' is not a DNS label"),
        ("hosts.workers[0].name", "gpu.example", "is not a DNS label"),
        ("hosts.servers[0].port", 70000, "70000 is too large: expected at most 65535"),
        ("hosts.servers[0].host_key", "ssh-rsa AAAAB3NzaC1yc2E=", "is not an ed25519 host key"),
        ("hosts.servers[0].host_key", "ssh-ed25519", "is not an ed25519 host key"),
        ("hosts.servers[0].host_key", "ssh-ed25519 AAAA...", "and 68 characters of base64"),
        ("hosts.servers[0].host_key", host_key("x")[:-8], "and 68 characters of base64"),
        ("hosts.servers[0].host_key", f"gpu-1 {host_key('x')}", "without a host name in front"),
        ("pools.h100.gpus", True, "True is true or false where a number is expected"),
        ("pools.h100.gpus", "eight", "'eight' is not a whole number"),
        ("pools.h100.gpus", 7.5, "7.5 is not a whole number"),
        ("pools.h100.rate_gbps", -1, "-1 is too small: expected more than 0"),
        ("pools.h100.rate_gbps", float("inf"), "inf is not a number"),
        ("pools.h100.link_layer", "roce", "'roce' is not one of 'infiniband' or 'ethernet'"),
        ("pools.h100.drain", "minor", "'minor' is not one of 'never', 'upgrade' or 'always'"),
        ("pools.h100.drain_timeout_seconds", 5, "5 is too small: expected at least 10"),
        ("pools.h100.pause_seconds", 7200, "7200 is too large: expected at most 3600"),
        ("pools.h100.flow_control", "fail", "'fail' is not one of 'warn', 'require' or 'ignore'"),
        ("nfs_server.folder", "srv", "is not an absolute path without spaces, such as /srv/busbar"),
        ("nfs_server.folder", "/srv/../etc", "is not a normalised path. Fix: /etc"),
        ("nfs_server.folder", "/etc/busbar", "is a folder of the system, or shared with others"),
        ("nfs_server.folder", "/var/lib/rancher", "is a folder of the system"),
        ("nfs_server.folder", "/srv", "or shared with others. Fix: use one such as /srv/busbar"),
        ("nfs_server.folder", "/", "is a folder of the system, or shared with others"),
        (
            "http_proxy.url",
            "http://proxy.example.com",
            "with its port, such as http://proxy.example.com:3128",
        ),
        ("http_proxy.url", "socks5://proxy:1080", "is not the URL of a proxy with its port"),
        ("http_proxy.url", "http://proxy:3128/%n", "is not the URL of a proxy with its port"),
        ("http_proxy.url", "http://me:pw@proxy:3128", "contains a login, which every user of a host could"),
        ("k3s.version", "1.35.6", "'1.35.6' is not a K3s release such as v1.35.6+k3s1"),
        ("k3s.cluster_cidr", "10.42.0.1/16", "has host bits set; did you mean 10.42.0.0/16?"),
        ("k3s.cluster_cidr", "ten", "is not a network in CIDR form"),
        ("k3s.cluster_cidr", "10.42.0.0/16,fd00::/56", "dual stack is not supported; give one"),
        ("k3s.base_url", "ftp://mirror/k3s", "is not an http(s) URL"),
        ("k3s.base_url", "https://me:pw@mirror/k3s", "contains a login"),
        ("validation.min_bytes", "5X", "'5X' is not a size"),
        ("validation.max_bytes", "8GB", "such as 512M; these are binary in nccl-tests, so there is no MB"),
        ("validation.transport", "rmda", "'rmda' is not one of 'gpudirect-rdma', 'rdma' or 'socket'"),
        ("validation.collectives", [], "got none, expected at least 1"),
        ("validation.shm_size", "64 GB", "'64 GB' is not a Kubernetes quantity"),
        ("k3s.snapshots.schedule", "0 25 * * *", "has '25' as the hour, expected 0 to 23"),
        ("k3s.snapshots.schedule", "60 * * * *", "has '60' as the minute, expected 0 to 59"),
        ("k3s.snapshots.schedule", "0 0 0 * *", "has '0' as the day of the month, expected 1 to 31"),
        ("k3s.snapshots.schedule", "0 0 * * 1,7", "has '7' as the day of the week, expected 0 to 6"),
        ("validation.tolerance", 1, "1 is too large: expected less than 1"),
        ("k3s", None, "is empty, expected keys with values"),
        ("pools", ["h100"], "is a list, expected keys with values"),
        ("hosts.servers", "server-1", "is the plain value 'server-1', expected a list"),
    ],
)
def test_an_invalid_value_is_named_with_its_path_and_what_is_expected(
    path: str, value: Any, message: str
) -> None:
    found = [finding for finding in findings(edited(path, value)) if finding.startswith(f"{path}: ")]
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("sections", "path", "value", "phrase"),
    [
        (TWO, "hosts.virtual_ip", GONE, "hosts.virtual_ip: missing: two load balancers share"),
        (ONE, "hosts.virtual_ip", SHARED, "hosts.virtual_ip: given with one load balancer"),
        (NONE | {"servers": 1}, "hosts.virtual_ip", SHARED, "got 1 server and no load balancer, expected at"),
        (TWO, "hosts.virtual_ip.address", "192.0.2.1", "is the address of hosts.load_balancers[0]"),
        (NONE, "hosts.virtual_ip", SERVER_2, "'192.0.2.12' is the address of hosts.servers[1]"),
        (ONE, BALANCER, "192.0.2.12", "hosts.servers[1].address: '192.0.2.12' is also the address of"),
        (TWO, BALANCER, "lb-1.example", "'lb-1.example': keepalived takes only IPv4"),
        (TWO, BALANCER, "2001:db8::7", "'2001:db8::7': keepalived takes only IPv4"),
        ({"servers": 2}, "name", "x", "hosts.servers: got 2, expected an odd number"),
        ({"servers": 4}, "name", "x", "hosts.servers: got 4, expected an odd number"),
        (NONE, "api_endpoint", {}, "api_endpoint.address: missing: IP address or host name."),
        (NONE, "api_endpoint.address", "10.44.0.1", "'10.44.0.0/14' contains api_endpoint '10.44.0.1', so"),
        (ONE, "hosts.workers[0].pool", "h10", "'h10' is not in pools; did you mean 'h100'?"),
        (ONE, "pools.h200", H100_POOL, "pools.h200: has no worker"),
        ({"workers": {"a": 1, "b": 2}}, "hosts.workers[2].pool", GONE, "there is more than one pool: a, b"),
        (ONE, "k3s.service_cidr", "fd00:43::/112", "k3s.cluster_cidr '10.44.0.0/14' are not of one family"),
        (ONE, "hosts.workers[1].address", "2001:db8::1", "and hosts.workers[1] '2001:db8::1' are not of one"),
        (ONE, "k3s.cluster_cidr", "192.0.0.0/16", "contains hosts.load_balancers[0] '192.0.2.1' and 3 more"),
        (ONE, "ssh", {}, "ssh: no SSH key configured. Fix: set ssh.key_file, or ssh.agent: true"),
        (ONE, "ssh", {"key_file": "id", "agent": True}, "more than one key configured: ssh.key_file"),
        (ONE, "k3s", {}, "k3s.version: the checksum of 'v1.35.6+k3s1' is unknown. Fix: save the"),
        (ONE, "k3s.images", [{"url": "http://m/a.tar"}], "k3s.images[0]: the checksum of 'http://m/a.tar'"),
        (ONE, "k3s.server_args.cluster-init", True, "cluster-init: busbar writes this key itself"),
        (ONE, "k3s.agent_args.node-label+", ["a=b"], "node-label+: busbar writes this key itself. Fix: use"),
        (ONE, API_SERVER, "--authentication-config=/etc/a", "'--authentication-config=/etc/a' contradicts"),
        (ONE, API_SERVER, ["anonymous-auth=true"], "'anonymous-auth=true' contradicts"),
        (ONE, API_SERVER, ["--oidc-client-id=k3s"], "'--oidc-client-id=k3s': the API server does not start"),
        (OLD_NETWORK, "gpu_operator.version", "v26.3.2", "does not support GPUDirect RDMA together with Net"),
        (ONE, "validation.accept_warnings", ["slow"], "'slow' is too short: expected at least 8 characters"),
        (ONE, "validation.profile", "h100-ib-8x4000", "is not a profile; did you mean 'h100-ib-8x400'?"),
        (ONE, "validation.expected_by_collective.all_gather", 350, "is not in validation.collectives"),
        (SMALL, "validation.min_bytes", "2G", "2147483648 is more than validation.max_bytes"),
        (ONE, "hosts.servers[0].host_key", GONE, "missing: The host's ed25519 host key: `ssh-keyscan"),
    ],
)
def test_what_does_not_fit_the_rest_is_refused_with_its_path_and_the_reason(
    sections: dict[str, Any], path: str, value: Any, phrase: str
) -> None:
    [found] = findings(edited(path, value, **sections))
    assert phrase in found


def test_the_login_of_a_url_is_not_shown() -> None:
    [found] = findings(edited("http_proxy", {"url": "http://me:sesame@proxy:3128"}))
    assert found.startswith("http_proxy.url: 'http://[login]@proxy:3128' contains a login")


@pytest.mark.parametrize(
    "value", ["a.example,b.example", "10.0.0.0/33", "*", "*.a.example", "http://a.example"]
)
def test_what_no_proxy_does_not_take_is_refused(value: str) -> None:
    [found] = findings(edited("http_proxy", {"url": "http://proxy:3128", "no_proxy": [value]}))
    assert found.startswith(f"http_proxy.no_proxy[0]: {value!r} is not a name, a domain such as .example.com")


def test_all_errors_of_single_values_are_reported_at_once() -> None:
    data = site(servers=2)
    del data["name"]
    data["hosts"]["workers"][1]["address"] = "10.0.0.300"
    data["k3s"] = {"version": "v1.31.1+k3s1", "images": "none", "server_args": {"token": "x"}}
    paths = sorted(finding.split(": ")[0] for finding in findings(data))
    assert paths == [
        "hosts.servers",
        "hosts.workers[1].address",
        "k3s.images",
        "k3s.server_args.token",
        "k3s.version",
        "name",
    ]


def test_all_errors_of_several_values_are_reported_at_once() -> None:
    data = site(load_balancers=2, ssh={})
    del data["hosts"]["virtual_ip"]
    data["hosts"]["workers"][0]["name"] = "server-1"
    data["k3s"] = {"cluster_cidr": "192.0.0.0/16"}
    paths = sorted(finding.split(": ")[0] for finding in findings(data))
    assert paths == [
        "hosts.virtual_ip",
        "hosts.workers[0].name",
        "k3s.cluster_cidr",
        "k3s.version",
        "ssh",
    ]


def test_many_errors_of_many_hosts_are_found_within_a_second() -> None:
    data = site(workers={f"pool-{i}": 44 for i in range(10)})
    for worker in data["hosts"]["workers"]:
        worker |= {"name": "gpu-1", "address": "192.0.2.1", "pool": "pool-1"}
    started = time.process_time()
    assert len(findings(data)) > 880
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("gpu_operator.values", {"driver": {"licensing": {"apiKey": "x"}}}),
        ("gpu_operator.values", {"driver": {"env": [{"name": "A", "value": f"nvapi-{'a' * 40}"}]}}),
        ("validation.env", {"A": f"hf_{'b' * 34}"}),
    ],
)
def test_keys_of_registries_and_hubs_are_refused_wherever_they_are(path: str, value: Any) -> None:
    [found] = findings(edited(path, value))
    assert "is a secret inside busbar:cluster. Fix: remove it. " in found
    assert "aaaa" not in found and "bbbb" not in found


def test_the_text_of_the_error_has_one_line_for_each_finding() -> None:
    with pytest.raises(ConfigError) as caught:
        load(edited("hosts.workers[1].address", "10.0.0.300"))
    assert str(caught.value) == (
        "hosts.workers[1].address: '10.0.0.300' is not an IPv4/IPv6 address or a host name, without scheme, "
        "login, port and brackets"
    )


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("hosts.sevrers", "did you mean 'servers'?"),
        ("validation.expected_busbw", "did you mean 'expected_busbw_gbps'?"),
        ("pools.h100.min-disk-gb", "did you mean 'min_disk_gb'?"),
        ("zzz", "expected one of: name, ssh, pools, validation"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(path: str, hint: str) -> None:
    [found] = findings(edited(path, 1))
    assert found.startswith(f"{path}: unknown key; {hint}")


def test_a_configuration_that_is_not_an_object_is_refused() -> None:
    assert findings("dev") == ["busbar:cluster: is not an object. Fix: see Pulumi.h100.example.yaml"]


def test_a_name_and_an_address_belong_to_one_host_only() -> None:
    data = site()
    data["hosts"]["workers"].append(host("gpu-1", "192.0.2.11", pool="h100"))
    assert findings(data) == [
        "hosts.workers[2].name: 'gpu-1' is also the name of hosts.workers[0]. Fix: rename one",
        "hosts.workers[2].address: '192.0.2.11' is also the address of hosts.servers[0]. "
        "Fix: list each machine once",
    ]


@pytest.mark.parametrize(
    ("one", "other"), [("gpu-1.example.com", "GPU-1.example.com"), ("2001:db8::1", "2001:DB8:0::1")]
)
def test_an_address_in_another_spelling_is_the_same(one: str, other: str) -> None:
    data = site(load_balancers=2)
    data["hosts"]["nfs_server"] = host("nfs-1", one)
    data["hosts"]["workers"][1]["address"] = other
    assert [each.partition(". Fix: ")[0] for each in findings(data) if " the address of " in each] == [
        f"hosts.workers[1].address: {one!r} is also the address of hosts.nfs_server",
    ]


def test_without_load_balancers_an_endpoint_of_the_site_is_needed() -> None:
    [found] = findings(site(load_balancers=0))
    assert found.startswith("hosts.load_balancers: missing: the Kubernetes API needs an address. Fix: list")
    del (data := site(load_balancers=0, api_endpoint={"address": "10.9.8.7"}))["hosts"]["load_balancers"]
    load(data)


def test_an_endpoint_stands_in_place_of_load_balancers() -> None:
    assert findings(site(load_balancers=2, api_endpoint={"address": "10.9.8.7"})) == [
        "api_endpoint: given together with hosts.load_balancers. Fix: remove one of the two",
        "api_endpoint: given together with hosts.virtual_ip. Fix: remove one of the two",
    ]


def sharing(servers: int, address: str = "192.0.2.100") -> dict[str, Any]:
    """A site whose servers share an address."""
    return edited("hosts.virtual_ip", {**SHARED, "address": address}, load_balancers=0, servers=servers)


def test_three_servers_or_more_may_share_an_address_without_load_balancers() -> None:
    assert not [line for line in map(str, warnings(load(sharing(3)))) if "virtual_ip" in line]
    load(sharing(5))


def test_the_address_of_servers_is_of_their_family() -> None:
    found = findings(sharing(3, "2001:db8::1"))
    assert [line.partition(":")[0] for line in found] == [f"hosts.servers[{n}].address" for n in range(3)]


def test_a_pool_of_which_nothing_is_left_to_measure_is_refused() -> None:
    data = site(workers={"a": 1, "b": 2})
    for worker in data["hosts"]["workers"][:2]:
        worker["quarantine"] = "fan"
    [found] = findings(data)
    assert found.startswith("hosts.workers[0].quarantine: all workers of pool a are in quarantine")
    load(data | {"validation": {"enabled": False}}, root=Path())


def test_networks_may_not_overlap_each_other_or_the_hosts() -> None:
    data = edited("k3s.service_cidr", "10.44.128.0/17")
    data["hosts"]["workers"][0]["address"] = "10.44.0.9"
    assert [finding.split(": ")[0] for finding in findings(data)] == ["k3s.service_cidr", "k3s.cluster_cidr"]


def test_one_load_balancer_may_have_a_name() -> None:
    data = site()
    data["hosts"]["load_balancers"][0]["address"] = "lb.example"
    assert load(data).hosts.load_balancers[0].address == "lb.example"


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
        "k3s.images[1].url: 'http://mirror/b.zip' is not a .tar, .tar.gz, .tgz or .tar.zst archive",
    ]
    assert findings(with_images("a.tar", "sub/a.tar")) == [
        "k3s.images: the file name 'a.tar' is there twice, and hosts store archives by it. Fix: rename one"
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


def test_a_line_of_a_checksums_file_that_is_none_is_named_and_shown_up_to_80_characters(
    tmp_path: Path,
) -> None:
    (tmp_path / "sums.txt").write_text(f"# of release 1\n\n{'A' * 64} *bin/k3s\n{'x' * 100}\n")
    assert findings(site(k3s={"checksums_file": "sums.txt"}), root=tmp_path) == [
        f"k3s.checksums_file: line 4 of 'sums.txt' is not in the format of sha256sum: '{'x' * 80}'"
    ]


def test_the_leading_v_of_a_chart_version_must_be_as_its_repository_has_it() -> None:
    found = findings(site(gpu_operator={"version": "26.7.0"}, network_operator={"version": "v26.7.0"}))
    assert [finding.split(": ")[0] for finding in found] == [
        "gpu_operator.version",
        "network_operator.version",
    ]


@pytest.mark.parametrize("schedule", ["0 */12 * * *", "5,35 0-6/2 1 JAN-mar Mon", "? 0 * * ?", "@every 6h"])
def test_a_schedule_that_k3s_reads_is_accepted(schedule: str) -> None:
    assert load(edited("k3s.snapshots.schedule", schedule)).k3s.snapshots.schedule == schedule


@pytest.mark.parametrize(
    ("registries", "finding"),
    [
        ({"mirror": {}}, "k3s.registries.mirror: unknown key; did you mean 'mirrors'?"),
        (
            {"mirrors": {"docker.io": {"endpoint": "http://m"}}},
            "k3s.registries.mirrors.docker.io.endpoint: is the plain value 'http://m', expected a list",
        ),
        (
            {"mirrors": {"quay.io": {"endpoints": []}}},
            "k3s.registries.mirrors.quay.io.endpoints: unknown key; did you mean 'endpoint'?",
        ),
        (
            {"mirrors": {"https://docker.io/": {"endpoint": ["https://m.example"]}}},
            "k3s.registries.mirrors: 'https://docker.io/' is a URL. Fix: docker.io",
        ),
        (
            {"configs": {"m.example": {"tls": {"cafile": "/etc/ca.pem"}}}},
            "k3s.registries.configs.m.example.tls.cafile: unknown key; did you mean 'ca_file'?",
        ),
    ],
)
def test_registries_that_k3s_does_not_read_are_refused(registries: Any, finding: str) -> None:
    assert findings(edited("k3s.registries", registries)) == [finding]


def test_registries_are_passed_on_as_they_are() -> None:
    given = {
        "mirrors": {"docker.io": None, "*": {"endpoint": ["m.example"], "rewrite": {"^(.*)$": "p/$1"}}},
        "configs": {"m.example": {"tls": {"insecure_skip_verify": True}}},
    }
    assert load(edited("k3s.registries", given)).k3s.registries == given


def test_what_a_cluster_cannot_do_without_is_a_warning() -> None:
    found = [*map(str, warnings(load(edited("k3s.disable", ["traefik", "coredns"]))))]
    assert [text for text in found if text.startswith("k3s.disable[1]: without coredns the launcher of the")]
    found = [*map(str, warnings(load(edited("k3s.flannel_backend", "none"))))]
    assert [text for text in found if text.startswith("k3s.flannel_backend: none: no Node becomes Ready")]


@pytest.mark.parametrize(
    ("image", "is_fixed"),
    [
        ("r.example:5000/nccl-tests", False),
        ("nccl-tests:latest", False),
        ("r.example:5000/nccl-tests:1", True),
        (f"r.example/nccl-tests@sha256:{'0' * 64}", True),
    ],
)
def test_an_image_that_may_be_another_tomorrow_is_a_warning(image: str, is_fixed: bool) -> None:
    for path in ("validation.image", "mpi_operator.image"):
        found = [
            text for text in map(str, warnings(load(edited(path, image)))) if text.startswith(f"{path}: ")
        ]
        assert found == (
            []
            if is_fixed
            else [
                f"{path}: {image!r} has no fixed tag: another image may run the next time. Fix: give its "
                "tag or its digest"
            ]
        )


@pytest.mark.parametrize(
    ("gpu_operator", "left_out_by"),
    [
        ({"enabled": False}, "gpu_operator.enabled"),
        ({"values": {"nfd": {"enabled": False}}}, "gpu_operator.values.nfd.enabled"),
    ],
)
def test_a_network_operator_without_node_feature_discovery_is_refused(
    gpu_operator: dict[str, Any], left_out_by: str
) -> None:
    [found] = findings(site(gpu_operator=gpu_operator))
    assert found.startswith("network_operator.values.nfd.enabled: missing: ")
    assert f"{left_out_by}: false leaves out" in found
    assert load(site(gpu_operator=gpu_operator, network_operator={"enabled": False}))
    for source in (True, False):
        assert load(
            site(gpu_operator=gpu_operator, network_operator={"values": {"nfd": {"enabled": source}}})
        )


def test_what_k3s_does_not_bring_may_be_a_manifest_of_the_site() -> None:
    found = [*map(str, warnings(load(edited("k3s.disable", ["traefik", "our-storage"]))))]
    assert [text for text in found if text.startswith("k3s.disable[1]: 'our-storage' is not a component")]


def test_more_ranks_than_gpus_are_refused() -> None:
    [found] = findings(site(validation={"slots_per_worker": 9}))
    assert found == "validation.slots_per_worker: 9 is more than the 8 GPUs of pools.h100"
    assert load(site(validation={"slots_per_worker": 8})).validation.slots_per_worker == 8


def test_a_long_value_is_cut_to_the_limit_and_stays_quoted() -> None:
    assert show("x" * 18, limit=20) == f"'{'x' * 18}'"
    cut = show("x" * 19, limit=20)
    assert (cut, len(cut)) == (f"'{'x' * 15}...'", 20)
    assert show([1] * 20, limit=20) == "[1, 1, 1, 1, 1, ..."


@pytest.mark.parametrize(
    ("section", "own", "finding"),
    [
        (None, True, "nfs_server: missing, and hosts.nfs_server is given"),
        ({"folder": "/srv/x"}, False, "nfs_server.host: missing. Fix: name a load balancer or server"),
        ({"folder": "/srv/x", "host": "lb-1"}, True, "nfs_server.host: given together with hosts.nfs_server"),
        ({"folder": "/srv/x", "host": "lb-2"}, False, "nfs_server.host: 'lb-2' is not in hosts"),
        ({"folder": "/srv/x", "host": "gpu-1"}, False, "nfs_server.host: 'gpu-1' is a worker"),
    ],
)
def test_the_nfs_server_is_one_host_and_no_worker(section: Any, own: bool, finding: str) -> None:
    data = site(**({"nfs_server": section} if section else {}))
    if own:
        data["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.50")
    (found,) = findings(data)
    assert found.startswith(finding)
    for worker in data["hosts"]["workers"]:
        del worker["pool"]
    assert findings(data) == [found], "of the only pool"


def test_the_nfs_server_has_a_name_and_an_address_of_its_own() -> None:
    data = site(nfs_server={"folder": "/srv/x"})
    data["hosts"]["nfs_server"] = host("gpu-1", "192.0.2.11")
    assert sorted(each.partition(":")[0] for each in findings(data)) == [
        "hosts.servers[0].address",
        "hosts.workers[0].name",
    ]
