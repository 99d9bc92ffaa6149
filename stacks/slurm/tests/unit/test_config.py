"""The configuration: what is accepted, and what each error says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import ConfigError
from stacks.slurm.package import config
from stacks.slurm.package.config import stack_schema
from stacks.slurm.tests.support import compute, configured, host, slurm


def findings(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        config.load(configured(**changes))
    return [*map(str, refused.value.findings)]


def test_every_pool_has_a_partition_of_its_name_and_the_first_is_the_default() -> None:
    pools = {name: configured()["pools"]["h100"] for name in ("a", "b")}
    made = slurm(pools=pools, hosts=compute({"pool": "a"}, {"pool": "b"}))
    defaults = {name: each.default for name, each in made.partitions_or_default.items()}
    assert defaults == {"a": True, "b": False}
    assert [host.name for host in made.workers_of("b")] == ["gpu-2"]


def test_a_pool_is_measured_in_the_first_partition_that_has_it() -> None:
    made = slurm(partitions={"debug": {"pools": ["h100"]}, "batch": {"pools": ["h100"], "default": True}})
    assert made.partition_of("h100") == "debug"


def test_a_job_waits_for_busy_nodes_only_where_that_is_configured() -> None:
    assert slurm().validation.pending_seconds == 100
    waits = {"when_busy": "wait", "busy_deadline_seconds": 900}
    assert slurm(validation=waits).validation.pending_seconds == 900


POOL = configured()["pools"]["h100"]
# Each text, and the change that gives it. `compute` and `pool` are merged over the hosts and the pool h100.
ERRORS = yaml.safe_load(r"""
- ["pools.h100.validation.image: is for Kubernetes, and Slurm has no use for it. Fix: remove it;
    validation.image names what pyxis starts", {pool: {validation: {image: "a/b:1"}}}]
- ["pools.h100.validation.topology_file: is for Kubernetes, and Slurm has no use for it. Fix: remove it;
    set env.NCCL_TOPO_FILE to a file that all compute hosts have",
   {pool: {validation: {topology_file: x.xml}}}]
- ["validation.when_busy: 'keep' is not one of 'fail' or 'wait'", {validation: {when_busy: keep}}]
- ["home.shared: given together with home.nfs, whose folder all hosts mount. Fix: remove one",
   {home: {nfs: {folder: /srv/home}, shared: true}}]
- ["home.path: given together with home.nfs, whose folder all hosts mount. Fix: remove one",
   {home: {nfs: {folder: /srv/home}, path: /srv/home}}]
- ["home.nfs.host: 'gpu-1' is none of: ctl, login. Fix: name one of these",
   {home: {nfs: {folder: /srv/home, host: gpu-1}}}]
- ["home.nfs.folder: '/home' is a folder of the system, or shared", {home: {nfs: {folder: /home}}}]
- ["home.nfs.squash: ", {home: {nfs: {folder: /srv/home, squash: all}}}]
- ["home.path: '/home/../etc' is not an absolute path", {home: {path: /home/../etc}}]
- ["health_check.interval_seconds: ", {health_check: {interval_seconds: 65536}}]
- ["parameters.SlurmUser: busbar writes it itself. Fix: remove it", {parameters: {SlurmUser: root}}]
- ["parameters.MaxJobCount: '5 #' is not a value without blanks, quotes and #",
   {parameters: {MaxJobCount: "5 #"}}]
- ["parameters.maxjobcount: is MaxJobCount once more, as Slurm reads it. Fix: keep one",
   {parameters: {MaxJobCount: "5", maxjobcount: "6"}}]
- ["packages: '/srv/../root' is not `os` or the absolute path", {packages: /srv/../root}]
- ["packages: 'slurm' is not `os` or the absolute path of a folder", {packages: slurm}]
- ["validation.image: '--help' is not an image or a file", {validation: {image: --help}}]
- ["partitions.gpu.max_time: '99:99:99' is not `infinite` or a time as 7-00:00:00",
   {partitions: {gpu: {pools: [h100], default: true, max_time: "99:99:99"}}}]
- ["partitions.gpu.max_time: '00:29:59' is less than the 1800 s of the measurement of pool h100",
   {partitions: {gpu: {pools: [h100], default: true, max_time: "00:29:59"}}}]
- ["partitions: none is the default, so a job that names no partition is refused. Fix: set default",
   {partitions: {gpu: {pools: [h100]}}}]
- ["partitions.gpu.pools[0]: 'h10' is not in pools; did you mean 'h100'?",
   {partitions: {gpu: {pools: [h10]}}}]
- ["partitions.gpu.pools[1]: 'h100' is listed twice", {partitions: {gpu: {pools: [h100, h100]}}}]
- ["partitions.default: DEFAULT has a meaning of its own in slurm.conf. Fix: rename it",
   {partitions: {default: {pools: [h100]}}}]
- ["partitions.b.default: there is another default partition. Fix: keep one",
   {partitions: {a: {pools: [h100], default: true}, b: {pools: [h100], default: true}}}]
- ["users.accounts.root: is an account of the hosts, which busbar would change or delete",
   {users: {accounts: {root: {uid: 2000}}}}]
- ["users.accounts.nobody: is an account of the hosts", {users: {accounts: {nobody: {uid: 2000}}}}]
- ["users.accounts.admin: is an account of the hosts",
   {ssh: {agent: true, user: admin}, users: {accounts: {admin: {uid: 2000}}}}]
- ["users.accounts.ada.uid: 64030 is a uid of the operating system", {users: {accounts: {ada: {uid: 64030}}}}]
- ["users.accounts.ada.uid: 2147483648 is too large", {users: {accounts: {ada: {uid: 2147483648}}}}]
- ["users.accounts.bob.uid: 5001 is also that of ada. Fix: give each its own",
   {users: {accounts: {ada: {uid: 5001}, bob: {uid: 5001}}}}]
- ["users.accounts.ada.ssh_keys[0]: 'ssh-ed25519 AAAA x\\ny' is not a public key of OpenSSH",
   {users: {accounts: {ada: {uid: 5001, ssh_keys: ["ssh-ed25519 AAAA x\ny"]}}}}]
- ["users.accounts.a b: 'a b' is not a user name", {users: {accounts: {a b: {uid: 5001}}}}]
- ["busbar-slurm:sshPrivateKey --stack STACK < KEYFILE`", {ssh: {}}]
- ["hosts.compute[0].topology.rail_group: 'fabric' is the switch above all others. Fix: rename it",
   {compute: [{topology: {rail_group: fabric}}, {topology: {rail_group: fabric}}]}]
- ["hosts.compute[1].topology.rail_group: missing: 1 of 2 workers of pool h100 have it",
   {compute: [{topology: {rail_group: a}}, {}]}]
- ["hosts.compute[1].topology.block: rail_group a is in another block on another host",
   {compute: [{topology: {rail_group: a, block: x}}, {topology: {rail_group: a, block: y}}]}]
- ["hosts.compute[0].topology.block: 'a' is also a rail_group. Fix: rename one",
   {compute: [{topology: {rail_group: a, block: a}}, {topology: {rail_group: a, block: a}}]}]
- ["hosts.compute[0].quarantine: all workers of pool h100 are in quarantine",
   {compute: [{quarantine: ECC}, {quarantine: ECC}]}]
""")
HOSTS = configured()["hosts"]
OF_HOSTS: list[tuple[str, dict[str, Any]]] = [
    (
        "hosts.login[0].address: '10.0.0.1' is also the address of hosts.controller",
        {"login": [host("login", 1)]},
    ),
    (
        "hosts.compute[0].name: 'default' DEFAULT has a meaning of its own in slurm.conf",
        {"compute": [host("default", 9)]},
    ),
]


@pytest.mark.parametrize(
    ("expected", "changes"), [*ERRORS, *((text, {"hosts": {**HOSTS, **given}}) for text, given in OF_HOSTS)]
)
def test_an_error_names_the_path_and_what_to_do(expected: str, changes: dict[str, Any]) -> None:
    given = dict(changes)
    if "compute" in given:
        given["hosts"] = compute(*given.pop("compute"))
    if "pool" in given:
        given["pools"] = {"h100": {**POOL, **given.pop("pool")}}
    assert any(expected in each for each in findings(**given)), findings(**given)


def test_every_key_without_an_effect_on_slurm_is_refused_with_its_path_and_a_fix() -> None:
    pool = {"min_disk_gb": 9999, "flow_control": "require", "quarantine_cordon": True, "quarantine_limit": 2}
    found = findings(pools={"h100": {**POOL, **pool}}, validation={"diagnose": {"when": "on_failure"}})
    paths = [*(f"pools.h100.{key}" for key in pool), "validation.diagnose"]
    assert [each.partition(": ")[0] for each in found] == paths
    assert all("Slurm has no use for it. Fix: remove it" in each for each in found)


def test_a_pool_in_no_partition_is_named() -> None:
    pools = {"a": POOL, "b": POOL}
    partitions = {"gpu": {"pools": ["a"], "default": True}}
    found = findings(pools=pools, hosts=compute({"pool": "a"}, {"pool": "b"}), partitions=partitions)
    assert found == ["pools.b: is in no partition, so no job can use it. Fix: add it to partitions"]


def test_the_controller_exports_homes_unless_a_login_host_is_named() -> None:
    home = {"folder": "/srv/home"}
    assert slurm().home_host is None and slurm().home.folder == "/home"
    on_controller, on_login = slurm(home={"nfs": home}), slurm(home={"nfs": {**home, "host": "login"}})
    assert (on_controller.home_host, on_login.home_host) == ("ctl", "login")
    assert on_controller.home.folder == "/srv/home"


def test_a_stack_file_without_its_key_or_with_a_plain_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text("config:\n  busbar-slurm:sshPrivateKey: abc\n  busbar-slurm:slrum: {}\n")
    with pytest.raises(ConfigError) as refused:
        config.read(path)
    text = str(refused.value)
    assert "busbar-slurm:slrum: unknown key; did you mean 'slurm'?" in text
    assert "busbar-slurm:sshPrivateKey" in text and "abc" not in text
    assert "busbar-slurm:slurm: missing" in text


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssh\.key_file: 'none' cannot be read"):
        config.load(configured(ssh={"key_file": "none"}), root=tmp_path)


def test_editors_are_offered_what_slurm_has_and_nothing_of_kubernetes() -> None:
    definitions = stack_schema()["$defs"]
    offered = {key for each in definitions.values() for key in each.get("properties", {})}
    assert {"gpus", "rails", "collectives"} <= offered
    for kubernetes in ("taints", "min_disk_gb", "topology_file", "namespace", "runtime_class", "diagnose"):
        assert kubernetes not in offered
