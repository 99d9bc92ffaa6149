"""The commands of the core on a stack of Slurm: what they ask of its hosts, and how they end."""

import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from busbar.capability import FOLDER
from busbar.cli.operation import Operations
from busbar.finding import Finding
from busbar.hosts.remote import UnreachableError
from busbar.preflight.facts import HostRecord
from busbar.preflight.survey import Outcome
from stacks.slurm.package import operations
from stacks.slurm.package.config import KEY, PROJECT
from stacks.slurm.package.preflight import Spec
from stacks.slurm.tests.support import compute, configured, facts, slurm
from tests.support.cli import busbar
from tests.support.clusters import host_key
from tests.support.reports import hca


def test_the_module_has_the_functions_by_which_the_core_serves_its_stacks() -> None:
    served: Operations = operations  # mypy compares the signatures
    assert callable(served.verify)


def stack(content: dict[str, Any]) -> str:
    return yaml.safe_dump({"config": {f"{PROJECT}:{KEY}": content}})


@dataclass
class Site:
    """A stack whose hosts give `findings`; `asked`: the specs of preflight; `nodes`: as slurmctld says.

    `given`: the values that host/node.sh got, and `answers` its facts. `is_off`: slurmd does not run.
    """

    path: Path
    findings: list[Finding] = field(default_factory=list)
    asked: list[Spec] = field(default_factory=list)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    completing: dict[str, tuple[str, float]] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    given: list[Mapping[str, str]] = field(default_factory=list)
    is_off: bool = False

    def write(self, **changes: Any) -> None:
        self.path.write_text(stack(configured(**changes)))

    def __call__(self, *words: str) -> Result:
        return busbar(*(word.format(self.path) for word in words))

    async def survey(self, spec: Spec, *_: object, **__: object) -> Outcome:
        self.asked.append(spec)
        names = {host.name for host in spec.hosts}
        known = {name: {**each, "gpu_model": "H100"} for name, each in facts(slurm()).items()}
        found = {name: HostRecord("f", name, known[name]) for name in names}
        return Outcome([each for each in self.findings if each.host in names], found, len(found))

    async def run(self, host: Any, script: str, values: Mapping[str, str], **__: object) -> Any:
        if values["VERB"] == "daemon":
            return {"active": not self.is_off}
        if script == "paths":
            self.given.append({"host": host.name, **values})
            if values["VERB"] == "look":
                hcas = [hca(f"mlx5_{number}") for number in range(8)]
                devices = {
                    name: f"/sys/devices/{name}"
                    for name in ("0000:1b:00.0", *(each["name"] for each in hcas))
                }
                return {"hcas": hcas, "links": [], "devices": devices}
            result = {"status": 0, "server": "", "client": "8388608 100 0.0 392.0 0.0"}
            return {"runs": [] if values["VERB"] == "serve" else [result for _ in values["RUNS"].split()]}
        assert host.name == "ctl"
        if script == "slurm/node":
            self.given.append(values)
            if not self.answers:
                raise KeyboardInterrupt
            return self.answers.pop(0)
        if not self.nodes:
            raise UnreachableError(host, OSError("no route"))
        assert values["VERB"] == "nodes"
        return {"nodes": self.nodes, "completing": self.completing}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "Pulumi.dev.yaml")
    made.write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stacks.slurm.package.operations.survey", made.survey)
    monkeypatch.setattr("stacks.slurm.package.operations.POLL_SECONDS", 0)
    monkeypatch.setattr("busbar.hosts.ssh.check_agent", lambda _: None)
    monkeypatch.setattr("busbar.hosts.remote.Hosts.run", made.run)
    monkeypatch.setattr("stacks.slurm.package.operations.install_id", lambda _: "0123456789abcdef")
    return made


ROLES = {"ctl": "controller", "login": "login", "gpu-1": "compute", "gpu-2": "compute"}


