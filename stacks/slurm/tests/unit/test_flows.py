"""The whole scripts of a controller and of its members, in the order of their steps."""

from pathlib import Path

import pytest

from tests.unit.hosts.recorded import Host, in_order

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).with_name("programs.sh").read_text()
OWNER = {
    **{"OWNER": "busbar-slurm/site/ctl", "INSTALL_ID": "11", "SLURM_PACKAGES": "os"},
    **{"CONTAINERS": "", "HOME_SERVER": ""},
}
MARKED = ["install -d -m 0700 /var/lib/busbar", "write /var/lib/busbar/owner"]
KEY = "/etc/slurm/slurm.key"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, PROGRAMS)


def apt(package: str) -> str:
    return f"apt-get install -y --no-install-recommends {package}"


def only(steps: list[str], *beginnings: str) -> list[str]:
    return [step for step in steps if step.startswith(beginnings)]


# ---- The controller ----------------------------------------------------------------------------------------

NODES = "NodeName=gpu-1 CPUs=1\nNodeName=gpu-2 CPUs=1\n"
PAYLOAD = {
    **{"slurm_key": "key", "slurm_conf": NODES, "cgroup_conf": "c", "gres_conf": "g", "topology_conf": "t"},
    **{"quarantine": "", "users": "", "slurmdbd_conf": "StoragePass=word", "database_password": "word"},
}
VALUES = {
    **{**OWNER, "NODE_NAME": "ctl", "CANCEL_JOBS": "false", "DRAIN_SECONDS": "0"},
    **{"KEEP_DATA": "true", "HOME_PATH": "/home"},
}


def controls(host: Host, **payload: str) -> list[str]:
    facts = host.facts("slurm/controller", {**PAYLOAD, **payload}, VERB="install", **VALUES)
    assert facts == {"node": "ctl", "slurmctld": "24.11.5"}
    return host.steps


def refused(host: Host, fails: str, **payload: str) -> str:
    return host.error("slurm/controller", {**PAYLOAD, **payload}, fails=fails, VERB="install", **VALUES)


CONFIGS = [f"/etc/slurm/{name}.conf" for name in ("slurm", "cgroup", "gres", "topology")]
RECORDED = "write /var/lib/busbar/applied.sha256"
RECONFIGURED = "scontrol reconfigure"


def test_a_controller_is_installed_in_slurm_s_order_and_recorded_last(host: Host) -> None:
    steps = controls(host)
    in_order(
        steps,
        [*MARKED, "touch /var/lib/busbar/user.created", "touch /var/lib/busbar/mariadb.created"],
        # A unit of Debian starts at its installation, unless it is masked.
        "systemctl mask --runtime -q slurmdbd",
        apt("slurmdbd"),
        "systemctl unmask --runtime -q slurmdbd",
        apt("--no-remove mariadb-server"),
        "systemctl start mariadb",
        "write /etc/slurm/slurmdbd.conf",
        "systemctl start slurmdbd",
        [apt("slurmctld"), apt("slurm-client")],
        [f"write {path}" for path in CONFIGS],
        "systemctl start slurmctld",
    )
    assert steps[-1] == RECORDED
    [sql] = only(steps, "mariadb: ")
    in_order(steps, "systemctl start mariadb", sql, "systemctl start slurmdbd")
    assert sql.count("IDENTIFIED BY 'word';") == 2, "a new user has the password, and so has an old one"
    # The key belongs to slurm before it has its name.
    in_order(steps, f"write {KEY}.busbar-new", f"chown slurm:slurm {KEY}.busbar-new", f"write {KEY}")
    modes = host.files()
    assert [modes[path] for path in (KEY, "/etc/slurm/slurmdbd.conf", CONFIGS[0])] == ["600", "600", "644"]
    applied = (host.root / "var/lib/busbar/applied.sha256").read_text().split()[1::2]
    assert applied == [f"{host.root}{path}" for path in (KEY, *CONFIGS)]


def test_an_update_that_changes_nothing_restarts_and_reloads_nothing(host: Host) -> None:
    controls(host)
    steps = controls(host)
    assert not [step for step in steps if "start " in step.replace("systemctl start mariadb", "")]
    assert RECONFIGURED not in steps and RECORDED not in steps


