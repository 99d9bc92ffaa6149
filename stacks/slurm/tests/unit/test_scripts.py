"""Decisions of the host scripts; the hosts of the lab test the rest."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.hosts import scripts
from stacks.slurm.package import preflight, render
from stacks.slurm.tests.support import configured, slurm
from tests.support.bash import output, programs, run

pytestmark = pytest.mark.slow

READY = """
poll() {{ :; }}; scontrol() {{ echo "$*"; }}; last_lines() {{ echo 'no key'; }}; READY_DEADLINE=0
NODE_NAME=gpu-1 GPUS=8 CONTROLLER=10.0.0.1:6817; gpu_count() {{ echo {gpus}; }}
node_field() {{ case $1 in State) printf '{state}' ;; Reason) printf '%s' '{reason}' ;; esac; }}
await_ready && echo ready
"""


# The state of the node, its reason, its GPUs, and what is said of it.
NODES_OF_HOST = yaml.safe_load("""
- [IDLE, "", 8, ready]
- [IDLE+MAINTENANCE+RESERVED, "", 8, ready]
- [ALLOCATED, "", 8, ready]
- [IDLE+DRAIN+NOT_RESPONDING, "", 8, the node is IDLE+DRAIN+NOT_RESPONDING]
- [IDLE+DRAIN, "maintenance [bob@2026]", 8, ready]
- [IDLE+DRAIN, "new fan : Not responding [slurm@2026]", 8, ready]
- [IDLE+DRAIN, "Low on fans, see [slurm@site] [bob@2026]", 8, ready]
- [IDLE+DRAIN, "busbar: quarantine: RMA : Not responding [slurm@2026]", 8, ready]
- [IDLE+DRAIN, "busbar: quarantine: RMA [root@2026]", 8, ready]
- [DOWN, "no power [bob@2026]", 8, ready]
- [IDLE+FAIL, "old disk [bob@2026]", 8, ready]
- [DOWN*, "no power [bob@2026]", 8, "the node is DOWN*: no power"]
- [IDLE, "", 7, "the node has 7 GPUs in Slurm, expected 8"]
- ["", "", 0, "slurmctld does not know gpu-1 or is not responding: no key"]
- [DOWN*, "Not responding [slurm@2026]", 8, "the node is DOWN*: Not responding [slurm@2026]; slurmd: no key"]
- [IDLE+DRAIN, "gres/gpu count reported lower [slurm@2026]", 7, "gres/gpu count reported lower [slurm@2026]"]
- [IDLE+DRAIN, "new fan : gres/gpu count reported lower [slurm@2026]", 8,
   "the node is IDLE+DRAIN: new fan : gres/gpu count reported lower"]
- [IDLE+DRAIN, "busbar health: 1 of 2 GPUs : Not responding [slurm@2026]", 8,
   "slurm-health && scontrol update nodename=gpu-1 state=resume"]
- [IDLE+DRAIN, "busbar health: 1 of 2 GPUs [root@2026]", 8,
   "the node is IDLE+DRAIN: busbar health: 1 of 2 GPUs"]
""")


@pytest.mark.parametrize(("state", "reason", "gpus", "said"), NODES_OF_HOST)
def test_a_node_that_is_not_ready_is_named_with_its_own_reason(
    state: str, reason: str, gpus: int, said: str
) -> None:
    done = run("slurm/member", READY.format(state=state, reason=reason, gpus=gpus))
    assert said in done.stdout + done.stderr
    assert ("ready" in done.stdout) == (said == "ready")
    resumed = "update nodename=gpu-1 state=resume" in done.stdout
    assert resumed == reason.startswith("gres/")


DRAIN = """
SLURM_FOLDER=$PWD DRAINS=$PWD/drains; answers() { :; }; payload() { printf 'NodeName=a \\n'; }
scontrol() { [[ $1 != show ]] || echo ' State=IDLE'; [[ $1 == show ]] || echo "scontrol $*"; }
squeue() { FOUND; }; CANCEL_JOBS=CANCELS DRAIN_SECONDS=0; timeout() { "${@:2}"; }
printf 'NodeName=%s \\n' a b c >slurm.conf
scancel() { echo "scancel $*"; }
drain_removed
"""


# Whether jobs are cancelled, what squeue does, the exit code, and what is said.
REMOVALS = yaml.safe_load("""
- ["false", "", 0, ""]
- ["true", "", 0, ""]
- ["false", "[[ $* == *'-t '* ]] || { echo 7; echo 9; }", 1,
   "jobs 7,9 run on it; it stays. Fix: raise removal.timeout_seconds, or cancel them: scancel 7 9"]
