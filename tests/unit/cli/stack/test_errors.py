"""Errors of the engine get a readable text and a fix. The texts are those of Pulumi 3.259.

tests/engine/test_engine_texts.py has the real engine print those that need no hosts.
"""

import pytest

from busbar.cli.stack.errors import fixes, reasons
from busbar.components.engine.stack import INCOMPLETE, UNFINISHED
from busbar.finding import STACK_SHOWN

pytestmark = pytest.mark.usefixtures("stack_dev")
DIALLED, CONVERGE = "take it out of hosts", "busbar up dev --converge cluster"
OF_OTHERS = (
    'gpu-operator-release: ClusterRole "gpu-operator" in namespace "" exists and cannot be imported into the '
    "current release: invalid ownership metadata"
)
ENDING = (
    'jobs.batch is forbidden: unable to create new content in namespace "jobs" because it is being terminated'
)
NO_PYTHON = "busbar-worker-removal@w-2: exit status 127:\n/bin/sh: 1: /home/ada/.venv/bin/python: not found"
KNOWN = {
    "environment of another admin": (NO_PYTHON, "busbar up dev, which notes the one here; then retry"),
    "dead": ("unable to create ssh client: dial tcp 10.0.0.21:22: connect: no route to host", DIALLED),
    "dead behind a bastion": ("w-2: ssh: rejected: connect failed (No route to host)", DIALLED),
    "key": ("ssh: handshake failed: ssh: host key mismatch", "busbar preflight dev"),
    "no cluster": ("configured Kubernetes cluster is unreachable", "busbar verify dev"),
    "of others": (OF_OTHERS, "set enabled: false of its chart"),
    "uninstalled": ('gpu-operator-release: "gpu-operator" has no deployed releases', CONVERGE),
    "namespace": (ENDING, CONVERGE),
}


@pytest.mark.parametrize(("error", "fix"), KNOWN.values(), ids=KNOWN)
def test_a_known_error_of_the_engine_is_shown_with_its_fix(error: str, fix: str) -> None:
    assert reasons([], f"error: {error}") == [error]
    (found,) = fixes([error])
    assert fix in found


def test_a_cluster_that_is_not_reached_is_not_to_be_dropped_from_the_state() -> None:
    short = "busbar-nccl-namespace: failed to read resource state due to unreachable cluster"
    advice = "If the cluster was deleted, you can remove this resource from Pulumi state by rerunning"
    assert reasons([f"{short}. {advice}"], "") == [short]
    assert fixes([short]) == ["see what does not run: busbar verify dev"]


def test_a_host_that_cannot_be_dialled_is_named_instead_of_the_raw_error() -> None:
    why = "dial tcp 10.0.0.22:22: connect: no route to host"
    [reason] = reasons([f"worker-w-2: after 3 failed attempts: {why}\n"], "")
    assert reason == f"worker-w-2: is not responding ({why}); no changes made there"
    assert "take it out of hosts" in fixes([reason])[0]


# As pulumi-command 1.2 reports a failed command: the command quoted as Go does, then both of its streams.
COMMAND = r"""running "env NODE_NAME=w-2 timeout -k 15 600 bash -c 'eval \"$SCRIPT\"'":"""


@pytest.mark.parametrize(
    "said",
    [
        "busbar: w-2: K3s did not start within 300 s\nFix: journalctl -u k3s-agent",
        # This connection is not that to the host.
        'busbar: w-2: K3s failed: level=fatal msg="dial tcp 10.0.0.11:6443: connect: connection refused"',
    ],
)
def test_a_failed_script_is_shown_by_what_it_said_and_without_its_command(said: str) -> None:
    [reason] = reasons([f"worker-w-2: Process exited with status 1: {COMMAND}\n{said}"], "")
    assert reason == f"worker-w-2: Process exited with status 1:\n{said}"
    assert fixes([reason]) == [], "the script has its own fix"


def test_the_fix_of_a_script_is_typed_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STACK_SHOWN, "dev --project ../site")
    said = "busbar: w-2: its Node was deleted. Fix: busbar verify STACK; or busbar up STACK --converge w-2"
    [reason] = reasons([f"worker-w-2: Process exited with status 1: {COMMAND}\n{said}"], "")
    shown = "dev --project ../site"
    assert reason.endswith(f"Fix: busbar verify {shown}; or busbar up {shown} --converge w-2")


def test_a_connection_that_ended_while_a_script_ran_is_said() -> None:
    why = "wait: remote command exited without exit status or exit signal"
    said = f"worker-w-2: the SSH connection ended while its script ran ({why})"
    assert reasons([f"worker-w-2: {why}: {COMMAND}\n"], "") == [said]


@pytest.mark.parametrize(
    ("errors", "stderr", "shown"),
    [
        ([], "error: disk full", "disk full"),
        # A follow-up error is shown where there is no other.
        (["update failed\n"], "", "update failed"),
        ([], "", "the engine gave no reason"),
    ],
)
def test_an_unknown_error_and_none_have_no_fix(errors: list[str], stderr: str, shown: str) -> None:
    assert reasons(errors, stderr) == [shown]
    assert fixes([shown]) == []


def test_what_the_program_printed_explains_an_error_that_only_reports_another_one() -> None:
    follow_up = "an unhandled error occurred: program exited with non-zero exit code: 1"
    assert reasons([follow_up], "", printed=["no rails"]) == ["no rails", follow_up]
    assert reasons(["disk full", follow_up], "", printed=["no rails"]) == ["disk full"]


@pytest.mark.parametrize(
    "text",
    [
        f"busbar-dev: {INCOMPLETE}",
        f"busbar-dev: {UNFINISHED}",
        'busbar-control-plane-rejoin: malformed RPC secret: missing value for "stdin"',
    ],
)
def test_what_a_failed_step_entails_is_not_an_error_of_its_own(text: str) -> None:
    assert reasons(["worker-a: failed", text], "") == ["worker-a: failed"]
