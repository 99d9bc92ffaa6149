"""`busbar preflight` as the engine and as a person calls it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from busbar.cli.k3s import spec_of_stack
from busbar.cli.stackfile import SecretError, kubeconfig_of, load_stack, login_of
from busbar.exits import USAGE
from busbar.finding import Finding
from busbar.preflight.facts import HostRecord, pack, with_warnings
from busbar.preflight.spec import Spec
from busbar.preflight.survey import Outcome
from tests.support.bash import programs
from tests.support.cli import busbar
from tests.support.clusters import refusing, site, stack_file
from tests.unit.preflight.samples import a_host, spec


def test_an_unknown_key_in_the_spec_is_bad_usage_and_the_private_key_stays_unseen() -> None:
    content = {"login": {"private_key": "SECRET-KEY", "colour": "red"}, "hosts": [], "requirements": {}}
    done = busbar("preflight", stdin=json.dumps(content))
    assert done.exit_code == USAGE
    assert "login.colour" in done.output
    assert "SECRET-KEY" not in done.output


def test_only_an_update_leaves_scripts_on_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    async def survey(spec: Spec, previous: object, *, deliver: bool = False) -> Outcome:
        seen.append(deliver)
        return Outcome([], {}, 0)

    for module in ("busbar.preflight.survey", "busbar.cli.k3s"):
        monkeypatch.setattr(f"{module}.survey", survey)
    stack_with_secret_key(tmp_path, monkeypatch, "echo key")
    asked = spec(a_host(address="127.0.0.1", port=1)).model_dump_json()
    assert busbar("preflight", stdin=asked).exit_code == 0
    assert busbar("preflight", "prod").exit_code == 0
    assert seen == [True, False]


def test_json_has_each_host_and_each_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    stack_with_secret_key(tmp_path, monkeypatch, f"cat <<'E'\n{key}\nE")
    done = busbar("preflight", "prod", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["stack"], found["ready"]) == (1, "prod", False)
    hosts = ["lb-1", "server-1", "gpu-1"]
    assert [(each["name"], each["ready"]) for each in found["hosts"]] == [(name, False) for name in hosts]
    assert {each["host"] for each in found["findings"]} >= {*hosts}


def test_what_passed_before_is_printed_again_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(a_host(address="127.0.0.1", port=1))
    facts = {"gpus": 8}
    previous = pack({"worker-1": HostRecord(asked.fingerprint(asked.hosts[0]), "aaaaaaaa", facts)})
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", previous)
    monkeypatch.setenv("BUSBAR_KNOWN_HOSTS", pack({}))
    done = busbar("preflight", stdin=asked.model_dump_json())
    assert done.exit_code == 0
    assert done.stdout == f"{previous}\n", "the same result, so nothing that depends on it changes"
    assert "preflight passed on 1 host (1 checked before)" in done.stderr


def test_a_step_that_is_made_again_knows_which_workers_passed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    down = spec(a_host(address="127.0.0.1", port=1), private_key=key)
    asked = down.model_copy(update={"quarantined": ("worker-1",)})
    monkeypatch.setenv("BUSBAR_KNOWN_HOSTS", pack({"worker-1": HostRecord("", "a", {"gpus": 8})}))
    done = busbar("preflight", stdin=asked.model_dump_json())
    assert (done.exit_code, "left out of this update" in done.stderr) == (0, True), done.output


def test_a_previous_result_that_is_broken_only_costs_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", "{}")
    key = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    asked = spec(a_host(address="127.0.0.1", port=1), private_key=key)
    done = busbar("preflight", stdin=asked.model_dump_json())
    assert done.exit_code == 1
    assert "the previous result is not used" in done.stderr
    assert "error: worker-1: root@127.0.0.1:1 refuses the connection" in done.stderr
    assert done.stdout == ""


def stack_with_secret_key(folder: Path, monkeypatch: pytest.MonkeyPatch, pulumi: str) -> None:
    """A stack whose only host key login is a secret, and a `pulumi` on PATH that runs `pulumi`."""
    cluster = refusing(site(ssh={}, workers={"h100": 1}, servers=1))
    stack_file(folder, cluster, sshPrivateKey={"secure": "v1:abc"})
    programs(folder / "bin", {"pulumi": pulumi})
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(folder)


def test_the_secret_key_of_a_stack_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack_with_secret_key(tmp_path, monkeypatch, 'echo "not a key: $*"')
    done = busbar("preflight", "prod")
    assert done.exit_code == 64
    assert "the SSH key in the secret sshPrivateKey cannot be used" in done.stderr


def test_a_passphrase_has_no_line_break_at_its_end_and_is_not_read_with_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_with_secret_key(tmp_path, monkeypatch, 'echo "value of $3"')
    file = tmp_path / "Pulumi.prod.yaml"
    file.write_text(f"{file.read_text()}  busbar:sshPrivateKeyPassword: {{secure: v1:def}}\n")
    stack, cluster = load_stack("prod", None)
    login = login_of(stack, cluster.ssh)
    assert login.private_key == "value of busbar:sshPrivateKey\n"
    assert login.private_key_password == "value of busbar:sshPrivateKeyPassword"
    other = replace(stack, namespace="slurm")
    assert login_of(other, cluster.ssh).private_key == "value of slurm:sshPrivateKey\n"
    (tmp_path / "bin/pulumi").write_text("#!/bin/false\n")
    stack_file(tmp_path, sshPrivateKeyPassword={"secure": "v1:def"})
    stack, cluster = load_stack("prod", None)
    assert login_of(stack, cluster.ssh).uses_agent


@pytest.mark.parametrize(
    ("pulumi", "reason"),
    [
        ("echo 'error: passphrase must be set' >&2; exit 255", "passphrase must be set"),
        ("exit 3", "exit code 3"),
        ("exec sleep 60", "timed out after 0.2 s"),
    ],
)
def test_a_secret_that_pulumi_does_not_give_is_named_with_the_reason(
    pulumi: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbar.cli.stackfile.SECRET_SECONDS", 0.2 if "sleep" in pulumi else 60)
    (folder := tmp_path / "my site").mkdir()
    stack_with_secret_key(folder, monkeypatch, pulumi)
    done = busbar("preflight", "prod")
    assert done.exit_code == 2
    assert f"--cwd '{folder}'` work" in done.stderr
    assert f"busbar:sshPrivateKey of stack prod cannot be read: {reason}. Fix:" in done.stderr


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("current stack does not have output property 'kubeconfig'", "busbar up prod, because no update"),
        ("failed to load checkpoint: unexpected end of JSON input", "see how to repair it: busbar status"),
    ],
)
def test_an_output_that_the_state_does_not_give_names_the_next_command(
    said: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_with_secret_key(tmp_path, monkeypatch, f'echo "error: {said}" >&2; exit 1')
    with pytest.raises(SecretError, match=f"Fix: {fix}"):
        kubeconfig_of(load_stack("prod", None)[0])
    kept = tmp_path / ".busbar/prod/kubeconfig"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"\x00\xff{{")
    with pytest.raises(SecretError, match=f"{kept}: not a kubeconfig .* Fix: busbar up prod, which writes"):
        kubeconfig_of(load_stack("prod", None)[0])


@pytest.mark.parametrize(
    ("pulumi", "known"),
    [
        ("""echo '{"create": "env INSTALL_ID=0123456789abcdef VERB=install"}'""", "0123456789abcdef"),
        ("echo '{}'", ""),
        ("echo \"error: no stack named 'prod' found\" >&2; exit 1", ""),
        ("echo 'error: passphrase must be set' >&2; exit 1", None),
    ],
)
def test_the_id_comes_from_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulumi: str, known: str | None
) -> None:
    stack_with_secret_key(tmp_path, monkeypatch, f"[[ $1 == config ]] && exit; {pulumi}")
    assert spec_of_stack(*load_stack("prod", None)).install_id == known


def test_a_warning_is_printed_once_and_then_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(a_host(address="127.0.0.1", port=1))

    def updated(*warnings: str, previous: str = "") -> tuple[str, str]:
        async def survey(spec: object, before: dict[str, HostRecord], *, deliver: bool = False) -> Outcome:
            found = [Finding(("worker-1",), each, "repair it", kind="warning") for each in warnings]
            records = with_warnings({"worker-1": HostRecord("f", "m", {})}, found)
            return Outcome(found, records, 1)

        monkeypatch.setattr("busbar.preflight.survey.survey", survey)
        monkeypatch.setenv("PULUMI_COMMAND_STDOUT", previous)
        done = busbar("preflight", stdin=asked.model_dump_json())
        return done.stdout, done.stderr

    first, said = updated("clock is not synchronised")
    assert "warning: worker-1: clock is not synchronised. Fix: repair it" in said
    again, said = updated("clock is not synchronised", "uses cgroup v1", previous=first)
    assert "clock is not" not in said and "warning: worker-1: uses cgroup v1" in said
    assert "1 warning as in the last update; to see them: busbar preflight STACK" in said
    assert "2 warnings as in" in updated("clock is not synchronised", "uses cgroup v1", previous=again)[1]