- ["false", "return 1", 1, "slurmctld does not tell the jobs on b, which is no longer configured; it stays"]
- ["true", echo 7, 1,
   "jobs 7 run on it; it stays. Fix: scontrol update nodename=b state=down reason=completing; "]
""")


@pytest.mark.parametrize(("cancels", "jobs", "status", "said"), REMOVALS)
def test_a_removed_node_is_drained_and_its_jobs_are_respected(
    tmp_path: Path, cancels: str, jobs: str, status: int, said: str
) -> None:
    call = DRAIN.replace("FOUND", jobs or ":").replace("CANCELS", cancels)
    done = run("slurm/controller", f"cd {tmp_path}; {call}")
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    changes = [f"scontrol update nodename={node} state=drain reason=busbar: removed" for node in ("b", "c")]
    assert done.stdout.splitlines() == changes
    cancelled = done.stderr.count("scancel --nodelist=")
    assert cancelled == (0 if cancels == "false" else 1 if jobs else 2)


JOBS = """
SLURM_FOLDER=$PWD END_JOBS=%s JOBS_DEADLINE=1 NODE_NAME=ctl; touch slurm.conf
timeout() { "${@:2}"; }; sleep() { :; }
squeue() { %s; }; scancel() { echo "scancel $*" >&2; %s; }
printf '9\n7\n7\n' >jobs; VERB=jobs main
"""
LISTED, SILENT = "cat jobs", "echo no contact >&2; return 1"


@pytest.mark.parametrize(
    ("ends", "listed", "cancelled", "printed", "said"),
    [
        ("false", LISTED, ":", '{"jobs":"7,9"}\n', ""),
        ("true", LISTED, ": >jobs", '{"jobs":""}\n', "scancel 7 9"),
        ("true", LISTED, ":", "", "jobs 7,9 do not end. Fix: see: sinfo"),
        # Without an answer of slurmctld jobs are unknown, unless they do not count.
        ("false", SILENT, ":", "", "does not tell which jobs there are: no contact"),
        ("true", SILENT, ":", '{"jobs":""}\n', ""),
    ],
)
def test_a_destroy_asks_for_the_jobs_of_all_users_and_ends_them_where_that_is_configured(
    tmp_path: Path, ends: str, listed: str, cancelled: str, printed: str, said: str
) -> None:
    done = run("slurm/node", f"cd {tmp_path}; {JOBS % (ends, listed, cancelled)}")
    assert (done.stdout, said in done.stderr) == (printed, True), done.stderr
    assert (done.returncode == 0) is bool(printed)


ON_NODE = """
timeout() { "${@:2}"; }; squeue() { %s; }; scontrol() { [[ $1 != show ]] || echo ' State=MIXED+DRAIN'; }
NODE=a; begin() { :; }; VERB=show main
"""


@pytest.mark.parametrize(
    ("listed", "printed"),
    [
        (":", '"jobs":""'),
        # A job that is configuring or stopped is in none of the states that have no flag.
        ("[[ $* == *'-t '* ]] || echo 7", '"jobs":"7"'),
        ("return 1", "slurmctld does not tell the jobs on a. Fix: "),
    ],
)
def test_a_node_has_no_jobs_only_where_slurmctld_says_so(listed: str, printed: str) -> None:
    done = run("slurm/node", ON_NODE % listed)
    assert printed in done.stdout + done.stderr
    assert (done.returncode == 0) is printed.startswith('"')


STEPS = """
UNIT=slurmd NODE_NAME=gpu-1 CANCEL_JOBS=%s STEPS_DEADLINE=1; may_remove() { :; }; timeout() { "${@:2}"; }
pgrep() { cat steps 2>/dev/null; }; scancel() { rm steps; echo "scancel $*"; }
remove_unit() { echo "removed $1"; }; remove_rest() { :; }; rm() { [[ $1 == -f ]] || command rm "$@"; }
printf '12 slurmstepd: [7.extern]\n13 slurmstepd: [7.0]\n' >steps; remove_member
"""


@pytest.mark.parametrize(("ends", "removed"), [("false", []), ("true", ["removed slurmd"])])
def test_a_host_on_which_a_step_runs_is_removed_only_where_steps_are_to_be_ended(
    tmp_path: Path, ends: str, removed: list[str]
) -> None:
    done = run("slurm/member", f"cd {tmp_path}; {STEPS % ends}")
    assert (done.returncode == 0, done.stdout.splitlines()) == (bool(removed), removed), done.stderr
    runs = "steps of jobs run here: 7.0 7.extern; nothing was removed"
    assert ("scancel --nodelist=gpu-1" if removed else runs) in done.stderr


HOME = """
STATE_DIR=$PWD HOME_MOUNTED=$PWD/home.mounted HOME_PATH=$PWD/home
write_file() { echo "write $1"; cat; }; systemctl() { [[ $1 != is-active ]]; }
systemd-escape() { echo "${@: -1}.mount"; }; start_unit() { echo "start $*"; }
stop_unit() { echo "stop $1"; }
apply_home; cat home.mounted 2>/dev/null || true
"""


def test_a_mount_hides_no_files_and_a_removal_keeps_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").write_text("x")
    done = run("slurm/member", f"cd {tmp_path}; {HOME}", HOME_SERVER="10.0.0.1")
    assert done.returncode == 1 and "/home has files or is mounted already. Fix: move the" in done.stderr
    others = HOME.replace("apply_home;", "systemctl() { :; }; mountpoint() { :; }; rm home/file; apply_home;")
    done = run("slurm/member", f"cd {tmp_path}; {others}", HOME_SERVER="10.0.0.1")
    assert done.returncode == 1 and "is mounted already" in done.stderr
    (tmp_path / "home" / "file").write_text("x")
    (tmp_path / "home.mounted").write_text(f"{tmp_path}/home\n")
    output("slurm/member", f"cd {tmp_path}; {HOME}", HOME_SERVER="")
    assert (tmp_path / "home" / "file").exists()


def test_of_each_node_the_job_is_told_that_has_been_completing_for_longest() -> None:
    slurm = (
        "timeout() { \"${@:2}\"; }; scontrol() { printf '%s\\n' ${3//,/ }; };"
        "squeue() { printf '9|a,b|%s\\n8|b|%s\\n7|c|NONE\\n' $(date -d '-200 sec' +%FT%T) $(date +%FT%T); };"
    )
    found = json.loads(output("slurm-job", f'{slurm} printf "{{%s}}" "$(completing)"'))
    assert {node: job for node, (job, _) in found.items()} == {"a": "9", "b": "9"}
    assert 199 <= found["a"][1] <= 260


def test_a_job_of_a_user_with_the_name_of_a_measurement_is_not_taken_for_it() -> None:
    slurm = 'timeout() { "${@:2}"; }; squeue() { [[ $* == *--me* ]] || echo 5; }; sbatch() { echo 9; };'
    about = dict.fromkeys(("JOB_NAME", "PARTITION", "NODES", "COUNT", "LOG"), "x")
    assert json.loads(output("slurm-job", f"{slurm} payload() {{ :; }}; job_submit", **about)) == {
        "job_id": "9"
    }


def test_without_an_answer_of_squeue_there_are_no_nodes() -> None:
    call = "timeout() { [[ $2 == sinfo ]] && echo 'a|idle|root|none'; }; job_nodes"
    done = run("slurm-job", call)
    assert done.returncode != 0 and done.stdout == ""
    assert "squeue failed on the controller" in done.stderr


def test_nodes_of_several_partitions_are_listed_once() -> None:
    text = 'a|idle|root|none\na|idle|root|none\nb|down*|slurm|Not "here"\nc|drained|slurm|Low CPUs\n'
    found = json.loads("{" + output("slurm-job", 'node_list <<<"$1"', text) + "}")
    assert found == {
        "a": {"state": "idle", "reason": "", "by": "root"},
        "b": {"state": "down*", "reason": 'Not "here"', "by": "slurm"},
        "c": {"state": "drained", "reason": "Low CPUs", "by": "slurmctld"},
    }


def test_the_error_of_a_question_in_a_pod_is_that_of_the_pod_and_not_of_kubectl(tmp_path: Path) -> None:
    ends = "echo 'command terminated with exit code 1' >&2; exit 1"
    programs(tmp_path, {"pod": f"echo 'busbar: a: invalid gres' >&2; {ends}"})
    done = run("slurm-job", "PAYLOAD='{}'; ask_within", SCRIPT="", WITHIN=f"{tmp_path}/pod")
    assert (done.returncode, done.stderr) == (1, "busbar: a: invalid gres\n")


JOB = {"JOB_NAME": "nccl-a", "PARTITION": "p", "NODES": "a,b", "COUNT": "2", "LOG": "/x"}
SUBMIT = """
asked() { [[ $* != *" pending,configuring,running,suspended "* ]] || EXISTING; }; payload() { echo script; }
timeout() { shift; echo "$*" >asked; echo 'sbatch: a warning' >&2; echo '12;site'; }
cd "$FOLDER"; job_submit
"""


@pytest.mark.parametrize(("existing", "job"), [(":", "12"), ("printf '7\\n9\\n'", "9")])
def test_a_job_that_has_not_ended_is_not_submitted_again(existing: str, job: str, tmp_path: Path) -> None:
    found = output("slurm-job", SUBMIT.replace("EXISTING", existing), FOLDER=str(tmp_path), **JOB)
    assert json.loads(found) == {"job_id": job}
    assert (tmp_path / "asked").exists() == (job == "12")
    if job == "12":
        words = (tmp_path / "asked").read_text().split()
        assert {"--job-name=nccl-a", "--partition=p", "--nodelist=a,b", "--nodes=2", "--output=/x"} < {*words}


REFUSES = "asked() { :; }; payload() { :; }; timeout() { echo 'error: invalid partition' >&2; return 1; }"
ANSWERS = "timeout() { echo 'slurm_load_jobs error: %s'; return 1; }"


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        (f"{ANSWERS % 'Invalid job id specified'}; job_status", 0, '{"known":false}\n'),
        (f"{ANSWERS % 'Unable to contact'}; job_status", 1, "slurmctld is not responding: slurm_load_"),
        (f"{REFUSES}; job_submit", 1, "sbatch refuses the job: error: invalid partition. Fix: "),
        (f"{ANSWERS % 'Unable to contact'}; job_cancel", 1, "scancel failed on the controller. Fix: "),
    ],
)
def test_only_a_job_that_slurmctld_does_not_know_is_unknown_and_a_refusal_has_slurm_s_words(
    call: str, status: int, said: str
) -> None:
    done = run("slurm-job", call, JOB_ID="7", **JOB)
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True)


def survey(prelude: str, **values: str) -> dict[str, object]:
    script = scripts.part("slurm/survey").replace("\nslurm_report", f"\n{prelude}\nslurm_report")
    values = {"SLURM_PACKAGES": "os", "CONTAINERS": "", "HOME_PATH": "/", "PROGRAMS": "", **values}
    found: dict[str, object] = json.loads(output("preflight", script, **values))
    return found


FINDMNT = """findmnt() { [[ "$*" != *" -T /srv/home" ]] || printf 'ext4 /dev/sda\\nnfs4   nas:/home\\n'; };"""
DEBS = 'dpkg-deb() { local name=${2##*client_}; echo "${name%%_*}"; }; cpu_shape() { echo 1 1 1; };'
PROGRAMS = {"PROGRAMS": "all_reduce_perf all_gather_perf sendrecv_perf"}
PYXIS = "nvslurm-plugin-pyxis_0.24.0-1_amd64.deb"
# Functions in place of programs, values of the script, files in its folder, and what it finds.
SURVEYS: list[tuple[str, dict[str, str], list[str], dict[str, Any]]] = [
    ("lscpu() { printf '# x\\n0,0\\n0,0\\n0,1\\n0,1\\n1,2\\n1,2\\n1,3\\n1,3\\n'; }; "
     "gpu_minors() { echo 0,1; };", {}, [], {"sockets": 2, "cores": 2, "threads": 2, "gpu_minors": [0, 1]}),
    # Sockets with another number of cores each.
    ("lscpu() { printf '0,0\\n0,1\\n1,2\\n'; }; gpu_minors() { :; };", {}, [],
     {"sockets": 0, "gpu_minors": []}),
    ("find_program() { [[ $1 == all_gather_perf ]]; };", PROGRAMS, [],
     {"missing_programs": "all_reduce_perf and sendrecv_perf"}),
    (FINDMNT, {"HOME_PATH": "/srv/home"}, [], {"home": "nfs4 nas:/home"}),
    (DEBS, {"SLURM_PACKAGES": "{}"},
     ["slurm-smd-client_24.05.1-1_amd64.deb", "slurm-smd-client_24.11.5-1_amd64.deb"],
     {"available": "24.11.5-1"}),
    ("", {"CONTAINERS": "{}"}, ["enroot_4.1.2-1_amd64.deb", PYXIS], {"missing_debs": ""}),
    ("", {"CONTAINERS": "{}"}, [], {"missing_debs": "enroot*.deb and nvslurm-plugin-pyxis*.deb"}),
    ("", {}, [], {"missing_debs": ""}),
]  # fmt: skip


@pytest.mark.parametrize(("prelude", "values", "files", "expected"), SURVEYS)
def test_the_survey_reports_what_slurm_needs_to_know_of_a_host(
    tmp_path: Path, prelude: str, values: dict[str, str], files: list[str], expected: dict[str, Any]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    found = survey(prelude, **{key: value.format(tmp_path) for key, value in values.items()})
    assert {key: found[key] for key in expected} == expected


def test_a_slurm_that_others_have_configured_is_named_in_the_survey(tmp_path: Path) -> None:
    for file in ("slurm/slurm.key", "slurm-llnl/slurm.conf", "slurm/slurmdbd.conf", "slurm/slurm.conf"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("site")
        text = scripts.part("slurm/survey").replace(" /etc/slurm", f" {tmp_path}/slurm")
        text = text.rstrip().removesuffix("slurm_report") + "slurm_foreign"
        assert output("preflight", text) == f"{tmp_path}/{file}"
        assert output("preflight", f"owner_field() {{ echo Slurm login host; }}; {text}") == ""


@pytest.mark.parametrize(
    ("written", "name"),
    [(None, ""), ("mysite", "mysite"), ("mysite\n", "mysite"), ("mysite|2049\n", "mysite")],
)
def test_the_survey_has_the_name_that_slurmctld_keeps_its_state_for(
    tmp_path: Path, written: str | None, name: str
) -> None:
    if written is not None:
        (tmp_path / "clustername").write_text(written)
    text = scripts.part("slurm/survey").replace(" /var/lib/slurm/slurmctld/", f" {tmp_path}/")
    assert output("preflight", text.rstrip().removesuffix("slurm_report") + "slurm_cluster").strip() == name


SRUN = 'poll() { shift; "$@"; }; timeout() { SAID; }; await_containers && echo ready'


def test_pyxis_is_there_when_srun_offers_its_option() -> None:
    offered = SRUN.replace("SAID", "echo '  --container-image=[USER@]'")
    assert output("slurm/member", offered, CONTAINERS="/debs") == "ready\n"
    refused = SRUN.replace("SAID", "echo 'error: Incompatible plugin version' >&2")
    done = run("slurm/member", refused, CONTAINERS="/debs")
    assert done.returncode == 1
    assert "srun --help lists no --container-image: error: Incompatible plugin version. Fix: " in done.stderr
    assert output("slurm/member", refused, CONTAINERS="") == "ready\n"


CONTAINER = """
mktemp() { mkdir "$FOLDER/made"; echo "$FOLDER/made"; }; chown() { echo "chown $*" >&2; }
runuser() { echo "runuser $2" >&2; SAID; }; CONTAINER_USER=ada start_container; ls "$FOLDER"
"""


@pytest.mark.parametrize(
    ("said", "status"),
    [("echo started", 0), ("echo 'enroot-nsenter: Operation not permitted' >&2; false", 1), ("true", 1)],
)
def test_a_host_is_done_when_a_user_can_start_a_container(tmp_path: Path, said: str, status: int) -> None:
    done = run("slurm/member", CONTAINER.replace("SAID", said), FOLDER=str(tmp_path))
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert "runuser ada" not in done.stdout and f"chown -R ada: {tmp_path}/made" in done.stderr
    assert ("ada cannot start a container: " in done.stderr) is (status == 1)
    assert ("kernel.apparmor_restrict_unprivileged_userns" in done.stderr) is (status == 1)
    assert [*tmp_path.iterdir()] == []


GPUS = 'printf \'{"status":"ok","list":[\'; for n in {1..%d}; do printf \'{"model":1},\'; done'


def program(**changes: str) -> str:
    """The health check of a host, with functions in place of the hardware."""
    host = preflight.hosts_of(slurm())[2]
    text = render.health(slurm(), host).rstrip().removesuffix("\nmain")
    made = {
        "gpus": GPUS % 8,
        "good_rails": "printf 8",
        "gdr": "printf true",
        "scontrol": 'echo " State=IDLE $*"',
        **changes,
    }
    functions = "".join(f"{name}() {{ {body}; }}\n" for name, body in made.items())
    done = subprocess.run(
        ["bash", "-c", f"{text}\n{functions}main"], capture_output=True, text=True, check=False, timeout=60
    )
    return f"{done.returncode} {done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"gpus": 'printf \'{"status":"failed"\''}, "nvidia-smi fails"),
        ({"gpus": GPUS % 7}, "7 of 8 GPUs"),
        ({"good_rails": "printf 7"}, "7 of 8 rails active at 400 Gb/s"),
        ({"gdr": "printf false"}, "no nvidia-peermem"),
    ],
)
def test_an_idle_node_with_less_than_its_pool_is_drained_with_the_reason(
    changes: dict[str, str], reason: str | None
) -> None:
    said = program(**changes)
    if reason is None:
        assert said == "0 "
        off = slurm(**configured(health_check={"enabled": False}))
        assert render.health(off, preflight.hosts_of(off)[2]) == ""
    else:
        assert said.startswith("1 ")
        assert said.endswith(f"update nodename=gpu-1 state=drain reason=busbar health: {reason}\n")


@pytest.mark.parametrize(
    ("shown", "drains"),
    [
        ("echo ' State=IDLE+DRAIN x Reason=by bob'", False),
        ("echo ' State=DOWN x Reason=by bob'", False),
        ("echo ' State=IDLE x Reason=an earlier DRAIN'", True),
        ("echo ' State=IDLE x'", True),
        ("return 1", False),
    ],
)
def test_a_drain_of_others_is_left_as_it_is_and_one_that_has_ended_is_none(shown: str, drains: bool) -> None:
    said = program(good_rails="printf 0", scontrol=f"[[ $* != *update* ]] || echo drains >&2; {shown}")
    assert ("drains" in said) is drains


def test_rails_are_the_active_ports_at_the_rate_that_are_not_ignored(tmp_path: Path) -> None:
    good = {"rate": "400 Gb/sec", "state": "4: ACTIVE", "link_layer": "InfiniBand"}
    bad = [{"rate": "200 Gb/sec"}, {"state": "1: DOWN"}, {"link_layer": "Ethernet"}]
    for number, change in enumerate([*bad, {}, {}]):
        port = tmp_path / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        for file, text in (good | change).items():
            (port / file).write_text(f"{text}\n")
    values = {"HEALTH_RATE": "400", "HEALTH_LINK_LAYER": "InfiniBand"}
    text = scripts.part("slurm/health").rstrip().removesuffix("\nmain")
    for ignored, count in (("", "2"), ("mlx5_4 x*", "1")):
        call = ["bash", "-c", f"INFINIBAND={tmp_path}\n{text}\ngood_rails"]
        environment = {**values, "HEALTH_IGNORED": ignored, "PATH": "/usr/bin:/bin"}
        assert subprocess.check_output(call, env=environment, text=True, timeout=60) == count


SCONTROL = """
timeout() { "${@:2}"; }; jobs() { echo "$JOBS"; }; scancel() { echo "scancel $*" >&2; }
NODE=gpu-1 REASON=fan END_JOBS=true
scontrol() {
  [[ $1 == show ]] || echo "scontrol $*" >&2
  [[ ${3:-} != state=drain ]] || STATE_NOW=IDLE+DRAIN WHY="${4#reason=} [root@2]"
  [[ $1 != show ]] || printf 'NodeName=gpu-1\\n   State=%s Weight=1\\n   Reason=%s\\n' "$STATE_NOW" "$WHY"
}
read_node "$NODE"
"""
OURS = "busbar drain: new fan (me@ws) [root@1]"


@pytest.mark.parametrize(
    ("state", "reason", "drains", "ends"),
    [
        ("IDLE", "", True, False),
        ("MIXED", "RMA x=7 State=y [bob@1]", True, False),  # what is left of a drain that has ended
        ("DOWN*", "Not responding [slurm@1]", True, False),
        ("IDLE+DRAIN", OURS, True, True),
        ("DOWN*+DRAIN", OURS.replace("[root@1]", ": Not responding [slurm@2]"), True, True),
        ("IDLE+DRAIN", "RMA 7 [bob@1]", False, False),
        ("IDLE+DRAIN", "busbar health: 1 of 2 GPUs [root@1]", False, False),
        ("IDLE+DRAIN", "busbar: quarantine: RMA [root@1]", False, False),
        ("IDLE+DRAIN", "gres/gpu count reported lower [slurm@1]", False, False),
        ("DOWN", "RMA 7 [bob@1]", False, False),
        ("IDLE", OURS, True, False),
    ],
)
def test_only_a_drain_of_the_command_is_changed_or_ended(
    state: str, reason: str, drains: bool, ends: bool
) -> None:
    about = {"STATE_NOW": state, "WHY": reason, "JOBS": ""}
    done = run("slurm/node", f"{SCONTROL} drain_node", **about)
    assert ("update nodename=gpu-1 state=drain reason=busbar drain: fan" in done.stderr) is drains
    facts = json.loads(done.stdout)
    assert facts["ours"] is drains
    assert facts["reason"] == ("busbar drain: fan [root@2]" if drains else reason)
    done = run("slurm/node", f"{SCONTROL} uncordon_node", **about)
    assert ("update nodename=gpu-1 state=undrain" in done.stderr) is ends
    assert json.loads(done.stdout)["ours"] is ends


@pytest.mark.parametrize(("jobs", "cancelled"), [("", False), ("7,9", True)])
def test_jobs_are_cancelled_where_that_is_asked_for(jobs: str, cancelled: bool) -> None:
    done = run("slurm/node", f"{SCONTROL} drain_node", STATE_NOW="IDLE", WHY="", JOBS=jobs)
    assert ("scancel --nodelist=gpu-1" in done.stderr) is cancelled
    assert json.loads(done.stdout)["jobs"] == jobs