@pytest.mark.parametrize("level", ["error", "warning", None])
def test_preflight_asks_and_lists_every_host_before_the_first_update(site: Site, level: Any) -> None:
    site.findings += [Finding(("gpu-2",), "7 GPUs, expected 8", "repair it", kind=level)] if level else []
    done = site("preflight", "{}")
    assert done.exit_code == (1 if level == "error" else 0), done.output
    [spec] = site.asked
    assert [host.name for host in spec.hosts] == [*ROLES]
    assert spec.install_id == "0123456789abcdef"
    assert ("gpu-2: 7 GPUs, expected 8. Fix: repair it" in done.output) is bool(level)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if "10.0" in line]
    assert {row[0]: row[1] for row in rows} == ROLES


def test_host_keys_are_asked_before_the_file_is_whole(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made = configured()
    del made["pools"], made["hosts"]["controller"]["host_key"]
    site.path.write_text(stack(made))

    async def offered(host: Any, _: object) -> str:
        return host_key(host.name)

    monkeypatch.setattr("busbar.hosts.ssh.offered_key", offered)
    done = site("hosts", "keys", "{}")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("host_key")]
    assert [(row[0], " ".join(row[3:])) for row in rows] == [
        ("ctl", "not pinned"), ("login", "pinned"), ("gpu-1", "pinned"), ("gpu-2", "pinned"),
    ]  # fmt: skip
    assert f"host_key: {host_key('ctl')}   # hosts.controller (ctl)" in done.stdout


# The state of gpu-2, a job that does not leave it, quarantine, whether that is well, and what is shown.
NODES = yaml.safe_load("""
- [mixed, [], false, true, mixed]
- ["drained: new fan", [], false, false, "drained: new fan"]
- ["drained: new fan", [], true, true, "drained: new fan"]
- [down*, [], false, false, down*]
- [completing, ["9", 130], false, false, "job 9 has been completing for 130 s, expected at most 120 s"]
- [completing, ["9", 20], false, true, completing]
""")


@pytest.mark.parametrize(("of_gpu_2", "completing", "quarantine", "is_well", "shown"), NODES)
def test_nodes_shows_the_hardware_of_compute_hosts_beside_the_states_of_slurm(
    site: Site, of_gpu_2: str, completing: list[Any], quarantine: bool, is_well: bool, shown: str
) -> None:
    site.write(hosts=compute({}, {"quarantine": "RMA 7"} if quarantine else {}))
    states = {"gpu-1": "idle", "gpu-2": of_gpu_2}
    for name, text in states.items():
        state, _, reason = text.partition(": ")
        site.nodes[name] = {"state": state, "reason": reason, "by": "root"}
    site.completing = {"gpu-2": (completing[0], completing[1])} if completing else {}
    done = site("nodes", "{}", "--json")
    assert done.exit_code == (0 if is_well else 1), done.output
    found = json.loads(done.stdout)
    assert (found["stack"], found["well"]) == ("dev", is_well)
    assert {each["name"]: each["node"] for each in found["nodes"]} == {"gpu-1": "idle", "gpu-2": shown}
    assert found["nodes"][0]["facts"]["gpus"] == 8