def test_another_configuration_drains_removed_nodes_before_slurmctld_reads_it(host: Host) -> None:
    controls(host)
    (host.root / "var/lib/busbar/mariadb.created").unlink()
    without = {"slurm_conf": "NodeName=gpu-1 CPUs=1\n", "topology_conf": ""}
    changed = controls(host, **without, quarantine="gpu-1 RMA 7\n")
    in_order(
        changed,
        "scontrol update nodename=gpu-2 state=drain reason=busbar: removed",
        ["write /etc/slurm/slurm.conf", "rm /etc/slurm/topology.conf"],
        RECONFIGURED,
        "scontrol update nodename=gpu-1 state=drain reason=busbar: quarantine: RMA 7",
    )
    assert "systemctl restart slurmctld" not in changed and changed[-1] == RECORDED
    assert "touch /var/lib/busbar/mariadb.created" not in changed, "a MariaDB that was there is not busbar's"


def set_node(host: Host, name: str, state: str, reason: str) -> None:
    """Slurm's record of a node, as others have left it."""
    host.state(f"slurm.{name}", f"{state}\n{reason}\n")


def node(host: Host, name: str) -> tuple[str, str]:
    """The state of a node, and its reason without the time."""
    state, reason = (host.root / f"state/slurm.{name}").read_text().splitlines()
    return state, reason.rpartition(" [")[0]


BY_ADA = "IDLE+DRAIN", "new fan [ada@2026-11-24T06:00:00]"
ADA_S = "IDLE+DRAIN", "new fan"
FREE = "IDLE"
QUARANTINE = "gpu-1 RMA 7\ngpu-2 RMA 8\n"
OURS = "busbar: quarantine: RMA 7"


def test_a_drain_of_others_keeps_its_reason_in_a_quarantine_and_outlives_it(host: Host) -> None:
    controls(host)
    set_node(host, "gpu-2", *BY_ADA)
    controls(host, quarantine=QUARANTINE)
    assert (node(host, "gpu-1"), node(host, "gpu-2")) == (("IDLE+DRAIN", OURS), ADA_S)
    assert any("gpu-2 is drained already, and stays so: new fan [ada@" in line for line in host.said)
    controls(host)
    assert (node(host, "gpu-1")[0], node(host, "gpu-2")) == (FREE, ADA_S)


def test_a_quarantine_that_others_have_drained_again_is_theirs(host: Host) -> None:
    like_ours = "busbar: quarantine: ask ada first"
    theirs = ["new fan", like_ours, "busbar: removed", OURS, f"{OURS} : Not responding"]
    names = [f"gpu-{number}" for number in range(1, len(theirs) + 3)]
    *others, never, ours = names
    conf = {"slurm_conf": "".join(f"NodeName={name} CPUs=1\n" for name in names)}
    held = "".join(f"{name} RMA 7\n" for name in (*others, ours))
    controls(host, **conf, quarantine=held)
    for name, reason in zip((*others, never), (*theirs, like_ours), strict=True):
        set_node(host, name, "IDLE+DRAIN", f"{reason} [root@2026-11-24T06:00:00]")
    for _ in range(2):
        controls(host, **conf)
        assert [node(host, name) for name in others] == [("IDLE+DRAIN", reason) for reason in theirs]
        assert node(host, never) == ("IDLE+DRAIN", like_ours), "it looks like one of busbar's"
        assert node(host, ours)[0] == FREE


def test_a_quarantine_ends_where_its_host_was_off_meanwhile(host: Host) -> None:
    controls(host, quarantine=QUARANTINE)
    set_node(host, "gpu-1", "DOWN+DRAIN", f"{OURS} : Not responding [slurm@2026-11-24T06:00:00]")
    assert not only(controls(host, quarantine=QUARANTINE), "scontrol"), "it is in quarantine still"
    set_node(host, "gpu-1", "IDLE+DRAIN", f"{OURS} : Not responding [slurm@2026-11-24T06:00:00]")
    controls(host)
    assert node(host, "gpu-1")[0] == FREE


def test_a_quarantine_that_a_killed_update_has_set_ends(host: Host) -> None:
    controls(host)
    for name, reason in (("gpu-1", OURS), ("gpu-2", "busbar: quarantine: RMA 8 : Not responding")):
        set_node(host, name, "IDLE+DRAIN", f"{reason} [slurm@2026-11-24T06:00:00]")
    # A drain of the same update of a node that stays is none of its removals either.
    set_node(host, "gpu-3", "IDLE+DRAIN", "busbar: removed [root@2026-11-24T06:00:00]")
    host.write("var/lib/busbar/drains", "gpu-3 busbar: removed [root@2026-11-24T06:00:00]\n")
    three = f"{NODES}NodeName=gpu-3 CPUs=1\n"
    controls(host, quarantine=QUARANTINE, slurm_conf=three)
    controls(host, slurm_conf=three)
    assert [node(host, f"gpu-{number}")[0] for number in (1, 2, 3)] == [FREE] * 3


