"""A list of hosts elsewhere: the contract, its errors with their places, and the stack file beside it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.config import Cluster, ConfigError, load, stackfile
from busbar.config.engine_yaml import located
from busbar.config.stackfile import ROLES, hosts_schema, stack_schema, with_listed_hosts
from tests.support.arbitrary import ANYTHING, places, replaced
from tests.support.clusters import site
from tests.support.host_lists import STACK, from_list, host_list

ROOT = Path(__file__).resolve().parents[3]
SITE = site(load_balancers=2, workers={"h100": 2, "a100": 1})
HOSTS = host_list(SITE["hosts"])
FULL = copy.deepcopy(HOSTS)
FULL["hosts"][-1] |= {"user": "a", "port": 2222, "topology": {"rail_group": "su-1"}, "provider_id": "2b6f"}
START = "Pulumi.test.yaml"
FILE = f"{START}:4 hosts_from.file: 'hosts.json'"


def stack_file(folder: Path, text: str | None = None, **given: Any) -> stackfile.StackFile:
    """A stack file with `hosts_from`, and `text` in hosts.json."""
    if text is not None:
        (folder / "hosts.json").write_text(text)
    path = folder / "Pulumi.test.yaml"
    cluster = {"hosts_from": given, **from_list(SITE, **given)}
    path.write_text(yaml.safe_dump({"config": {"busbar:cluster": cluster}}, sort_keys=False))
    return stackfile.read(path)


def messages(folder: Path, text: str | None, **given: Any) -> list[str]:
    """The messages of a stack file that is refused."""
    file = stack_file(folder, text, **(given or {"file": "hosts.json"}))
    with pytest.raises(ConfigError) as refused:
        file.cluster()
    return located(file.path, refused.value.findings, file.path.name)


def changed(place: tuple[Any, ...], value: Any) -> str:
    return json.dumps(replaced(FULL, place, value))


def test_the_schema_that_is_checked_in_is_current_and_takes_all_fields() -> None:
    checked_in = json.loads((ROOT / "schema" / "hosts.schema.json").read_text())
    assert checked_in == hosts_schema(), "run `make schema`"
    jsonschema.validate(FULL, checked_in)


def test_a_file_gives_the_configuration_of_hosts_in_the_stack_file(tmp_path: Path) -> None:
    assert stack_file(tmp_path, json.dumps(HOSTS), file="hosts.json").cluster() == load(SITE)


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (SITE, True),
        (from_list(SITE, file="hosts.json"), True),
        ({**SITE, "hosts_from": {"file": "hosts.json"}}, False),
        ({key: value for key, value in SITE.items() if key != "hosts"}, False),
    ],
)
def test_the_schema_of_a_stack_file_takes_hosts_or_a_list_and_never_both(config: Any, fits: bool) -> None:
    validator = jsonschema.Draft202012Validator(stack_schema())
    assert validator.is_valid({"config": {"busbar:cluster": config}}) == fits


def test_hosts_in_the_stack_file_and_a_list_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.test.yaml"
    both = {**SITE, "hosts_from": {"file": "hosts.json"}}
    path.write_text(yaml.safe_dump({"config": {"busbar:cluster": both}}))
    with pytest.raises(ConfigError, match=r"^hosts\.load_balancers: given together with hosts_from\. Fix:"):
        stackfile.read(path).cluster()
    with pytest.raises(ConfigError, match=r"^hosts_from: .* has not been read"):
        load(both)


# The worst inputs, and what a user reads.
REFUSED: list[tuple[str | None, str]] = [
    (None, f"{FILE} cannot be read: No such file or directory"),
    ('{"version": 1,\n "hosts": [}', f"{FILE} is not JSON: Expecting value: line 2 column 12 (char 26)"),
    ("[" * 100_000, f"{FILE} is nested too deeply"),
    ('{"version": 1, "hosts": []}', "hosts (in hosts.json): got none, expected at least 1"),
    (changed(("version",), 2),
     "version (in hosts.json): 2 is not supported (supported: 1), so no host was read and nothing "
     "changes. Fix: write version 1, or use a busbar that reads the other one"),
    (changed(("hosts", 3, "adress"), "10.0.0.1"),
     "hosts[3].adress (server-2 in hosts.json): unknown key; did you mean 'address'?"),
    (changed(("hosts", 5, "role"), "controller"),
     "hosts[5].role (gpu-1 in hosts.json): 'controller' is not a role in this stack; expected one of: "
     "load_balancer, server, worker, nfs_server. Fix: keep a list per cluster"),
    (changed(("hosts", 6, "address"), "198.18.0.2"),
     "hosts.workers[1].address (gpu-2 in hosts.json): '198.18.0.2' is also the address of "
     "hosts.workers[0]. Fix: list each machine once"),
    (changed(("hosts", 4, "host_key"), "-----BEGIN OPENSSH PRIVATE KEY-----\nb3"),
     "hosts[4].host_key (server-3 in hosts.json): (a private key) is not an ed25519 host key: expected "
     "`ssh-ed25519` and 68 characters of base64, without a host name in front (ssh-keyscan -t ed25519 HOST)"),
    (json.dumps({**HOSTS, "hosts": [{**host, "host_key": None} for host in HOSTS["hosts"][2:]]}),
     "hosts.servers[0].host_key (server-1 in hosts.json): missing: The host's ed25519 host key: "
     "`ssh-keyscan -t ed25519 ADDRESS`. (2 more like it)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_a_list_of_hosts_is_refused_with_the_place(tmp_path: Path, text: str | None, said: str) -> None:
    assert messages(tmp_path, text)[0] == said


def test_the_quarantine_of_a_host_that_is_not_in_the_list_is_refused(tmp_path: Path) -> None:
    given = {"file": "hosts.json", "quarantine": {"gpu-7": "fan", "server-1": "fan"}}
    assert messages(tmp_path, json.dumps(HOSTS), **given) == [
        f"{START}:6 hosts_from.quarantine.gpu-7: is not a worker in hosts.json; did you mean 'gpu-3'?",
        f"{START}:7 hosts_from.quarantine.server-1: is not a worker in hosts.json; remove the line",
    ]


@pytest.mark.parametrize(
    "hosts_from", [None, [], "hosts.json", {}, {"file": ""}, {"fil": "x"}, {"file": "x", "stack": "y"}]
)
def test_a_section_that_names_no_list_is_refused_with_its_path(hosts_from: Any) -> None:
    data = {**from_list(SITE, file="x"), "hosts_from": hosts_from}
    with pytest.raises(ConfigError, match=r"^hosts_from"):
        with_listed_hosts(data, ROLES, lambda _: HOSTS)


@settings(max_examples=300)
@given(place=st.sampled_from([each for each in places(FULL) if each[0] == "hosts"]), value=ANYTHING)
def test_any_value_in_a_list_gives_a_cluster_or_messages_with_places(
    place: tuple[Any, ...], value: Any
) -> None:
    listed = json.loads(json.dumps(replaced(FULL, place, value)))
    try:
        found = with_listed_hosts(from_list(SITE, stack=STACK), ROLES, lambda _: listed).load(load)
    except ConfigError as error:
        for finding in error.findings:
            assert finding.path and STACK in (finding.origin or str(finding))
    else:
        assert isinstance(found, Cluster)
