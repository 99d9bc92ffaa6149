"""What keeps pods from running: from their status, and from their events."""

from typing import Any

import pytest

from busbar.kube.pods import MAX_ISSUES, issue_report, issues_of, namespace_report
from tests.support.kube_cluster import Cluster, container, pod, unreachable, unschedulable, warning


def waiting(reason: str, message: str = "") -> Any:
    return container({"waiting": {"reason": reason, "message": message}})


def test_a_healthy_or_starting_pod_has_no_issues() -> None:
    assert list(issues_of(pod("a", containerStatuses=[container({"running": {}})]))) == []
    assert list(issues_of(pod("a", phase="Pending", containerStatuses=[waiting("ContainerCreating")]))) == []


@pytest.mark.parametrize(
    ("reason", "permanent", "persistent"),
    [
        ("ImagePullBackOff", False, True),
        ("CrashLoopBackOff", False, True),
        # Two kubelets make the same folder of shared storage at once; the second try finds it.
        ("CreateContainerConfigError", False, True),
        ("StartError", True, False),
        ("InvalidImageName", True, False),
    ],
)
def test_a_reason_to_wait_says_whether_waiting_helps(reason: str, permanent: bool, persistent: bool) -> None:
    (issue,) = issues_of(pod("a", phase="Pending", containerStatuses=[waiting(reason, "why")]))
    assert (issue.permanent, issue.persistent) == (permanent, persistent)
    assert str(issue) == f"a: {reason}: container nccl: why"


OOM = container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})
CRASHED = {"terminated": {"reason": "Error", "exitCode": 1, "message": "no GPU"}}
CRASH_LOOP = container({"waiting": {"reason": "CrashLoopBackOff"}}, CRASHED)


@pytest.mark.parametrize(
    ("phase", "status", "says"),
    [
        ("Pending", {"conditions": [unschedulable("2 Insufficient")]}, "w: Unschedulable: 2 Insufficient"),
        ("Failed", {"containerStatuses": [OOM]}, "w: OOMKilled: container nccl: ended with exit code 137"),
        # The crash is shown, and not only the wait.
        (
            "Running",
            {"containerStatuses": [CRASH_LOOP]},
            "w: Error: container nccl: ended with exit code 1: no GPU",
        ),
    ],
)
def test_a_pod_that_does_not_run_says_why(phase: str, status: dict[str, Any], says: str) -> None:
    assert says in [str(issue) for issue in issues_of(pod("w", phase=phase, **status))]


def test_events_of_unhappy_pods_are_added_newest_last_and_each_once() -> None:
    pods = [pod("w", phase="Pending"), pod("fine")]
    events = [
        warning("w", "FailedMount", "second", "2026-01-01T00:00:02Z"),
        warning("w", "FailedMount", "first", "2026-01-01T00:00:01Z"),
        warning("w", "FailedMount", "second", "2026-01-01T00:00:03Z"),
        warning("w", "FailedMount", "second", "2026-01-01T00:00:00Z"),
        warning("fine", "Unhealthy", "readiness probe failed"),
        {**warning("w", "Pulled", "ok"), "type": "Normal"},
    ]
    assert issue_report(pods, events) == ["w: FailedMount: first", "w: FailedMount: second"]


def test_of_many_events_of_a_pod_the_newest_three_are_shown_whichever_field_has_their_time() -> None:
    def at(number: int, **time: Any) -> dict[str, Any]:
        return {**warning("w", "Failed", f"attempt {number}"), "lastTimestamp": None, **time}

    times = [f"2026-01-01T00:00:0{number}Z" for number in range(5)]
    events = [
        at(4, series={"lastObservedTime": times[4]}, eventTime=times[0]),
        at(1, lastTimestamp=times[1]),
        at(3, eventTime=times[3]),
        at(2, metadata={"creationTimestamp": times[2]}),
    ]
    lines = issue_report([pod("w", phase="Pending")], events)
    assert lines == [f"w: Failed: attempt {number}" for number in (2, 3, 4)]


def test_attempts_that_differ_in_their_ids_are_one_line_that_ends_with_the_cause() -> None:
    def attempt(digit: str) -> str:
        return (
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to set up sandbox "
            f'"{digit * 64}": plugin type="multus" failed (add): '
            "[training/w/a8166b78-4ecb-480e-82f6-eb40fbeede1a:rail0]: error adding container to network "
            '"rail0": DelegateAdd: cannot add the interface of this network to the pod on this host: '
            "failed to create macvlan: Link not found"
        )

    events = [
        warning("w", "FailedCreatePodSandBox", attempt(digit), f"2026-01-01T00:00:0{digit}Z")
        for digit in "1234"
    ]
    (line,) = issue_report([pod("w", phase="Pending")], events)
    assert line.startswith("w: FailedCreatePodSandBox: Failed to create pod sandbox")
    assert 'sandbox "<id>"' in line
    assert line.endswith("failed to create macvlan: Link not found")


def test_the_digest_of_an_image_is_kept() -> None:
    image = f"registry.example/nccl@sha256:{'a' * 64}"
    (line,) = issue_report([pod("w", phase="Pending")], [warning("w", "Failed", f"cannot pull {image}")])
    assert line.endswith(image)


def test_hundreds_of_pods_with_one_issue_share_one_line_and_many_issues_are_cut() -> None:
    pods = [
        pod(f"w-{n}", phase="Pending", containerStatuses=[waiting("ErrImagePull", "no")]) for n in range(440)
    ]
    events = [warning(f"w-{n}", "Failed", f"cannot pull for w-{n}") for n in range(440)]
    assert issue_report(pods, events) == [
        "w-0, w-1 and 438 more: ErrImagePull: container nccl: no",
        "w-0, w-1 and 438 more: Failed: cannot pull for <pod>",
    ]
    pods = [pod(f"w-{n}", phase="Pending", containerStatuses=[waiting("Odd", f"{n}")]) for n in range(40)]
    lines = issue_report(pods, [])
    assert len(lines) == MAX_ISSUES + 1
    assert lines[-1] == f"... and {40 - MAX_ISSUES} more"


def test_an_api_that_does_not_answer_is_said_instead_of_raised() -> None:
    api = Cluster()
    api.failures = [unreachable()]
    (line,) = namespace_report(api, "gpu-operator")
    assert line.startswith("the pods of namespace gpu-operator cannot be listed: GET /: connection refused")