def test_a_node_that_others_have_set_down_is_so_after_its_quarantine_for_their_reason(host: Host) -> None:
    controls(host)
    set_node(host, "gpu-1", "DOWN", "no power [ada@2026-11-24T06:00:00]")
    set_node(host, "gpu-2", "DOWN", "Not responding [slurm@2026-11-24T06:00:00]")
    for _ in range(2):
        controls(host, quarantine=QUARANTINE)
        assert node(host, "gpu-1") == ("DOWN+DRAIN", "no power")
        assert node(host, "gpu-2") == ("DOWN+DRAIN", "busbar: quarantine: RMA 8")
    controls(host)
    assert node(host, "gpu-1") == ("DOWN", "no power")


BY_ADA_DOWN = "DOWN", "no power [ada@2026-11-24T06:00:00]"


def test_a_node_that_somebody_has_set_down_is_so_after_slurm_has_read_another_configuration(
    host: Host,
) -> None:
    controls(host)
    set_node(host, "gpu-1", *BY_ADA_DOWN)
    set_node(host, "gpu-2", "DOWN*", "Not responding [slurm@2026-11-24T06:00:00]")
    steps = controls(host, cgroup_conf="new")
    assert (node(host, "gpu-1"), node(host, "gpu-2")[0]) == (("DOWN+DRAIN", "no power"), "IDLE")
    # Between the registration and its DOWN no job may start there.
    assert only(steps, "scontrol")[:2] == [
        "scontrol update nodename=gpu-1 state=drain reason=no power",
        RECONFIGURED,
    ]
    assert not only(controls(host, cgroup_conf="new"), "scontrol")
    controls(host, cgroup_conf="newer")
    assert node(host, "gpu-1") == ("DOWN+DRAIN", "no power")
    refused(host, "nothing", cgroup_conf="refused")
    assert node(host, "gpu-1") == ("DOWN+DRAIN", "no power")


OPEN = "PartitionName=a Nodes=gpu-1 MaxTime=UNLIMITED State=UP\n"
CLOSED = (
    "PartitionName=a AllowGroups=ALL AllowAccounts=lab,ops AllowQos=ALL AllocNodes=ALL QoS=N/A "
    "MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0 RootOnly=NO ReqResv=YES State=DOWN TotalCPUs=1\n"
)
LIMITED = "MaxTime=01:00:00 State=DOWN AllowAccounts=lab,ops ReqResv=YES\n"


@pytest.mark.parametrize("key", ["key", "another"], ids=["reconfigured", "restarted"])
def test_a_partition_that_somebody_has_closed_is_never_read_as_open(host: Host, key: str) -> None:
    controls(host, slurm_conf=NODES + OPEN)
    host.state("partitions", CLOSED)
    conf = f"{NODES}MaxJobCount=9\n{OPEN}"
    controls(host, slurm_conf=conf, slurm_key=key)
    read = (host.root / "state/read").read_text()
    assert f"MaxJobCount=9\nPartitionName=a Nodes=gpu-1 {LIMITED}" in read
    assert (host.root / "etc/slurm/slurm.conf").read_text() == conf
    # Another limit in the stack file takes the place of the one that was set by hand.
    controls(host, slurm_conf=conf.replace("UNLIMITED", "02:00:00"))
    assert "MaxTime=02:00:00 State=DOWN" in (host.root / "state/read").read_text()


def test_a_refused_configuration_leaves_a_closed_partition_closed(host: Host) -> None:
    controls(host, slurm_conf=NODES + OPEN)
    host.state("partitions", CLOSED)
    refused(host, "", slurm_conf=NODES + OPEN, gres_conf="refused")
    assert "State=DOWN" in (host.root / "state/read").read_text()
    assert (host.root / "etc/slurm/slurm.conf").read_text() == NODES + OPEN


def test_a_node_with_jobs_stays_in_the_configuration_and_a_refused_removal_ends_its_own_drains_only(
    host: Host,
) -> None:
    four = f"{NODES}NodeName=gpu-3 CPUs=1\nNodeName=gpu-4 CPUs=1\n"
    controls(host, slurm_conf=four, quarantine="gpu-3 RMA 7\n")
    set_node(host, "gpu-2", *BY_ADA)
    host.state("jobs", "7\n")
    said = refused(host, "nothing", slurm_conf="NodeName=gpu-1 CPUs=1\n")
    assert "gpu-2 is no longer configured, and jobs 7 run on it; it stays" in said
    assert (host.root / "etc/slurm/slurm.conf").read_text() == four
    assert [node(host, f"gpu-{number}") for number in (2, 3)] == [ADA_S, ("IDLE+DRAIN", OURS)]
    assert node(host, "gpu-4")[0] == FREE


