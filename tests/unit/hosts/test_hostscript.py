"""How scripts, their values and their results travel. The lab proves what the scripts do on a host."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from busbar.hosts import haproxy, k3s, scripts
from busbar.preflight.spec import SCRIPT_SECONDS
from tests.support.bash import line, output, run

ALL = sorted(path.stem for path in scripts.HOST_DIR.glob("*.sh") if "/parts.sh" in path.read_text())


def sh(text: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """Runs the text of a Command as sshd does."""
    return subprocess.run(
        ["sh", "-c", text], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def launched(
    script: str, values: dict[str, str] | None = None, *, cut: int | None = None, seconds: int = 20
) -> subprocess.CompletedProcess[str]:
    """Runs `script` without payload; only the first `cut` characters of stdin arrive."""
    text = scripts.command("kubeconfig", values or {}, user="root", timeout_seconds=seconds)
    return sh(text, f"{{}}\n{scripts.packed(script)}\n"[:cut])


def test_a_script_by_hand_loads_the_files_that_are_sent_with_it() -> None:
    done = subprocess.run(
        ["bash", str(scripts.HOST_DIR / "k3s-agent.sh")],
        env={"VERB": "none", "NODE_NAME": "w-1", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr.startswith(("busbar: w-1: VERB=none is unknown", "busbar: w-1: not root"))


def test_values_arrive_whatever_characters_they_hold() -> None:
    nasty = 'it\'s "quoted" $HOME `id` \\ and\ntwo lines; # äöü'
    assert launched('printf %s "$IMAGES"', {"IMAGES": nasty}).stdout == nasty


def test_a_script_is_read_before_any_of_it_runs_and_ended_if_it_does_not_end() -> None:
    done = launched("cat\necho end\n")
    assert done.stdout == "end\n", "`cat` must find an empty stdin, not the rest of the script"
    assert launched("sleep 30", seconds=1).returncode == 124


def test_a_script_that_was_cut_off_on_its_way_does_nothing() -> None:
    script = "echo begun\n" * 20
    length = len(scripts.packed(script)) + len("{}\n\n")
    assert launched(script).stdout == script.replace("echo ", "")
    for cut in range(0, length, 9):
        done = launched(script, cut=cut)
        assert (done.stdout, done.returncode) == ("", 1), f"ran with {cut} of {length} characters"


@pytest.mark.parametrize("name", ["node_name", "A-B", "A=B; rm", ""])
def test_a_value_needs_the_name_of_a_variable(name: str) -> None:
    with pytest.raises(ValueError, match="is not a variable name"):
        scripts.command("kubeconfig", {name: "x"}, user="root", timeout_seconds=1)
    with pytest.raises(ValueError, match="is not a payload name"):
        scripts.stdin("kubeconfig", {f'{name}"': "x"})


@pytest.mark.parametrize("script", ALL)
def test_only_the_last_line_of_a_script_makes_it_run(script: str) -> None:
    assert scripts.text(script).endswith("\nmain\n")
    done = run(script, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_sent_depends_on_the_text_and_not_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = set()
    for now in (1, 1_000_000_000):
        monkeypatch.setattr("time.time", lambda now=now: now)
        packed.add(scripts.packed.__wrapped__("echo"))
    assert len(packed) == 1, "else every step runs again in every update"
    assert len({scripts.digest(script) for script in ALL}) == len(ALL)


def test_a_payload_arrives_byte_for_byte_and_one_that_is_not_there_is_empty() -> None:
    secret = 'K10ab::server:p"w\\d\n$(id) äöü\n'
    printed = 'payload config; printf "|%s|" "$(payload registries)$(payload other)"'
    given = line({"config": secret, "registries": ""})
    assert output("k3s-server", printed, PAYLOAD=given) == f"{secret}||"


def test_a_payload_is_encoded_so_that_no_log_shows_a_secret_by_chance() -> None:
    assert "hunter2" not in scripts.stdin("k3s-agent", {"config": "token: hunter2"})


PREFLIGHT = scripts.text("preflight").rstrip().removesuffix("\nmain")
SCRIPT = 'echo "ran with $(cat)$PAYLOAD"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the host keeps scripts; the agent's script is SCRIPT."""
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()[:12]
    monkeypatch.setattr(scripts, "text", lambda _: SCRIPT)
    monkeypatch.setattr(scripts, "digest", lambda _: digest)
    return tmp_path / "busbar"


