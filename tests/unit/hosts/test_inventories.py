"""`busbar hosts import`: inventories of others become `hosts:`, and what has no place there is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from busbar import capability
from busbar.config import load
from busbar.config.stackfile import hosts_schema
from busbar.hosts import inventories
from tests.support.cli import busbar, command
from tests.support.clusters import host_key, site

# ansible-inventory 2.19 prints this for inventories as these projects show them.
PRINTED = json.loads(Path(__file__).with_name("ansible_inventories.json").read_text())
DEEPOPS = json.dumps(PRINTED["deepops"])
SLURM = {"slurm-master": "controller", "slurm-node": "compute[]"}


def hosts(text: str, table: Any = inventories.GROUPS) -> dict[str, Any]:
    section, _ = inventories.section(inventories.parse(text), table)
    found: dict[str, Any] = yaml.safe_load(section)["hosts"]
    return found


def notes(text: str, table: Any = inventories.GROUPS) -> list[str]:
    found = inventories.parse(text)
    return [*inventories.section(found, table)[1], *inventories.unknown(found, [table])]


def inventory(groups: dict[str, Any], **variables: dict[str, Any]) -> str:
    """As `ansible-inventory --list` prints it; a group is its hosts, or all that is said of it."""
    told = {name: {"hosts": each} if isinstance(each, list) else each for name, each in groups.items()}
    return json.dumps({"_meta": {"hostvars": variables}, **told})


def run(*words: str, stdin: str | None = None) -> Any:
    return busbar("hosts", "import", *words, stdin=stdin)


def test_an_inventory_of_deepops_becomes_servers_and_workers() -> None:
    assert hosts(DEEPOPS) == {
        # It is in kube-node too.
        "servers": [{"name": "mgmt01", "address": "10.0.0.1", "user": "nvidia"}],
        "workers": [
            {"name": "dgx01", "address": "10.0.0.11", "user": "nvidia", "port": 2222},
            {"name": "dgx02", "address": "dgx02", "user": "nvidia", "port": 2222},
            {"name": "dgx03", "address": "dgx03", "user": "nvidia", "port": 2222},
        ],
    }


def test_an_inventory_of_k3s_ansible_becomes_servers_and_workers_whose_names_are_missing() -> None:
    found = hosts(json.dumps(PRINTED["k3s-ansible"]))
    login = {"user": "debian", "port": 22}
    assert {key: [each["address"] for each in found[key]] for key in found} == {
        "servers": ["192.16.35.11"],
        "workers": ["192.16.35.12", "192.16.35.13"],
    }
    assert all(login.items() <= each.items() for key in found for each in found[key])


def test_an_inventory_of_kubespray_becomes_servers_and_workers() -> None:
    assert hosts(json.dumps(PRINTED["kubespray"])) == {
        "servers": [{"name": "node1", "address": "95.54.0.12"}],
        "workers": [{"name": "node4", "address": "95.54.0.15"}, {"name": "node5", "address": "node5"}],
    }


def test_a_group_has_the_hosts_of_its_children_and_children_that_contain_each_other_end() -> None:
    text = inventory({"kube_node": {"children": ["dgx"]}, "dgx": {"hosts": ["a"], "children": ["kube_node"]}})
    assert hosts(text) == {"workers": [{"name": "a", "address": "a"}]}


def test_a_host_of_two_roles_is_a_server_whatever_the_order_of_the_groups() -> None:
    text = inventory({"agent": ["a", "b"], "server": ["a"]})
    assert [*hosts(text)] == ["servers", "workers"]
    assert notes(text)[0] == "a is also in the group agent: a host has one role, servers[]"


def test_what_has_no_place_in_the_section_is_named_without_its_value() -> None:
    assert notes(DEEPOPS) == [
        "mgmt01 is also in the group kube-node: a host has one role, servers[]",
        "group etcd: not known (mgmt01)",
        "group k8s-cluster: not known (mgmt01, dgx01, dgx02 and 1 more)",
        "group slurm-master: not known (login01)",
        "nfs01.example.com, login01: in no known group, not imported",
        "variables that are not known: ansible_ssh_common_args; not imported",
    ]
    assert not any("shown" in note for note in notes(DEEPOPS))


@pytest.mark.parametrize(
    "value", ["{{ inventory_hostname }}.local", {"__ansible_vault": "sesame"}, ["10.0.0.1"]]
)
def test_a_value_that_only_ansible_can_compute_is_missing_and_not_guessed(value: Any) -> None:
    text = inventory({"agent": ["gpu-1"]}, **{"gpu-1": {"ansible_host": value, "ansible_port": 2222}})
    section, _ = inventories.section(inventories.parse(text), inventories.GROUPS)
    assert yaml.safe_load(section)["hosts"]["workers"] == [{"name": "gpu-1", "port": 2222}]
    assert "# missing: address, which is computed in the inventory" in section and "sesame" not in section


def test_a_capability_brings_groups_of_its_own_and_one_host_where_it_takes_one() -> None:
    text = inventory({"slurm_master": ["a", "b"], "slurm-node": ["c"]}, a={"ansible_host": "10.0.0.1"})
    assert hosts(text, SLURM) == {
        "controller": {"name": "a", "address": "10.0.0.1"},
        "compute": [{"name": "c", "address": "c"}],
    }
    assert notes(text, SLURM) == ["b of the group slurm_master: controller is one host, a"]


def test_what_is_missing_is_a_comment_and_with_it_the_section_is_valid() -> None:
    section, _ = inventories.section(inventories.parse(DEEPOPS), inventories.GROUPS, ["load_balancers"])
    assert section.splitlines()[1] == "  # missing: load_balancers"
    assert section.count("# missing: host_key") == 4
    filled = section.replace("# missing: host_key", f"host_key: {host_key('x')}")
    data = site(hosts={**site()["hosts"], **yaml.safe_load(filled)["hosts"]})
    assert len(load(data).hosts.workers) == 3


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("GPU01.example.com", "name: gpu01   # GPU01.example.com in the inventory"),
        ("gpu_1", "name: gpu_1   # missing: a name of lower-case letters, digits and -"),
        ("007", "name: '007'\n"),
        ("10.0.0.7", "name: 10.0.0.7   # missing: a name of lower-case letters, digits and -"),
    ],
)
def test_a_name_that_no_node_may_have_is_told(written: str, shown: str) -> None:
    section, _ = inventories.section(
        inventories.parse(inventory({"kube-node": [written]})), inventories.GROUPS
    )
    assert shown in section
    assert yaml.safe_load(section)["hosts"]["workers"][0]["address"] == written


@pytest.mark.parametrize("text", ["[kube-node]\ngpu-1 a=sesame\n", "---\nagent:\n  hosts:\n    gpu-1:\n", ""])
def test_a_raw_inventory_is_answered_with_the_command_to_type(text: str, tmp_path: Path) -> None:
    path = tmp_path / "my inventory"
    path.write_text(text)
    for words, stdin, name in (([str(path)], None, f"'{path}'"), (["-"], text, "INVENTORY")):
        done = run(*words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (64, "")
        command = f"ansible-inventory -i {name} --list | busbar hosts import -"
        assert command in done.stderr and "sesame" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"workers": {"value": ["sesame"]}}', "has no `_meta`, as `ansible-inventory --list` prints it"),
        ('{"workers":\n', "line 2: is not JSON"),
        (
            '{"_meta": {"hostvars": {}}, "agent": "sesame"}',
            "agent: is not a group of `ansible-inventory --list`",
        ),
    ],
)
def test_a_file_of_another_form_is_refused_without_its_text(text: str, told: str) -> None:
    done = run("-", stdin=text)
    assert (done.exit_code, done.stdout) == (64, "")
    assert told in done.stderr and "sesame" not in done.stderr


def test_a_name_of_digits_stays_a_text() -> None:
    text = inventory({"kube-node": ["007"]}, **{"007": {"ansible_port": "22", "ansible_user": True}})
    assert hosts(text)["workers"] == [{"name": "007", "address": "007", "user": "True", "port": 22}]


def test_the_command_prints_the_sections_of_the_core_and_of_each_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = [SimpleNamespace(name="slurm", host_groups=SLURM)]
    command()
    monkeypatch.setattr(capability, "capabilities", lambda: doors)
    (tmp_path / "inventory").write_text(DEEPOPS)
    done = busbar("hosts", "import", str(tmp_path / "inventory"))
    assert done.exit_code == 0, done.output
    core, slurm = yaml.safe_load_all(done.stdout)
    assert [*core["hosts"]] == ["servers", "workers"]
    assert slurm == {"hosts": {"controller": {"name": "login01", "address": "10.0.0.5", "user": "ubuntu"}}}
    assert "# of stacks/slurm" in done.stdout and "# missing: load_balancers" in done.stdout
    assert "variables that are not known: ansible_ssh_common_args, ansible_become_pass" in done.stderr
    assert "mgmt01 is also in the group kube-node: a host has one role" in done.stderr
    assert "group slurm-master" not in done.stderr


def test_an_inventory_without_a_known_group_fails_and_a_missing_file_is_bad_usage(tmp_path: Path) -> None:
    done = run("-", stdin=inventory({"web": ["a"]}))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no hosts in a known group, expected one of: agent, kube-control-plane, kube-master" in done.stderr
    assert run(str(tmp_path / "none")).exit_code == 64


def printed_list(text: str) -> Any:
    """The list that the command prints, which fits the schema; None where a host has no place in one."""
    done = run("-", "--json", stdin=text)
    if done.exit_code:
        assert (done.exit_code, done.stdout) == (64, "") and "hosts[" in done.stderr
        return None
    listed = json.loads(done.stdout)
    jsonschema.validate(listed, hosts_schema())
    return listed


def test_an_inventory_becomes_a_list_by_role() -> None:
    dgx = {"role": "worker", "user": "nvidia", "port": 2222}
    assert printed_list(DEEPOPS) == {
        "version": 1,
        "hosts": [
            {"name": "mgmt01", "role": "server", "address": "10.0.0.1", "user": "nvidia"},
            {"name": "dgx01", "address": "10.0.0.11", **dgx},
            {"name": "dgx02", "address": "dgx02", **dgx},
            {"name": "dgx03", "address": "dgx03", **dgx},
        ],
    }
    assert printed_list(json.dumps(PRINTED["kubespray"])) is not None
    assert printed_list(json.dumps(PRINTED["k3s-ansible"])) is None, "its hosts have addresses for names"