def test_no_node_is_removed_while_slurmctld_does_not_tell_its_jobs(host: Host) -> None:
    controls(host)
    host.write("var/lib/slurm/slurmctld/clustername", "site")
    (host.root / "state/active.slurmctld").unlink()
    without = {"slurm_conf": "NodeName=gpu-1 CPUs=1\n"}
    said = refused(host, "systemctl start slurmctld", **without)
    assert "slurmctld is not responding, and gpu-2 is no longer configured; it stays" in said
    assert NODES in host.text("etc/slurm/slurm.conf")
    host.state("jobs", "7\n")
    assert "jobs 7 run on it" in refused(host, "nothing", **without), "it was started to be asked"


def test_a_configuration_that_slurmctld_refuses_is_an_error_until_it_is_read(host: Host) -> None:
    controls(host)
    refused(host, "nothing", cgroup_conf="refused")
    assert RECORDED not in host.steps
    assert host.steps.count(RECONFIGURED) == 2, "it may have taken the new one all the same"
    assert RECONFIGURED not in controls(host)
    assert RECONFIGURED in controls(host, cgroup_conf="new")
    assert RECONFIGURED not in controls(host, cgroup_conf="new")


def test_a_user_with_jobs_is_not_deleted(host: Host) -> None:
    controls(host, users="user ada 5001\nuser bob 5002\n")
    host.state("jobs", "7\n9\n")
    said = refused(host, "nothing", users="user bob 5002\n")
    assert "user ada is no longer configured, and has jobs 7,9; it was not deleted on any host" in said
    assert not only(host.steps, "userdel")
    host.state("jobs", "")
    assert only(controls(host, users="user bob 5002\n"), "userdel") == ["userdel ada"]


@pytest.mark.parametrize(
    ("listed", "written"),
    [("none pmi2\n\tpmix", "pmix # where srun lists it"), ("none\n\tpmi2", "pmi2"), ("", "pmi2")],
)
def test_srun_uses_pmix_where_it_lists_it_else_pmi2(host: Host, listed: str, written: str) -> None:
    host.state("mpi", listed)
    controls(host, slurm_conf=f"{NODES}MpiDefault=pmix # where srun lists it\n")
    assert (host.root / "etc/slurm/slurm.conf").read_text() == f"{NODES}MpiDefault={written}\n"


UNREADABLE = {"slurm_conf": "NodeName=gpu-1 CPUs=1\nMaxJobCuont=5\n"}


def configuration(host: Host) -> dict[str, str]:
    return {path.name: path.read_text() for path in (host.root / "etc/slurm").glob("*.conf")}


def test_a_slurm_conf_that_slurm_cannot_read_changes_no_file_and_no_node(host: Host) -> None:
    refused(host, "nothing", **UNREADABLE)
    assert not (host.root / "etc/slurm/slurm.conf").exists(), "not on a new host either"
    controls(host, users="user ada 5001\n")
    before = configuration(host)
    said = refused(host, "nothing", **UNREADABLE, slurmdbd_conf="")
    assert "Slurm refuses the new slurm.conf" in said and "unrecognized key: MaxJobCuont" in said
    assert configuration(host) == before
    assert not only(host.steps, "scontrol", "systemctl disable", "userdel")


def test_files_that_slurmctld_refuses_give_way_to_the_former_and_removed_nodes_stay(host: Host) -> None:
    controls(host, users="user ada 5001\n", cgroup_conf="")
    before = configuration(host)
    new = {"slurm_conf": "NodeName=gpu-1 CPUs=1\n", "topology_conf": ""}
    said = refused(host, "nothing", **{**new, "cgroup_conf": "refused"})
    assert "slurmctld refuses the new configuration and runs on with the former one" in said
    assert configuration(host) == before
    assert node(host, "gpu-2")[0] == FREE
    assert not only(host.steps, "userdel")


@pytest.mark.parametrize("stopped", [False, True])
def test_slurmctld_runs_with_the_former_files_where_it_does_not_with_the_new(
    host: Host, stopped: bool
) -> None:
    controls(host)
    before = configuration(host)
    if stopped:
        (host.root / "state/active.slurmctld").unlink()
    refused(host, "nothing", gres_conf="refused")
    assert configuration(host) == before
    starts = "systemctl start slurmctld"
    assert only(host.steps, RECONFIGURED, starts) == [starts if stopped else RECONFIGURED] * 2
    assert (host.root / "state/active.slurmctld").exists()