def keep(folder: Path, payload: dict[str, str]) -> None:
    """Run what preflight does with its payload, on a host whose umask is the usual one."""
    call = "set -euo pipefail; umask 022; DELIVERED_DIR=$1; keep_script"
    subprocess.run(
        ["bash", "-c", f"{PREFLIGHT}\n{call}", "bash", str(folder)],
        env={"PAYLOAD": line(payload), "PATH": "/usr/bin:/bin"}, timeout=120, check=True,
    )  # fmt: skip


def deliver(folder: Path) -> Path:
    """The file in which preflight has left the script of a worker."""
    keep(folder, scripts.delivery("worker"))
    [file] = folder.iterdir()
    return file


def launch(folder: Path, payload: str = '{"config":"eA=="}\n') -> subprocess.CompletedProcess[str]:
    values = {"NODE_NAME": "gpu-1"}
    text = scripts.command("k3s-agent", values, user="root", timeout_seconds=20, delivered=True)
    return sh(text.replace(scripts.DELIVERED_DIR, str(folder)), payload)


def test_what_preflight_kept_is_private_and_runs_with_the_payload_of_each_command(folder: Path) -> None:
    file = deliver(folder)
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    for _ in range(2):
        assert launch(folder).stdout == 'ran with {"config":"eA=="}\n'


def test_a_script_that_is_not_there_is_named_and_nothing_runs(folder: Path) -> None:
    done = launch(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-2:] == [
        f"busbar: gpu-1: this host does not have the script {scripts.identity('k3s-agent')}",
        scripts.not_delivered("k3s-agent"),
    ]


@pytest.mark.parametrize("changed", [f"{SCRIPT}echo more\n", SCRIPT[:-2], ""])
def test_a_script_with_another_digest_does_not_run_until_delivered_again(folder: Path, changed: str) -> None:
    deliver(folder).write_text(changed)
    done = launch(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert scripts.not_delivered("k3s-agent") in done.stderr.splitlines()
    deliver(folder)
    assert launch(folder).returncode == 0


@pytest.mark.parametrize("payload", ["", '{"config":"eA'])
def test_a_connection_that_breaks_before_the_payload_runs_nothing(folder: Path, payload: str) -> None:
    deliver(folder)
    done = launch(folder, payload)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("role", ["lb", "server", "by hand"])
def test_hosts_whose_commands_carry_their_scripts_keep_none(folder: Path, role: str) -> None:
    keep(folder, scripts.delivery(role))
    assert not folder.exists()


BANNER = "Welcome to node {gpu-1}!\n\tLast login: {never}\n"


@pytest.mark.parametrize("before", ["", BANNER, "loading modules... ", f"{BANNER}[ok] "])
def test_what_a_login_prints_before_the_result_is_left_out(before: str) -> None:
    assert scripts.script_result(f'{before}{{"node":"a","ready":true}}\n') == {"node": "a", "ready": True}


@pytest.mark.parametrize("stdout", ["", "\n", BANNER, "[]", '{"node":', '"a"', "client-key-data: SECRET"])
def test_an_output_without_a_result_is_refused_and_not_shown(stdout: str) -> None:
    with pytest.raises(ValueError, match=r"^a script on a host exited 0 without a facts line$"):
        scripts.script_result(stdout)


@pytest.mark.parametrize(
    "text", ["plain", 'with "quotes" and \\', "two\nlines\tand a tab", "bell\a", "äöü", ""]
)
def test_json_of_any_text_is_json(text: str) -> None:
    made = json.loads(output("kubeconfig", 'json "$1"', text))
    assert made == text.replace("\a", ""), "control characters have no place in facts"


@pytest.mark.parametrize(
    ("script", "value", "expected"),
    [
        ("k3s-server", "$K3S_AUTH_CONFIG", k3s.AUTH_CONFIG),
        ("k3s-server", "$K3S_DATA_DIR/server/tls/server-ca.crt", haproxy.SERVER_CA_FILE),
        ("k3s-agent", "$DELIVERED_DIR", scripts.DELIVERED_DIR),
    ],
)
def test_scripts_and_program_use_the_same_places(script: str, value: str, expected: str) -> None:
    assert output(script, f'echo "{value}"') == f"{expected}\n"


def test_preflight_is_waited_for_as_long_as_its_programs_may_take() -> None:
    assert int(output("preflight", "echo $((2 * NVIDIA_SMI_SECONDS + 6 * HEALTH_SECONDS))")) < SCRIPT_SECONDS
