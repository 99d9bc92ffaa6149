"""remote.Command and CopyToRemote against a real SSH server on loopback, driven as the engine drives them.

Not proved here: what the engine makes of the answers; that a real sshd acts as asyncssh's server does.
"""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from lab.offline.plugins.sdk.values import SIGNATURE_KEY, UNKNOWN, Secret, reveal
from lab.offline.tests.loopback_host import SshHost
from lab.offline.tests.plugin_engine import Engine, OperationFailed

COMMAND = "command:remote:Command"
COPY = "command:remote:CopyToRemote"


def test_a_new_command_runs_create_and_keeps_both_streams(command: Engine, host: SshHost) -> None:
    _, _, state = command.up(
        COMMAND,
        {"connection": host.connection(), "create": "echo one; echo two >&2; cat", "stdin": "three\n"},
    )
    assert (state["stdout"], state["stderr"]) == ("one\nthree", "two"), "one trailing newline is taken off"


def test_the_connection_is_completed_and_kept_secret(command: Engine, host: SshHost) -> None:
    checked = command.check(COMMAND, {"connection": {"host": "127.0.0.1", "privateKey": "k"}})
    assert isinstance(checked["connection"], Secret)
    assert reveal(checked)["connection"] == {
        "host": "127.0.0.1",
        "user": "root",
        "port": 22,
        "dialErrorLimit": 10,
        "perDialTimeout": 15,
        "privateKey": "k",
    }


def test_a_command_without_a_host_is_refused(command: Engine) -> None:
    assert command.failures(COMMAND, {"connection": {"port": 22}}) == [
        "connection.host: Missing required property 'host'"
    ]


def test_a_command_without_create_dials_nobody(command: Engine, host: SshHost) -> None:
    _, _, state = command.up(COMMAND, {"connection": host.connection()})
    assert (state["stdout"], host.commands) == ("", 0)


def test_the_same_inputs_are_no_change(command: Engine, host: SshHost) -> None:
    _, checked, state = command.up(COMMAND, {"connection": host.connection(), "create": "true"})
    again = command.check(COMMAND, {"connection": host.connection(), "create": "true"}, checked)
    assert not command.diff(COMMAND, state, checked, again).changed


@pytest.mark.parametrize(
    ("changed", "path"),
    [({"delete": "true"}, "delete"), ({"create": "echo new"}, "create"), ({"stdin": "x"}, "stdin")],
)
def test_any_changed_input_is_an_update(
    command: Engine, host: SshHost, changed: dict[str, str], path: str
) -> None:
    base = {"connection": host.connection(), "create": "true"}
    _, checked, state = command.up(COMMAND, base)
    diff = command.diff(COMMAND, state, checked, command.check(COMMAND, {**base, **changed}, checked))
    assert (diff.changed, diff.replaces, path in diff.details) == (True, [], True)


def test_a_changed_field_of_the_connection_is_an_update_too(command: Engine, host: SshHost) -> None:
    _, checked, state = command.up(COMMAND, {"connection": host.connection(), "create": "true"})
    news = command.check(
        COMMAND, {"connection": host.connection(dialErrorLimit=7), "create": "true"}, checked
    )
    diff = command.diff(COMMAND, state, checked, news)
    assert (diff.details, diff.replaces) == ({"connection.dialErrorLimit": "UPDATE"}, [])


def test_a_changed_trigger_is_a_replacement(command: Engine, host: SshHost) -> None:
    base = {"connection": host.connection(), "create": "true", "update": "true"}
    _, checked, state = command.up(COMMAND, {**base, "triggers": ["a"]})
    diff = command.diff(COMMAND, state, checked, command.check(COMMAND, {**base, "triggers": ["b"]}, checked))
    assert diff.replaces == ["triggers[0]"]


def test_an_update_runs_create_again_where_there_is_no_update(command: Engine, host: SshHost) -> None:
    base = {"connection": host.connection(), "create": "echo created", "addPreviousOutputInEnv": False}
    id, checked, state = command.up(COMMAND, base)
    state = command.update(COMMAND, id, state, {**checked, "delete": "true"})
    assert (state["stdout"], host.commands) == ("created", 2)


def test_an_update_runs_update_where_there_is_one(command: Engine, host: SshHost) -> None:
    base = {"connection": host.connection(), "create": "echo created", "addPreviousOutputInEnv": False}
    id, checked, state = command.up(COMMAND, base)
    state = command.update(COMMAND, id, state, {**checked, "update": "echo updated"})
    assert state["stdout"] == "updated"


def test_delete_runs_the_stored_command(command: Engine, host: SshHost, tmp_path: Path) -> None:
    id, _, state = command.up(
        COMMAND, {"connection": host.connection(), "create": "touch there", "delete": "rm there"}
    )
    assert (tmp_path / "there").exists()
    command.delete(COMMAND, id, state)
    assert not (tmp_path / "there").exists()


def test_a_preview_runs_nothing_and_promises_no_output(command: Engine, host: SshHost) -> None:
    _, _, state = command.up(COMMAND, {"connection": host.connection(), "create": "echo"}, preview=True)
    assert (state["stdout"], state["stderr"], host.commands) == (UNKNOWN, UNKNOWN, 0)