def test_another_key_restarts_both_daemons_and_one_that_does_not_start_is_tried_again(host: Host) -> None:
    controls(host)
    assert "slurmdbd did not restart" in refused(host, "systemctl restart slurmdbd", slurm_key="next")
    restarts = "systemctl restart slurmdbd", "systemctl restart slurmctld"
    assert only(controls(host), "systemctl restart") == [restarts[0]], "it may have started all the same"
    assert only(controls(host, slurm_key="next"), "systemctl restart") == [*restarts]


def test_accounting_that_is_switched_off_stops_and_keeps_its_data(host: Host) -> None:
    controls(host)
    steps = controls(host, slurmdbd_conf="", slurm_conf=f"{NODES}AccountingStorageType=none\n")
    in_order(steps, RECONFIGURED, "systemctl disable --now slurmdbd", "rm /etc/slurm/slurmdbd.conf", RECORDED)
    assert not [step for step in steps if "DROP" in step or "purge" in step]


DROPPED = "mariadb: DROP DATABASE IF EXISTS slurm_acct_db; DROP USER IF EXISTS 'slurm'@'localhost';"
DATA = "var/lib/mysql/slurm_acct_db/table"


@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_removed_controller_stops_before_its_packages_go_and_drops_no_data_that_are_kept(
    host: Host, keep: str
) -> None:
    controls(host)
    host.write(DATA, "jobs")
    facts = host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "KEEP_DATA": keep})
    assert facts == {"node": "ctl", "removed": True}
    gone = ["libslurm", "mariadb-server", "slurm-client", "slurm-wlm-mysql-plugin", "slurmctld", "slurmdbd"]
    assert only(host.steps, "systemctl dis", "mariadb", "apt-get", "userdel") == [
        "systemctl disable --now slurmctld",
        "systemctl disable --now slurmdbd",
        *([DROPPED] if keep == "false" else []),
        "systemctl disable --now mariadb",
        f"apt-get purge -y {' '.join(gone)}",
        "userdel slurm",
    ]
    assert [*host.files()] == ([f"/{DATA}"] if keep == "true" else [])


def test_a_mariadb_and_a_user_that_were_there_before_stay(host: Host) -> None:
    host.state("users", "slurm\n")
    host.state("version.mariadb-server", "11.4")
    host.state("active.mariadb", "")
    controls(host)
    host.write(DATA, "jobs")
    host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "KEEP_DATA": "false"})
    assert DROPPED in host.steps
    assert "systemctl disable --now mariadb" not in host.steps and "userdel slurm" not in host.steps
    purged = next(step for step in host.steps if "purge" in step)
    assert "mariadb-server" not in purged and [*host.files()] == [f"/{DATA}"]


def test_packages_that_an_administrator_installs_after_a_failed_installation_stay(host: Host) -> None:
    refused(host, "apt-get * install * slurm-client")
    host.state("version.nvidia-driver", "580")
    controls(host)
    host.facts("slurm/controller", {}, VERB="remove", **VALUES)
    [purged] = only(host.steps, "apt-get purge")
    assert "nvidia-driver" not in purged and "slurmdbd" in purged


@pytest.mark.parametrize("data", [DATA, "var/lib/mysql/wiki/page"])
def test_databases_that_were_there_before_stay(host: Host, data: str) -> None:
    """Those of a Slurm or a MariaDB whose packages were removed before."""
    host.write(data, "jobs of last year")
    host.state("databases", "slurm_acct_db\nslurm\n" if data == DATA else "")
    controls(host)
    host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "KEEP_DATA": "false"})
    assert [*host.files()] == [f"/{data}"]
    assert (DROPPED in host.steps) is (data != DATA)


def test_a_controller_of_another_stack_is_left_alone(host: Host) -> None:
    controls(host)
    facts = host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "INSTALL_ID": "22"})
    assert (facts["removed"], host.steps) == (False, [])


# ---- Compute and login hosts -------------------------------------------------------------------------------

NODE = "NodeName=gpu-1 Gres=gpu:h100:8(S:0-1) State=IDLE Partitions=h100"
MEMBER = {
    **{**OWNER, "NODE_NAME": "gpu-1", "UNIT": "slurmd", "CONTROLLER": "10.0.0.1:6817", "GPUS": "8"},
    "CANCEL_JOBS": "false",
}


