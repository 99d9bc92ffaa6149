"""stacks/slurm under mocks: which steps run on which hosts, in which order, and what no argument may show."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks, rpc

from busbar.components.engine.join_tokens import TOKEN_ARGUMENTS
from busbar.outputs.contract import summarize
from busbar.preflight.facts import HostRecord, pack
from stacks.slurm.package import config, operations
from stacks.slurm.package.components.hosts import CONTROLLER_SECONDS
from stacks.slurm.package.config import ROLES
from stacks.slurm.tests.support import compute, configured, facts, slurm
from tests.program.harness import COMMAND, LOCAL, ROOT, Run, run_program, texts
from tests.support.host_lists import STACK, Stacks, from_list, host_list
from tests.support.verdicts import failing, passing

KEY, PASSWORD = "KeyOfAllDaemons", "PasswordOfTheDatabase"
PROGRAM = ROOT / "stacks" / "slurm" / "__main__.py"
STEPS = ("slurm-controller@ctl", "slurm-login@login", "slurm-compute@gpu-1", "slurm-compute@gpu-2")


def up(
    verdict: Any = None,
    *,
    preview: bool = False,
    failed: str = "",
    listed: Path | None = None,
    **changes: Any,
) -> Run:
    """Run the program; `verdict`: what the measurement found; `failed`: a command without a result.

    `listed`: a folder for the program, whose hosts are then those of another stack.
    """
    made, given, program, call = slurm(**changes), configured(**changes), PROGRAM, None
    if listed:
        call = Stacks({"hosts": host_list(given["hosts"], ROLES)}, [])
        given, program = from_list(given, ROLES, stack=STACK), Path(shutil.copy(program, listed))
    found = facts(made)

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ == LOCAL and args.name.endswith("-preflight"):
            return {"stdout": pack({name: HostRecord("f", name, each) for name, each in found.items()})}
        if args.typ == LOCAL and args.name.endswith("-collect"):
            return {"stdout": json.dumps(summarize(verdict or passing()))}
        if args.typ.endswith("RandomPassword"):
            return {"result": pulumi.Output.secret(KEY if args.name == "slurm-key" else PASSWORD)}
        if args.name == failed:
            return {"stdout": rpc.UNKNOWN}
        return {"stdout": "{}"} if args.typ == COMMAND else {}

    asked = {"busbar-slurm:slurm": json.dumps(given)}
    return run_program(
        {}, answer, preview=preview, program=program, project="busbar-slurm", config=asked, call=call
    )


def payload(run: Run, name: str) -> dict[str, str]:
    line: dict[str, str] = json.loads(run.named(name).inputs["stdin"].splitlines()[0])
    return {key: base64.b64decode(value).decode() for key, value in line.items()}


def test_every_host_is_asked_first_then_the_controller_and_then_all_others_at_once() -> None:
    run = up()
    assert run.error is None
    asked, (controller, *others) = run.named("slurm-preflight"), [run.named(name) for name in STEPS]
    assert run.waits_for(controller, asked)
    assert all(run.waits_for(each, controller) for each in others)
    assert not any(run.waits_for(a, b) for a in others for b in others)
    assert all(run.waits_for(run.named("nccl-h100-collect"), each) for each in others)


def test_a_compute_host_takes_two_steps_at_most_of_which_one_acts_only_at_removal() -> None:
    run = up()
    of_host = [each.name for each in run.custom if "gpu-1" in each.name]
    assert sorted(of_host) == ["slurm-compute-removal@gpu-1", "slurm-compute@gpu-1"]
    assert "create" not in run.named("slurm-compute-removal@gpu-1").inputs
    assert run.waits_for(run.named("slurm-compute@gpu-1"), run.named("slurm-compute-removal@gpu-1"))
    assert run.waits_for(run.named("slurm-compute-removal@gpu-1"), run.named("slurm-controller@ctl"))


def test_a_host_in_quarantine_which_may_be_off_keeps_what_it_has_and_is_not_measured() -> None:
    run = up(hosts=compute({"quarantine": "no power"}, {}))
    kept = {name: [*run.named(f"slurm-compute@{name}").request.ignoreChanges] for name in ("gpu-1", "gpu-2")}
    assert kept == {"gpu-1": ["create", "stdin", "connection"], "gpu-2": []}
    assert payload(run, "slurm-controller@ctl")["quarantine"] == "gpu-1 no power\n"
    measured = json.loads(run.named("nccl-h100-collect").inputs["stdin"])
    assert [each["name"] for each in measured["hosts"]] == ["gpu-2"]


@pytest.mark.parametrize("name", STEPS[:3])
def test_a_removal_has_the_values_of_the_installation(name: str) -> None:
    run = up()
    removal = json.loads(run.removal(name).inputs["stdin"])["values"]
    assert removal.pop("CANCEL_JOBS") == "false"
    own = "KEEP_DATA" if name == STEPS[0] else "UNIT"
    assert {own, "OWNER", "INSTALL_ID", "SLURM_PACKAGES", "HOME_PATH", "HOME_SERVER"} <= removal.keys()
    environment = run.named(name).inputs["create"].partition(" timeout ")[0] + " "
    assert removal.items() <= dict(re.findall(r"(\w+)=(\S*) ", environment)).items()


def test_the_controller_gets_the_files_and_the_others_what_they_run() -> None:
    pool = {**configured()["pools"]["h100"], "gpus": 8, "rails": 4}
    run = up(pools={"h100": pool})
    sent = payload(run, "slurm-controller@ctl")
    assert "NodeName=gpu-2 " in sent["slurm_conf"] and "StoragePass=PasswordOf" in sent["slurmdbd_conf"]
    assert (sent["slurm_key"], sent["topology_conf"], sent["quarantine"]) == (KEY, "", "")
    assert payload(run, "slurm-compute@gpu-1").keys() == {"slurm_key", "health", "users"}
    assert payload(run, "slurm-login@login") == {"slurm_key": KEY, "health": "", "users": ""}
    for name, unit, gpus in (("slurm-compute@gpu-1", "slurmd", 8), ("slurm-login@login", "sackd", 0)):
        step = run.named(name).inputs["create"]
        assert f" UNIT={unit} " in step and f" GPUS={gpus} " in step and "CONTROLLER=10.0.0.1:6817" in step
    without = payload(up(accounting={}), "slurm-controller@ctl")
    assert not {"slurmdbd_conf", "database_password"} & without.keys()


@pytest.mark.parametrize("waited", [100, 40_000])
def test_a_controller_has_the_time_that_jobs_of_removed_hosts_are_waited_for(waited: int) -> None:
    create = up(removal={"timeout_seconds": waited}).named("slurm-controller@ctl").inputs["create"]
    assert re.findall(r"timeout -k \d+ (\d+) ", create) == [str(CONTROLLER_SECONDS + waited)]


def test_a_step_that_failed_fails_the_update_so_that_nothing_is_deleted() -> None:
    run = up(failed="slurm-compute@gpu-2")
    assert isinstance(run.error, pulumi.RunError) and "a step failed" in str(run.error)


def test_keys_are_never_made_again_and_steps_are_told_that_they_have_run_before() -> None:
    run = up()
    for name in ("slurm-key", "slurm-database"):
        assert list(run.named(name).request.ignoreChanges) == [*TOKEN_ARGUMENTS]
    collect = run.named("nccl-h100-collect").inputs
    for step in (run.named("slurm-preflight").inputs, collect):
        assert step["addPreviousOutputInEnv"] is True
    assert json.loads(collect["stdin"])["folder"] == ".busbar/test/h100"


def test_a_change_of_the_cluster_s_files_changes_no_step_of_a_compute_host() -> None:
    partition = {"pools": ["h100"], "default": True, "max_time": "1-00:00:00"}
    before, after = up(), up(partitions={"gpu": partition})
    for name in ("slurm-compute@gpu-1", "slurm-login@login"):
        assert before.named(name).inputs == after.named(name).inputs
    assert before.named("slurm-controller@ctl").inputs != after.named("slurm-controller@ctl").inputs


def test_every_host_gets_the_same_users_and_what_starts_containers() -> None:
    run = up(users={"accounts": {"ada": {"uid": 5001}}}, container_packages="/srv/debs")
    for name in STEPS:
        assert payload(run, name)["users"] == "user ada 5001\n"
        create = run.named(name).inputs["create"]
        assert "HOME_PATH=/home" in create and "CONTAINERS=/srv/debs" in create
    assert "pyxis" in payload(run, "slurm-controller@ctl")["plugstack_conf"]


def test_homes_are_exported_before_any_host_mounts_them_and_until_none_does() -> None:
    run = up(home={"nfs": {"folder": "/srv/home"}})
    assert run.error is None
    server, removal = run.named("slurm-nfs@ctl"), run.named("slurm-nfs-removal@ctl")
    assert run.waits_for(server, run.named("slurm-preflight"))
    ends = run.named("slurm-nfs-exports@ctl")
    assert run.waits_for(ends, run.named("slurm-controller@ctl")), "it waits for the jobs of a leaving host"
    for name in STEPS:
        assert run.waits_for(run.named(name), server)
        assert run.waits_for(run.removal(name), removal)
        address = "" if name == "slurm-controller@ctl" else "10.0.0.1"
        assert f"HOME_SERVER={address} " in run.named(name).inputs["create"] + " "
        assert "HOME_PATH=/srv/home" in run.named(name).inputs["create"]
    options = "(rw,sync,no_subtree_check,root_squash)\n"
    clients = "".join(f"/srv/home 10.0.0.{number}{options}" for number in (2, 11, 12))
    assert payload(run, "slurm-nfs@ctl")["exports"].endswith(f"busbar\n{clients}")
    assert "FOLDER_MODE=0755" in server.inputs["create"]


def test_no_secret_is_in_an_argument_or_unmarked() -> None:
    run = up()
    for resource in run.custom:
        for path, text, secret in texts(resource.raw):
            hidden = secret or not any(each in text for each in (KEY, PASSWORD))
            assert hidden, (resource.name, path)
            assert not (path.startswith("create") and KEY in text)


def test_the_outputs_are_kept_and_the_update_fails_where_the_fabric_did_not_pass() -> None:
    run = up(failing("GDRDMA is missing"))
    assert isinstance(run.error, pulumi.RunError) and "GDRDMA is missing" in str(run.error)
    assert run.outputs["slurm_nccl_passed"] is False
    accepted = up(failing("GDRDMA is missing"), validation={"enforce": False})
    assert accepted.error is None and accepted.outputs["slurm_nccl_passed"] is False


def test_pools_are_measured_one_after_the_other_or_not_at_all() -> None:
    pools = {name: configured()["pools"]["h100"] for name in ("a", "b")}
    run = up(pools=pools, hosts=compute({"pool": "a"}, {"pool": "b"}))
    assert run.waits_for(run.named("nccl-b-collect"), run.named("nccl-a-collect"))
    off = up(validation={"enabled": False})
    assert off.error is None
    assert [each.name for each in off.custom if "nccl" in each.name] == []


def test_an_invalid_configuration_registers_nothing() -> None:
    asked = {"busbar-slurm:slurm": json.dumps(configured(packages="x")), "busbar-slurm:slurmm": "1"}
    run = run_program({}, lambda _: {}, program=PROGRAM, project="busbar-slurm", config=asked)
    assert isinstance(run.error, pulumi.RunError) and run.custom == []
    assert "busbar-slurm:slurmm: unknown key" in str(run.error)


def test_what_is_allowed_but_probably_not_intended_is_said_by_the_update_also_by_a_first_preview() -> None:
    for run in (up(validation={"tolerance": 0.6}), up(validation={"tolerance": 0.6}, preview=True)):
        assert run.error is None
        assert any("tolerance: 0.6 accepts 40% of the expected bandwidth" in text for text in run.messages)


def test_hosts_of_another_stack_give_the_same_resources_as_inline(tmp_path: Path) -> None:
    inline, listed = up(), up(listed=tmp_path)
    assert inline.error is None and listed.error is None
    assert {urn: each.raw for urn, each in listed.resources.items()} == {
        urn: each.raw for urn, each in inline.resources.items()
    }
    file = tmp_path / "Pulumi.test.yaml"
    file.write_text(
        json.dumps({"config": {"busbar-slurm:slurm": from_list(configured(), ROLES, stack=STACK)}})
    )
    assert config.read(file)[0] == slurm()
    assert [each.name for each in operations.host_keys(file)[1][1]] == ["ctl", "login", "gpu-1", "gpu-2"]
