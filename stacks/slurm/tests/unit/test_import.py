"""`busbar hosts import`: an inventory of DeepOps becomes the hosts of a stack file of Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import yaml

from busbar import capability
from busbar.config.stackfile import hosts_schema
from stacks.slurm.package import config
from stacks.slurm.tests.support import configured
from tests.support.cli import busbar
from tests.support.clusters import host_key

# The form is that of `ansible-inventory --list`, the groups are those of NVIDIA/deepops, config.example.
ADDRESSES = {"mgmt01": "10.0.0.1", "login01": "10.0.0.2", "gpu01": "10.0.0.11", "gpu02": "10.0.0.12"}
INVENTORY = {
    "_meta": {"hostvars": {name: {"ansible_host": address} for name, address in ADDRESSES.items()}},
    "all": {"children": ["ungrouped", "slurm-cluster"]},
    "slurm-cluster": {"children": ["slurm-login", "slurm-master", "slurm-node"]},
    "slurm-login": {"hosts": ["login01"]},
    "slurm-master": {"hosts": ["mgmt01"]},
    "slurm-node": {"hosts": ["gpu01", "gpu02"]},
}


def test_an_inventory_of_deepops_becomes_a_stack_file_that_lacks_only_the_host_keys(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text(json.dumps(INVENTORY))
    done = busbar("hosts", "import", str(tmp_path / "inventory"))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# of stacks/slurm\n") and "# missing: host_key" in done.stdout
    hosts = yaml.safe_load(done.stdout)["hosts"]
    for each in (hosts["controller"], *hosts["login"], *hosts["compute"]):
        each["host_key"] = host_key(each["name"])
    made = config.load(configured(hosts=hosts))
    assert made.hosts.controller.address == "10.0.0.1"
    assert [each.name for each in made.hosts.compute] == ["gpu01", "gpu02"]


def test_an_inventory_of_deepops_becomes_a_list_in_the_folder_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text(json.dumps(INVENTORY))
    words = ["hosts", "import", str(tmp_path / "inventory"), "--json", "-C", str(capability.FOLDER / "slurm")]
    done = busbar(*words)
    listed = json.loads(done.stdout)
    jsonschema.validate(listed, hosts_schema())
    roles = {"mgmt01": "controller", "login01": "login", "gpu01": "worker", "gpu02": "worker"}
    assert {each["name"]: each["role"] for each in listed["hosts"]} == roles