def joins(host: Host, *, unit: str = "slurmd", **payload: str) -> list[str]:
    host.state("node.gpu-1", NODE)
    given = {"slurm_key": "key", "health": "program" if unit == "slurmd" else "", "users": "", **payload}
    values = {**MEMBER, "UNIT": unit, "HOME_PATH": f"{host.root}/run/home"}
    facts = host.facts("slurm/member", given, VERB="install", **values)
    known = {"state": "IDLE", "gpus": 8} if unit == "slurmd" else {"state": "", "gpus": 0}
    assert facts == {"node": "gpu-1", "version": "24.11.5", **known}
    return host.steps


DROP_IN = "/etc/systemd/system/slurmd.service.d/busbar.conf"
HEALTH = "/usr/local/lib/busbar/slurm-health"


def test_a_compute_host_starts_restarts_for_another_key_only_and_leaves_nothing_of_slurm(host: Host) -> None:
    steps = joins(host)
    in_order(
        steps,
        [*MARKED, "touch /var/lib/busbar/user.created"],
        [apt("slurmd"), apt("slurm-client")],
        [f"write {KEY}", f"write {DROP_IN}", f"write {HEALTH}"],
        "systemctl start slurmd",
    )
    assert steps[-1] == RECORDED
    modes = host.files()
    assert (modes[KEY], modes[HEALTH], modes[DROP_IN]) == ("600", "755", "644")
    lines = (host.root / DROP_IN[1:]).read_text().splitlines()
    options = 'Environment="SLURMD_OPTIONS=--conf-server 10.0.0.1:6817"'
    # Jobs may lock all memory, as RDMA needs.
    assert {options, "LimitMEMLOCK=infinity", "Restart=on-failure"} <= {*lines}
    assert not [step for step in joins(host) if "start slurmd" in step]
    again = [step for step in joins(host, slurm_key="next") if "start slurmd" in step]
    assert again == ["systemctl restart slurmd"]
    host.facts("slurm/member", {}, VERB="remove", **MEMBER)
    assert host.steps[0] == "systemctl disable --now slurmd"
    assert "apt-get purge -y libslurm slurm-client slurmd" in host.steps
    assert host.files() == {}


def test_a_running_daemon_gets_other_options_without_a_restart(host: Host) -> None:
    joins(host)
    drop_in = host.root / DROP_IN[1:]
    text = drop_in.read_text()
    drop_in.write_text(text.partition("Restart=")[0])
    steps = joins(host)
    assert drop_in.read_text() == text
    reloads = ("systemctl daemon-reload", "systemctl start", "systemctl restart")
    assert only(steps, *reloads) == [reloads[0]]


def test_a_compute_host_that_somebody_has_set_down_is_so_after_a_restart(host: Host) -> None:
    joins(host)
    set_node(host, "gpu-1", *BY_ADA_DOWN)
    given = {"slurm_key": "next", "health": "", "users": ""}
    facts = host.facts("slurm/member", given, VERB="install", **MEMBER, HOME_PATH="/home")
    assert "systemctl restart slurmd" in host.steps
    assert (facts["state"], node(host, "gpu-1")) == ("DOWN+DRAIN", ("DOWN+DRAIN", "no power"))


@pytest.mark.parametrize(
    ("unit", "gpus", "fails", "said"),
    [
        ("slurmd", 7, "nothing", "the node has 7 GPUs in Slurm, expected 8"),
        ("sackd", 8, "scontrol ping", "10.0.0.1:6817 is not responding. Fix: check port 6817 from here"),
    ],
)
def test_a_host_that_is_not_ready_is_not_recorded(
    host: Host, unit: str, gpus: int, fails: str, said: str
) -> None:
    host.state("node.gpu-1", NODE.replace(":8(", f":{gpus}("))
    given = {"slurm_key": "key", "health": "", "users": ""}
    values = {**MEMBER, "UNIT": unit, "HOME_PATH": "/home"}
    assert said in host.error("slurm/member", given, fails=fails, VERB="install", **values)
    assert RECORDED not in host.steps