def test_nodes_of_a_slurmctld_that_is_not_responding_are_unknown_and_an_error(site: Site) -> None:
    done = site("nodes", "{}", "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert [each["node"] for each in found["nodes"]] == ["unknown", "unknown"]
    [finding] = found["findings"]
    assert finding["host"] == "ctl" and finding["what"].startswith("slurmctld cannot be asked: ")


# The command, what host/node.sh answers one after the other, the exit code, and what the terminal shows.
DRAINS = yaml.safe_load("""
- [drain, [
    &busy {ours: true, state: mixed+drain, reason: "busbar drain: fan (me@ws) [root@now]", jobs: "7,9"},
    *busy,
    &ours {ours: true, state: idle+drain, reason: "busbar drain: fan (me@ws) [root@now]", jobs: ""}], 0,
   ["remaining jobs: 7,9", "gpu-2 is drained; when its repair is done: busbar uncordon dev gpu-2"]]
- [drain, [*ours], 130, ["interrupted; gpu-2 stays drained. Fix: run it again"]]
- [drain, [&others {ours: false, state: idle+drain, reason: "RMA [bob@now]", jobs: ""}, *others], 0,
   ["gpu-2 is idle+drain for another reason, and stays so: RMA [bob@now]",
    "gpu-2 has no jobs; busbar uncordon will leave it as it is"]]
- [drain, [*ours, &free {ours: false, state: idle, reason: "", jobs: ""}], 1,
   ["gpu-2 is idle and not drained any more"]]
- [uncordon, [*ours, {ours: false, state: down*, reason: "", jobs: ""}, *free], 0,
   ["gpu-2 is back: jobs can start there"]]
- [uncordon, [*others], 1,
   ["gpu-2 is idle+drain for another reason, and stays so: RMA [bob@now]. Fix: busbar verify"]]
- [uncordon, [*free], 1, ["gpu-2 is idle, not drained. Fix: busbar verify dev"]]
""")


@pytest.mark.parametrize(("command", "answers", "code", "texts"), DRAINS)
def test_drain_and_uncordon_change_only_what_busbar_has_drained(
    site: Site, command: str, answers: list[dict[str, Any]], code: int, texts: list[str]
) -> None:
    site.answers = [*answers]
    done = site(command, "{}", "gpu-2")
    assert done.exit_code == code, done.output
    assert [text for text in texts if text not in done.output] == []
    first, *others = [values["VERB"] for values in site.given]
    assert (first, {*others} <= {"show"}) == (command, True)
    assert site.given[0]["NODE"] == "gpu-2"
    if command == "uncordon":
        assert [host.name for host in site.asked[0].hosts] == ["gpu-2"]


def test_a_node_with_jobs_left_stays_drained(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbar.kube.wait.Deadline.passed", True)
    for words, ends in (([], "false"), (["--end-jobs"], "true")):
        site.given.clear()
        site.answers = [{**DRAINS[0][1][0], "jobs": "7"}] * 2
        done = site("drain", "{}", "gpu-2", "--reason", "new\nfan", *words)
        assert done.exit_code == 1, done.output
        assert site.given[0]["END_JOBS"] == ends and site.given[0]["REASON"].startswith("new fan (")
        assert "remaining jobs: 7; gpu-2 stays drained. Fix: run it again, with --end-jobs" in done.stderr


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("incomplete", "gpu-2: 7 GPUs, expected 8. Fix: repair it; gpu-2 stays drained"),
        ("off", "slurmd is not running; gpu-2 stays drained. Fix: busbar up dev --converge gpu-2"),
        ("quarantine", "gpu-2 is in quarantine in Pulumi.dev.yaml, and stays drained"),
    ],
)
def test_a_host_that_cannot_run_jobs_stays_drained(site: Site, state: str, text: str) -> None:
    site.is_off = state == "off"
    if state == "incomplete":
        site.findings = [Finding(("gpu-2",), "7 GPUs, expected 8", "repair it")]
    if state == "quarantine":
        site.write(hosts=compute({}, {"quarantine": "RMA 7"}))
    done = site("uncordon", "{}", "gpu-2")
    assert done.exit_code == 1 and site.given == [], done.output
    assert text in done.stderr
    for command in ("drain", "uncordon"):
        of_login = site(command, "{}", "login")
        assert of_login.exit_code == 64
        assert "login is not a compute host of Pulumi.dev.yaml" in of_login.stderr


