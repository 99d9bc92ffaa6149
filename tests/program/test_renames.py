"""Renamed, moved and reordered hosts, their marks, and `k3s.rotate`: what the engine is asked for."""

import json
import re
from copy import deepcopy

import pytest

from busbar import names
from busbar.components import worker_pool
from tests.program.answers import SERVER_FACTS, TOKEN, healthy, performed
from tests.program.harness import COMMAND, LOCAL, Resource, Run, run_program
from tests.support.clusters import site
from tests.support.host_commands import values_of

CLUSTER = site(load_balancers=2, servers=3, workers={"a": 2, "b": 1})


@pytest.fixture(scope="module")
def run() -> Run:
    return performed(CLUSTER)


@pytest.fixture(scope="module")
def moved() -> Run:
    cluster = deepcopy(CLUSTER)
    cluster["hosts"]["workers"][0]["pool"] = "b"
    return performed(cluster)


@pytest.fixture(scope="module")
def reordered() -> Run:
    cluster = deepcopy(CLUSTER)
    for group in ("load_balancers", "servers", "workers"):
        cluster["hosts"][group].reverse()
    return performed({**cluster, "name": "renamed"})


def removable(run: Run) -> list[Resource]:
    return [command for command in run.of_type(LOCAL) if command.inputs.get("delete")]


def installed(run: Run) -> list[Resource]:
    made = [each.name for each in run.custom]
    return [run.named(name) for name in names.installations(made)]


def test_a_move_another_order_and_another_name_keep_all_hosts(run: Run, moved: Run, reordered: Run) -> None:
    kept, *others = ({command.urn for command in removable(each)} for each in (run, moved, reordered))
    assert others == [kept, kept]
    assert "pool-b" in moved.resources[moved.named("busbar-worker@gpu-1").request.parent].urn
    stale = [each.request("busbar-control-plane-stale-nodes") for each in (run, moved, reordered)]
    assert stale == [{"workers": ["gpu-1", "gpu-2", "gpu-3"]}] * 3, "nothing is looked for again"


def test_every_installation_leaves_the_mark_that_its_own_removal_looks_for(run: Run) -> None:
    assert len(installed(run)) == 8
    for command in installed(run):
        create, delete = run.values(command.name), run.request(names.removal_of(command.name))["values"]
        assert create["OWNER"] == delete["OWNER"] == f"busbar/test/{command.name}"
        assert create["INSTALL_ID"] == delete["INSTALL_ID"]


def test_all_hosts_of_a_cluster_have_one_install_id_which_is_not_the_token(run: Run) -> None:
    [install_id] = {run.values(each.name)["INSTALL_ID"] for each in installed(run)}
    assert len(install_id) == 16
    assert TOKEN not in install_id


def test_nodes_are_drained_and_deleted_by_a_command_of_its_own(run: Run) -> None:
    stale = run.named("busbar-control-plane-stale-nodes").inputs
    assert stale["create"].endswith("-m busbar remove nodes") and "delete" not in stale


def test_replaced_servers_are_prepared_for_on_another_server_before_they_join(run: Run) -> None:
    rejoin = run.named("busbar-control-plane-rejoin")
    assert rejoin.inputs["connection"]["host"] == "192.0.2.12"
    assert run.waits_for(run.named("busbar-control-plane@server-1"), rejoin)
    assert run.waits_for(run.named("busbar-control-plane@server-2"), run.named("busbar-control-plane-nodes"))


def test_a_single_server_has_no_other_one_to_be_prepared_on() -> None:
    cluster = site(servers=1)
    commands = {c.name for c in performed(cluster).of_type(COMMAND)}
    assert "busbar-control-plane-nodes" in commands and "busbar-control-plane-rejoin" not in commands


def test_server_1_is_told_on_which_machines_the_others_are(run: Run) -> None:
    assert run.files("busbar-control-plane-nodes")["machines"].splitlines() == [
        f"{name} machine-{name}" for name in ("server-2", "server-3", "gpu-1", "gpu-2", "gpu-3")
    ]
    assert run.files("busbar-control-plane-rejoin")["machines"] == "server-1 machine-server-1"
    assert run.values("busbar-control-plane-nodes")["AFTER"] == "true", "K3s must run there"


@pytest.mark.parametrize("step", ["busbar-control-plane-nodes", "busbar-control-plane-rejoin"])
def test_a_lost_server_is_known_by_the_list_of_the_configured_ones(run: Run, step: str) -> None:
    assert run.files(step)["servers"].split() == ["server-1", "server-2", "server-3"]


def test_what_is_known_of_the_cluster_comes_from_server_1() -> None:
    """Each server reports another CA and release here, as after a restore of one of them."""
    facts = {
        f"busbar-control-plane@server-{server}": {"ca_sha256": server * 64, "version": f"v1.35.{server}+k3s1"}
        for server in "123"
    }
    printed = {name: {"stdout": json.dumps(SERVER_FACTS | found)} for name, found in facts.items()}
    done = run_program(CLUSTER, healthy(CLUSTER, instead=printed))
    assert done.error is None
    assert done.outputs["k3s_version"] == "v1.35.1+k3s1"
    first = done.files("busbar-control-plane@server-1")
    assert "K10" not in first["config"], "server 1 makes the CA"
    assert first["peer_ca"] == SERVER_FACTS["ca_sha256"], "as another server tells it"
    for server in (2, 3):
        token = done.config(f"busbar-control-plane@server-{server}")["token"]
        assert token == f"K10{'1' * 64}::server:{TOKEN}-busbar-control-plane-server-token"
    agent = done.config("busbar-worker@gpu-1")["token"]
    assert agent == f"K10{'1' * 64}::node:{TOKEN}-busbar-control-plane-agent-token"