def test_a_user_has_a_home_and_keys_that_others_cannot_read_and_each_key_once(host: Host) -> None:
    users = "user ada 5001\nkey ssh-ed25519 AAAA ada@here\n"
    steps, home = joins(host, users=users), "/run/home/ada"
    made = [f"useradd -u 5001 -U -M -d {home} -s /bin/bash ada", f"install -d -m 0700 -o ada -g 5001 {home}"]
    assert [step for step in steps if "ada" in step][:2] == made
    assert not set(made) & set(joins(host, users=users))
    keys = f"{home}/.ssh/authorized_keys"
    assert (host.root / keys[1:]).read_text() == "ssh-ed25519 AAAA ada@here\n"
    joins(host, users="user ada 5001\nkey ssh-ed25519 AAAA ada\n")
    assert (host.root / keys[1:]).read_text() == "ssh-ed25519 AAAA ada@here\nssh-ed25519 AAAA ada\n"
    assert host.files()[keys] == "600"
    host.facts("slurm/member", {}, VERB="remove", **MEMBER)
    assert "userdel ada" in host.steps


def test_a_user_whose_home_is_not_where_homes_are_now_is_named_unless_others_have_made_it(host: Host) -> None:
    host.state("users", "eve\n")
    host.state("passwd", f"eve:x:5003:5003::{host.root}/srv/eve:/bin/bash\n")
    users = "user ada 5001\nuser eve 5003\n"
    joins(host, users=users)
    assert not [line for line in host.said if "home" in line]
    text = (host.root / "state/passwd").read_text()
    host.state("passwd", text.replace("/run/home/ada", "/home/ada"))
    joins(host, users=users)
    [said] = [line for line in host.said if "home" in line]
    assert said == (
        f"user ada has its home at {host.root}/home/ada, not below {host.root}/run/home; when its files are "
        f"there and nothing of it runs, on each host: usermod -d {host.root}/run/home/ada ada"
    )


def test_only_users_that_busbar_has_created_are_deleted(host: Host) -> None:
    host.state("users", "bob\n")
    host.state("more.sh", PROGRAMS.replace("more-useradd() {", "more-useradd() { return 1;"))
    given = {"slurm_key": "key", "health": "", "users": "user ada 5001\n"}
    said = host.error("slurm/member", given, VERB="install", **MEMBER, HOME_PATH="/home")
    assert "user ada cannot be created" in said
    host.state("more.sh", PROGRAMS)
    host.state("users", "slurm\nbob\nada\n")
    steps = joins(host, users="user bob 5002\n")
    host.facts("slurm/member", {}, VERB="remove", **MEMBER)
    assert not only([*steps, *host.steps], "userdel ada", "userdel bob")


def test_a_login_host_starts_sackd(host: Host) -> None:
    assert "systemctl start sackd" in joins(host, unit="sackd")


def test_slurmctld_forgets_no_partition_with_jobs_and_none_that_was_made_by_hand(host: Host) -> None:
    conf = NODES + OPEN
    controls(host, slurm_conf=conf)
    host.state("partitions", f"{OPEN}PartitionName=mine Nodes=gpu-1 MaxTime=UNLIMITED State=UP\n")
    said = refused(host, "nothing", slurm_conf=conf, gres_conf="new")
    assert "partition mine is not in the configuration, and slurmctld would forget it; it stays" in said
    assert "scontrol delete partitionname=mine" in said and RECONFIGURED not in host.steps
    assert (host.root / "etc/slurm/gres.conf").read_text() == "g\n"
    assert RECONFIGURED not in controls(host, slurm_conf=conf, users="user ada 5001\n")
    host.state("partitions", OPEN)
    host.state("jobs", "7_[1-3,...]\n7_4\n9+0\n9+1\n")
    said = refused(host, "nothing", slurm_conf=NODES)
    assert "slurmctld would forget it and end its jobs 7,9; it stays. Fix: " in said
    assert "scancel 7 9; " in said and RECONFIGURED not in host.steps
    host.state("jobs", "")
    host.state("reservations", "ReservationName=course Nodes=gpu-1 PartitionName=a Flags=MAINT\n")
    said = refused(host, "nothing", slurm_conf=NODES)
    assert "slurmctld would forget it and delete the reservations course; it stays" in said
    host.state("reservations", "No reservations in the system\n")
    assert RECONFIGURED in controls(host, slurm_conf=NODES)


def test_files_that_somebody_has_changed_and_had_read_are_read_again_and_refused_beside_a_partition_by_hand(
    host: Host,
) -> None:
    conf = NODES + OPEN
    controls(host, slurm_conf=conf)
    host.write("etc/slurm/cgroup.conf", "mine\n")
    host.state("partitions", f"{OPEN}PartitionName=mine Nodes=gpu-1 MaxTime=UNLIMITED State=UP\n")
    assert "partition mine is not in the configuration" in refused(host, "nothing", slurm_conf=conf)
    assert RECONFIGURED not in host.steps, "slurmctld would forget it"
    host.state("partitions", OPEN)
    assert RECONFIGURED in controls(host, slurm_conf=conf)
    assert RECONFIGURED not in controls(host, slurm_conf=conf)