def test_a_preview_of_a_change_makes_the_output_unknown(command: Engine, host: SshHost) -> None:
    id, checked, state = command.up(COMMAND, {"connection": host.connection(), "create": "echo 1"})
    news = {**checked, "create": "echo 2"}
    assert command.update(COMMAND, id, state, news, preview=True)["stdout"] is UNKNOWN


def test_a_failure_names_status_text_and_output_but_not_stdin(command: Engine, host: SshHost) -> None:
    script = "echo out; echo err >&2; cat > /dev/null; exit 3"
    with pytest.raises(OperationFailed) as failed:
        command.up(COMMAND, {"connection": host.connection(), "create": script, "stdin": "hush"})
    text = str(failed.value)
    assert text.startswith(f'Process exited with status 3: running "{script}":\n')
    assert "out\n" in text and "err\n" in text and "hush" not in text


def test_a_killed_command_names_the_signal(command: Engine, host: SshHost) -> None:
    with pytest.raises(OperationFailed, match="Process exited with status 137 from signal KILL"):
        command.up(COMMAND, {"connection": host.connection(), "create": "kill -9 $$"})


def test_a_wrong_host_key_is_a_mismatch_after_the_allowed_attempts(command: Engine, host: SshHost) -> None:
    wrong = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode()
    with pytest.raises(OperationFailed) as failed:
        command.up(COMMAND, {"connection": host.connection(hostKey=wrong), "create": "true"})
    assert str(failed.value) == "after 1 failed attempts: ssh: handshake failed: ssh: host key mismatch"
    assert host.commands == 0


def test_a_pinned_key_of_a_type_the_host_lacks_is_named(command: Engine, host: SshHost) -> None:
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=2048).export_public_key("openssh").decode()
    with pytest.raises(OperationFailed, match="no common algorithm for host key"):
        command.up(COMMAND, {"connection": host.connection(hostKey=rsa), "create": "true"})


def test_a_closed_port_is_reported_after_the_allowed_attempts(command: Engine, host: SshHost) -> None:
    nobody = host.connection(port=1, dialErrorLimit=2)
    with pytest.raises(OperationFailed) as failed:
        command.up(COMMAND, {"connection": nobody, "create": "true"})
    expected = "after 2 failed attempts: dial tcp 127.0.0.1:1: connect: connection refused"
    assert str(failed.value) == expected


def test_a_refused_login_is_reported_in_the_official_words(command: Engine, host: SshHost) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_private_key("openssh").decode()
    with pytest.raises(OperationFailed, match="ssh: unable to authenticate, attempted methods"):
        command.up(COMMAND, {"connection": host.connection(privateKey=stranger), "create": "true"})


def test_a_bastion_carries_the_connection(command: Engine, host: SshHost, tmp_path: Path) -> None:
    bastion = SshHost(tmp_path)
    try:
        _, _, state = command.up(
            COMMAND, {"connection": host.connection(proxy=bastion.connection()), "create": "echo through"}
        )
    finally:
        bastion.close()
    assert state["stdout"] == "through"


def test_a_variable_the_host_does_not_accept_is_an_error(command: Engine, host: SshHost) -> None:
    with pytest.raises(OperationFailed, match='could not set environment variable "FOO"'):
        command.up(COMMAND, {"connection": host.connection(), "create": "true", "environment": {"FOO": "1"}})


def test_an_accepted_variable_reaches_the_command(command: Engine, tmp_path: Path) -> None:
    host = SshHost(tmp_path, accept_env=frozenset({"FOO"}))
    try:
        _, _, state = command.up(
            COMMAND, {"connection": host.connection(), "create": "echo $FOO", "environment": {"FOO": "bar"}}
        )
    finally:
        host.close()
    assert state["stdout"] == "bar"


def test_a_line_that_would_hang_the_official_plugin_is_an_error(command: Engine, host: SshHost) -> None:
    long = "head -c 70000 /dev/zero | tr '\\0' x"
    with pytest.raises(OperationFailed, match="the official command plugin hangs on that"):
        command.up(COMMAND, {"connection": host.connection(), "create": long})
    _, _, state = command.up(COMMAND, {"connection": host.connection(), "create": long, "logging": "none"})
    assert len(state["stdout"]) == 70000


def asset(text: str, digest: str) -> dict[str, str]:
    return {SIGNATURE_KEY: "c44067f5952c0a294b673a41bacd8c17", "text": text, "hash": digest}


def test_text_is_copied_into_folders_that_do_not_exist_yet(
    command: Engine, host: SshHost, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "folder" / "file"
    inputs = {"connection": host.connection(), "source": asset("hello", "1"), "remotePath": str(target)}
    id, checked, state = command.up(COPY, inputs)
    assert target.read_text() == "hello"
    command.update(COPY, id, state, {**checked, "source": asset("changed", "2")})
    assert target.read_text() == "changed"


def test_a_copy_is_not_repeated_when_only_the_login_changed(
    command: Engine, host: SshHost, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    inputs = {"connection": host.connection(), "source": asset("hello", "1"), "remotePath": str(target)}
    id, checked, state = command.up(COPY, inputs)
    target.unlink()
    command.update(COPY, id, state, {**checked, "connection": host.connection(dialErrorLimit=9)})
    assert not target.exists(), "the official plugin does not notice a removed file either"