def test_tokens_are_letters_and_digits_and_no_change_of_an_argument_makes_a_new_one(run: Run) -> None:
    tokens = run.of_type("random:index/randomPassword:RandomPassword")
    assert [token.inputs["special"] for token in tokens] == [False, False]
    for token in tokens:
        given = {key for key, value in token.inputs.items() if value is not None}
        assert given and given <= set(token.request.ignoreChanges)


def test_labels_and_taints_of_every_worker_are_set_also_of_those_without_any() -> None:
    cluster = deepcopy(CLUSTER)
    cluster["pools"]["a"]["labels"] = {"zone": "a"}
    cluster["pools"]["a"]["taints"] = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "busy", "effect": "NoExecute"},
    ]
    tainted = ["nvidia.com/gpu=present:NoSchedule", "busy=:NoExecute"]
    taints = {"gpu-1": tainted, "gpu-2": tainted, "gpu-3": []}
    labels = {"gpu-1": ["zone=a"], "gpu-2": ["zone=a"], "gpu-3": []}
    given = {"taints": taints, "labels": labels, "quarantine": {}, "cordon": []}
    assert performed(cluster).request("busbar-control-plane-taints") == given


def test_each_worker_is_told_how_its_agent_restarts_and_has_the_time_for_that() -> None:
    cluster = deepcopy(CLUSTER)
    cluster["pools"]["a"] |= {"max_unavailable": "60%", "running_jobs": "wait"}
    cluster["pools"]["b"] |= {"drain": "always", "pause_seconds": 30}
    run = performed(cluster)
    commands = [run.named(f"busbar-worker@gpu-{number}").inputs["create"] for number in (1, 3)]
    keys = ("RUNNING_JOBS", "DRAIN", "PAUSE_SECONDS")
    given = [[values_of(text)[key] for key in keys] for text in commands]
    assert given == [["wait", "upgrade", "60"], ["keep", "always", "30"]]
    seconds = [int(re.search(r"timeout -k \d+ (\d+) ", text)[1]) for text in commands]  # type: ignore[index]
    installed = worker_pool.AGENT_DEADLINE_SECONDS
    assert seconds == [installed + 3600 + 60, installed + 30]


K3S = {"sha256": {"amd64": "ab" * 32}}
SERVERS, PLANE = ("server-1", "server-2", "server-3"), "busbar-control-plane-"


def rotated(**numbers: int) -> Run:
    return performed(site(k3s={**K3S, "rotate": numbers}))


@pytest.fixture(scope="module")
def plain() -> Run:
    return rotated()


def texts(run: Run) -> dict[str, str]:
    return {command.name: command.inputs.get("create") or "" for command in run.of_type(COMMAND)}


def test_a_stack_that_never_rotated_has_its_commands_and_tokens_before_preflight(plain: Run) -> None:
    assert not [name for name, text in texts(plain).items() if "ROTATE_" in text]
    tokens = [each for each in plain.custom if each.type.endswith("RandomPassword")]
    preflight = plain.named("busbar-preflight-hosts")
    assert not [token.name for token in tokens if plain.waits_for(token, preflight)]
    assert plain.waits_for(preflight, plain.named("busbar-control-plane-server-token"))


def test_rotated_certificates_change_servers_workers_and_the_kubeconfig_and_nothing_else(plain: Run) -> None:
    before, after = texts(plain), texts(rotated(certificates=2))
    changed = {name for name, text in after.items() if text != before[name]}
    servers = {f"busbar-control-plane@{name}" for name in SERVERS}
    assert changed == servers | {"busbar-worker@gpu-1", "busbar-worker@gpu-2", f"{PLANE}kubeconfig"}
    assert all("ROTATE_CERTIFICATES=2" in after[name] for name in changed)


def test_a_rotated_token_is_another_password_and_the_earlier_ones_stay_in_the_state() -> None:
    run = rotated(server_token=2, agent_token=1)
    passwords = {r.name for r in run.custom if r.type.endswith("RandomPassword")}
    names = ("server-token", "server-token-1", "server-token-2", "agent-token", "agent-token-1")
    assert passwords == {f"{PLANE}{name}" for name in names}
    for server in SERVERS:
        config = run.config(f"busbar-control-plane@{server}")
        assert config["token"].endswith(f"{TOKEN}-{PLANE}server-token-2")
        assert config["agent-token"] == f"{TOKEN}-{PLANE}agent-token-1"
    assert run.config("busbar-worker@gpu-1")["token"].endswith(f"{TOKEN}-{PLANE}agent-token-1")


def test_preflight_is_told_the_id_that_the_hosts_are_marked_with(plain: Run) -> None:
    asked = plain.request("busbar-preflight-hosts")["install_id"]
    assert plain.values("busbar-worker@gpu-1")["INSTALL_ID"] == asked


def test_hosts_know_their_cluster_again_after_its_token_was_rotated(plain: Run) -> None:
    server, after = "busbar-control-plane@server-1", rotated(server_token=1)
    assert after.values(server)["INSTALL_ID"] == plain.values(server)["INSTALL_ID"]