def test_a_plugstack_conf_of_the_site_stays_and_busbar_s_goes_with_its_containers(host: Host) -> None:
    path, ours = "etc/slurm/plugstack.conf", "# Written by busbar\ninclude /usr/share/pyxis/*\n"
    controls(host, plugstack_conf=ours)
    assert f"rm /{path}" in controls(host)
    host.write(path, "optional site.so\n")
    for conf in (NODES, f"{NODES}MaxJobCount=9\n"):
        controls(host, slurm_conf=conf)
    refused(host, "nothing", cgroup_conf="refused")
    host.facts("slurm/controller", {}, VERB="remove", **VALUES)
    assert host.text(path) == "optional site.so\n"


def test_a_slurmctld_that_answers_slowly_is_told_nothing_new(host: Host) -> None:
    controls(host, slurm_conf=NODES + OPEN)
    host.state("partitions", CLOSED)
    payload = {**PAYLOAD, "slurm_conf": NODES + OPEN, "cgroup_conf": "new"}
    for question, what in (
        ("@(ping|--oneliner show partition)", "its partitions"),
        ("--oneliner show node", "set down"),
    ):
        done = host.run("slurm/controller", payload, fails=f"scontrol {question}", VERB="install", **VALUES)
        assert done.returncode == 1 and "slurmctld does not tell" in done.stderr and what in done.stderr
    assert "State=UP" in (host.root / "state/read").read_text() and RECONFIGURED not in host.steps
    host.write("var/lib/slurm/slurmctld/clustername", "site")
    once = 'ping) echo >>"$STATE/pings"; (($(wc -l <"$STATE/pings") == 1)) || return 1;'
    host.state("more.sh", PROGRAMS.replace("ping)", once))
    refused(host, "nothing", slurm_conf="NodeName=gpu-1 CPUs=1\n" + OPEN)
    assert "scontrol update nodename=gpu-2 state=drain reason=busbar: removed" in host.steps


def test_a_user_slurm_of_something_else_keeps_its_password_in_mariadb_and_outlives_the_controller(
    host: Host,
) -> None:
    host.state("databases", "slurm\n")
    host.state("version.mariadb-server", "11.4")
    said = refused(host, "nothing")
    assert "MariaDB has a user slurm, and no database slurm_acct_db: it belongs to something else" in said
    assert refused(host, "mariadb -BN") and not only(host.steps, "mariadb")
    host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "KEEP_DATA": "false"})
    assert not only(host.steps, "mariadb")
    host.state("databases", "")
    controls(host)
    host.state("databases", "slurm_acct_db\nslurm\n")
    assert only(controls(host), "mariadb"), "it is busbar's now"


def test_a_mysql_that_was_there_before_is_not_removed(host: Host) -> None:
    host.state("version.mysql-server", "8.0")
    assert "mariadb-server failed" in refused(host, "nothing")
    assert (host.root / "state/version.mysql-server").exists()


@pytest.mark.parametrize(
    ("keep", "dependents"),
    [("true", ""), ("false", ""), ("false", "Remv wiki [1.0]"), ("false", "E: Unmet dependencies")],
)
def test_what_others_have_added_to_mariadb_and_installed_outlives_the_controller(
    host: Host, keep: str, dependents: str
) -> None:
    controls(host)
    host.write("var/lib/mysql/mysql/user", "system")
    host.write("var/lib/mysql/wiki/page", "of ada")
    host.state("dependents", dependents)
    host.facts("slurm/controller", {}, VERB="remove", **{**VALUES, "KEEP_DATA": keep})
    assert host.text("var/lib/mysql/wiki/page") == "of ada"
    assert "systemctl disable --now mariadb" not in host.steps
    purged = "libslurm slurm-client slurm-wlm-mysql-plugin slurmctld slurmdbd"
    assert only(host.steps, "apt-get") == ([] if dependents else [f"apt-get purge -y {purged}"])


def test_a_removal_asks_apt_nothing_where_no_package_came_with_it(host: Host) -> None:
    controls(host)
    host.write("var/lib/busbar/packages.added", "")
    host.state("dependents", "E: Unmet dependencies")
    host.facts("slurm/controller", {}, VERB="remove", **VALUES)
    assert only(host.steps, "apt-get", "userdel") == ["userdel slurm"]
