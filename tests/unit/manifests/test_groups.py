"""The manifest of a stage. What its script does with groups and time, tests/unit/fabric/diagnosis shows."""

import re
from dataclasses import replace

from busbar.manifests import groups, mpijob
from busbar.manifests.nccljob import Stage
from busbar.manifests.scheduling import HCA_CHECK, NODE_ENV
from tests.support.kube_site import job

STAGE = Stage(("A0/worker-1", "A1/worker-1/worker-2"))


def test_a_stage_starts_its_launcher_at_once_and_does_not_wait_for_hcas() -> None:
    usual, made = mpijob.render(job()), mpijob.render(replace(job(), stage=STAGE))
    assert usual["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert made["spec"]["launcherCreationPolicy"] == "AtStartup"
    for each, check in ((usual, HCA_CHECK), (made, "")):
        worker = each["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        assert worker["env"] == [NODE_ENV]
        assert worker["command"][-1].startswith(f'{check}echo "$BUSBAR_NODE" >/run/busbar-node && ')


def test_groups_are_arguments_of_their_own_so_that_thousands_fit() -> None:
    many = tuple(f"A1/{'n' * 50}-{number}/{'m' * 50}-{number}" for number in range(8000))
    made = mpijob.render(replace(job(), stage=replace(STAGE, groups=many)))
    launcher = made["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    # The kernel's limit for one argument is 128 KiB (MAX_ARG_STRLEN), for all of them 2 MiB by default.
    assert launcher["args"] == ["busbar", *many]
    assert max(map(len, [*launcher["command"], *launcher["args"]])) < 128 << 10


def test_a_login_is_tried_once_and_one_that_hangs_is_ended_by_the_script_which_counts_it() -> None:
    # sshd that accepts a connection and says nothing: ConnectTimeout counts until its banner.
    once = r'timeout "\$LOGIN_SECONDS" ssh -o ConnectTimeout=(\d+) -o ConnectionAttempts=1 '
    [limit] = re.findall(once, groups.script(job(), STAGE))
    assert int(limit) > groups.LOGIN_SECONDS


def test_another_stage_is_another_job() -> None:
    names = {
        mpijob.render(replace(job(), stage=stage))["metadata"]["name"]
        for stage in (None, STAGE, replace(STAGE, groups=STAGE.groups[:1]), replace(STAGE, hcas=("mlx5_0",)))
    }
    assert len(names) == 4


def test_the_groups_of_one_rail_give_their_ranks_its_gpu_and_its_hca() -> None:
    of_rails = replace(STAGE, groups=("C0/rail1/worker-1/worker-2",), hcas=("mlx5_0", "mlx5_1"))
    exported = [
        {"CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA"} & set(re.findall(r"-x (\w+)", groups.script(job(), stage)))
        for stage in (STAGE, of_rails)
    ]
    assert exported == [set(), {"CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA"}]
