"""How a script and its values travel. What the scripts do on a host is for the lab to prove."""

from __future__ import annotations

import json
import subprocess

import pytest

from busbar.hosts import scripts as hostscript
from tests.unit.hosts.bash import output, run

ALL = sorted(path.stem for path in hostscript.HOST_DIR.glob("*.sh") if "/parts.sh" in path.read_text())


def launched(
    script: str, values: dict[str, str] | None = None, *, cut: int | None = None, seconds: int = 20
) -> subprocess.CompletedProcess[str]:
    """Runs `script` the way a host does, with no payload; only the first `cut` characters of stdin arrive."""
    stdin = f"{{}}\n{hostscript.packed(script)}\n"[:cut]
    text = hostscript.command("kubeconfig", values or {}, user="root", timeout_seconds=seconds)
    return subprocess.run(
        ["sh", "-c", text], input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_by_hand_loads_the_files_that_are_sent_with_it() -> None:
    done = subprocess.run(
        ["bash", str(hostscript.HOST_DIR / "k3s-agent.sh")],
        env={"VERB": "none", "NODE_NAME": "w-1", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr.startswith(("busbar: w-1: VERB=none is unknown", "busbar: w-1: not root"))


def test_values_arrive_whatever_characters_they_hold() -> None:
    nasty = 'it\'s "quoted" $HOME `id` \\ and\ntwo lines; # äöü'
    done = launched('printf %s "$IMAGES"', {"IMAGES": nasty})
    assert done.stdout == nasty


def test_a_script_is_read_to_its_end_before_any_of_it_runs() -> None:
    done = launched("cat\necho end\n")
    assert done.stdout == "end\n", "`cat` must find an empty stdin, not the rest of the script"


def test_a_script_that_was_cut_off_on_its_way_does_nothing() -> None:
    script = "echo begun\n" * 20
    length = len(hostscript.packed(script)) + len("{}\n\n")
    assert launched(script).stdout == script.replace("echo ", "")
    for cut in range(0, length, 9):
        done = launched(script, cut=cut)
        assert (done.stdout, done.returncode) == ("", 1), f"ran with {cut} of {length} characters"


def test_a_script_that_does_not_end_is_ended() -> None:
    assert launched("sleep 30", seconds=1).returncode == 124


def test_a_login_other_than_root_runs_everything_under_sudo_without_asking() -> None:
    text = hostscript.command("kubeconfig", {"NODE_NAME": "a"}, user="ubuntu", timeout_seconds=9)
    assert text.startswith("sudo -n env NODE_NAME=a ")


def test_a_payload_arrives_byte_for_byte() -> None:
    secret = 'K10ab::server:p"w\\d\n$(id) äöü\n'
    line = hostscript.stdin("k3s-server", {"config": secret, "registries": ""}).partition("\n")[0]
    assert output("k3s-server", 'payload config; printf "|%s|" "$(payload registries)"', PAYLOAD=line) == (
        f"{secret}||"
    )


def test_a_payload_that_is_not_there_is_empty() -> None:
    assert output("k3s-server", "payload config", PAYLOAD="{}") == ""


def test_no_secret_stands_in_the_command_text() -> None:
    payload = {"config": "token: hunter2"}
    assert "hunter2" not in hostscript.stdin("k3s-agent", payload), "encoded, so no log shows it by chance"
    assert "hunter2" not in hostscript.command("k3s-agent", {}, user="root", timeout_seconds=1)


@pytest.mark.parametrize("name", ["node_name", "A-B", "A=B; rm", ""])
def test_a_value_needs_the_name_of_a_variable(name: str) -> None:
    with pytest.raises(ValueError, match="is not a variable name"):
        hostscript.command("kubeconfig", {name: "x"}, user="root", timeout_seconds=1)


def test_a_payload_needs_a_plain_name() -> None:
    with pytest.raises(ValueError, match="is not a payload name"):
        hostscript.stdin("kubeconfig", {'a":"': "x"})


@pytest.mark.parametrize("script", ALL)
def test_only_the_last_line_of_a_script_makes_it_run(script: str) -> None:
    text = hostscript.text(script)
    assert text.endswith("\nmain\n"), "the last line is what makes the functions run"
    done = run(script, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("script", sorted(set(ALL) - set(hostscript.DELIVERED.values())))
def test_a_script_that_stands_in_the_state_stays_small(script: str) -> None:
    assert len(hostscript.stdin(script)) < 36_000, "the engine keeps it twice per Command"


def test_what_is_sent_does_not_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = set()
    for now in (1, 1_000_000_000):
        monkeypatch.setattr("time.time", lambda now=now: now)
        packed.add(hostscript.packed.__wrapped__("echo"))
    assert len(packed) == 1, "else every step runs again in every update"


def test_the_digest_follows_the_text() -> None:
    assert len({hostscript.digest(script) for script in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "text", ["plain", 'with "quotes" and \\', "two\nlines\tand a tab", "bell\a", "äöü", ""]
)
def test_json_of_any_text_is_json(text: str) -> None:
    made = json.loads(output("kubeconfig", 'json "$1"', text))
    assert made == text.replace("\a", ""), "control characters have no place in facts"