def test_a_bundle_has_all_hosts_and_no_secret(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nplantedkey\n-----END OPENSSH PRIVATE KEY-----"
    (tmp_path / "id").write_text(key)
    config = {f"{PROJECT}:{KEY}": configured(ssh={"key_file": "id"})}
    secret = {f"{PROJECT}:sshPrivateKeyPassword": {"secure": "v1:ciphertext"}}
    site.path.write_text(yaml.safe_dump({"config": {**config, **secret}}))
    monkeypatch.setattr("busbar.cli.running.read_secret", lambda *_, namespace: f"word of {namespace}")
    monkeypatch.setattr("busbar.cli.stackfile.read_secret", lambda *_, namespace: f"word of {namespace}")
    monkeypatch.setattr("busbar.cli.running._engine", lambda *_: {"said": f"plantedkey, word of {PROJECT}"})
    site.findings = [Finding(("gpu-2",), "7 GPUs", "repair it", kind="warning")]
    target = tmp_path / "b.tar.gz"
    done = site("support-bundle", "{}", "-o", str(target))
    assert done.exit_code == 0, done.output
    with tarfile.open(target) as tar:
        texts = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        found = {name.removeprefix("b/"): file.read().decode() for name, file in texts.items() if file}
    hosts = json.loads(found["preflight.json"])
    assert set(hosts["facts"]) == {"ctl", "login", "gpu-1", "gpu-2"}
    assert [each["what"] for each in hosts["findings"]] == ["7 GPUs"]
    everything = "".join(found.values())
    assert not [text for text in ("plantedkey", "word of", "v1:ciphertext") if text in everything]


OF_SLURM = ["sackd", "slurm-client", "slurm-wlm-mysql-plugin", "slurmctld", "slurmd", "slurmdbd"]
OF_OS = ["mariadb-server", *OF_SLURM]
WITHOUT_LOGIN = {**configured()["hosts"], "login": []}
HOMES_AND_IMAGE = {
    "home": {"nfs": {"folder": "/srv/home"}}, "container_packages": "/c",
    "validation": {"image": "/images/nccl.sqsh"},
}  # fmt: skip
OF_SCHEDMD = [f"/d/slurm-smd{name}_*.deb" for name in ("", "-client", "-slurmctld", "-slurmd")]


@pytest.mark.parametrize(
    ("changes", "packages", "measured"),
    [
        ({"packages": "/d", "accounting": {}, "hosts": WITHOUT_LOGIN}, OF_SCHEDMD, "binary nccl-tests"),
        (HOMES_AND_IMAGE, ["/c/*.deb", "nfs-kernel-server", *OF_OS], "image  nccl.sqsh"),
    ],
)
def test_images_lists_what_the_hosts_fetch_without_asking_them(
    site: Site, changes: dict[str, Any], packages: list[str], measured: str
) -> None:
    site.write(**changes)
    done = site("images", "{}", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["stack"], found["schema"], found["unknown"], site.asked) == ("dev", 1, [], [])
    listed = [(each["kind"], each["name"]) for each in found["artifacts"]]
    assert sorted(name for kind, name in listed if kind == "package") == sorted(packages)
    [(kind, name)] = [each for each in listed if each[0] != "package"]
    assert kind in measured and name.rpartition("/")[2] in measured


def test_every_package_of_the_host_scripts_is_listed() -> None:
    installed = set()
    for script in ("controller", "accounting"):
        text = (FOLDER / "slurm" / "host" / f"{script}.sh").read_text()
        for line in re.findall(r"install_slurm (.*)|mysql=\((.*)\)", text):
            installed |= {word.strip("+") for word in "".join(line).split() if word[0] not in '"$'}
    assert installed - {"client"} <= {*OF_OS}


def test_paths_are_measured_over_ssh_where_no_job_runs(site: Site) -> None:
    site.nodes = {"gpu-1": {"state": "idle"}, "gpu-2": {"state": "mixed"}}
    done = site("diagnose", "{}", "--paths")
    assert (done.exit_code, site.given) == (2, [])
    said = "GPUs or HCAs are in use: jobs on gpu-2 (mixed). Fix: wait for these jobs, or end them"
    assert said in done.stderr
    site.nodes = {f"gpu-{number}": {"state": "idle", "reason": "", "by": ""} for number in (1, 2)}
    done = site("diagnose", "{}", "--paths", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["rows"], found["not_run"], len(found["paths"])) == (0, [], [], 40)
    asked = sorted(each["VERB"] for each in site.given)
    assert asked == ["connect", "look", "look", "loopback", "loopback", "serve"]


def test_verify_warns_where_it_cannot_notice_hosts_of_another_cluster(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_differs(slurm: object, login: object, install_id: str) -> list[Finding]:
        return []

    monkeypatch.setattr("stacks.slurm.package.verify.verify", nothing_differs)
    monkeypatch.setattr("busbar.cli.stackfile.install_id", lambda _: None)
    done = site("verify", "{}")
    assert (done.exit_code, "hosts of another cluster are not noticed" in done.output) == (0, True)
