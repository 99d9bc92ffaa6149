"""Errors of the engine get a readable text and a fix. The texts are those of Pulumi 3.259.

tests/engine/test_engine_texts.py has the real engine print those that need no hosts.
"""

from __future__ import annotations

import pytest

from busbar.cli.stack.errors import fixes, reasons
from busbar.components.engine.stack import INCOMPLETE, UNFINISHED
from busbar.finding import STACK_SHOWN

pytestmark = pytest.mark.usefixtures("stack_dev")


@pytest.mark.parametrize(
    ("stderr", "fix"),
    [
        (
            "error: unable to create ssh client: dial tcp 10.0.0.21:22: connect: no route to host",
            "take it out of hosts",
        ),
        ("worker-w-2: ssh: rejected: connect failed (No route to host)", "take it out of hosts"),
        ("error: ssh: handshake failed: ssh: host key mismatch", "busbar preflight dev"),
        ("error: configured Kubernetes cluster is unreachable", "busbar verify dev"),
        (
            'error: gpu-operator-release: ClusterRole "gpu-operator" in namespace "" exists and cannot be '
            "imported into the current release: invalid ownership metadata; annotation validation error: key "
            '"meta.helm.sh/release-namespace" must equal "gpu-operator": current value is "nvidia"',
            "set enabled: false of its chart",
        ),
        (
            'error: gpu-operator-release: "gpu-operator" has no deployed releases',
            "busbar up dev --converge cluster",
        ),
        (
            'error: jobs.batch is forbidden: unable to create new content in namespace "jobs" because it is '
            "being terminated",
            "busbar up dev --converge cluster",
        ),
    ],
    ids=["dead", "dead behind a bastion", "key", "no cluster", "of others", "uninstalled", "namespace"],
)
def test_a_known_error_of_the_engine_is_shown_with_its_fix(stderr: str, fix: str) -> None:
    (reason,) = reasons([], stderr)
    assert reason == stderr.removeprefix("error: ")
    (found,) = fixes([reason])
    assert fix in found


def test_a_cluster_that_is_not_reached_is_not_to_be_dropped_from_the_state() -> None:
    raw = (
        "busbar-nccl-namespace: failed to read resource state due to unreachable cluster. If the cluster was "
        "deleted, you can remove this resource from Pulumi state by rerunning the operation with the "
        'PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
    )
    short = "busbar-nccl-namespace: failed to read resource state due to unreachable cluster"
    assert reasons([raw], "") == [short]
    assert fixes([short]) == ["see what does not run: busbar verify dev"]


NO_ROUTE = "dial tcp 10.0.0.22:22: connect: no route to host"


def test_a_host_that_cannot_be_dialled_is_named_instead_of_the_raw_error() -> None:
    [reason] = reasons([f"worker-w-2: after 3 failed attempts: {NO_ROUTE}\n"], "")
    assert reason == f"worker-w-2: is not responding ({NO_ROUTE}); no changes made there"
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
    raw = f"worker-w-2: wait: remote command exited without exit status or exit signal: {COMMAND}\n"
    assert reasons([raw], "") == [
        "worker-w-2: the SSH connection ended while its script ran (wait: remote command exited without "
        "exit status or exit signal)"
    ]


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
