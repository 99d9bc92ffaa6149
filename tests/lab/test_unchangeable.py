"""A running cluster: values that it cannot change are refused, and `verify` says when it does not work."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.lab import SERVERS, Change, Lab, eventually

pytestmark = pytest.mark.drill

STALE_SECONDS = 75
POLICY = "drill-no-pods"


def _starts(lab: Lab) -> list[str]:
    return [lab.ssh(server, "systemctl show -p InvocationID --value k3s") for server in SERVERS]


def _verify(lab: Lab) -> tuple[int, str]:
    began = time.monotonic()
    done = lab.run(sys.executable, "-m", "busbar", "verify", "dev")
    print(f"verify: {time.monotonic() - began:.1f} s\n{done.stdout}{done.stderr}")
    return done.returncode, done.stdout


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda cluster: cluster["k3s"].update({key: value})


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("cluster_cidr", "10.60.0.0/16", "write back {first}, or make a new cluster"),
        ("service_cidr", "10.62.0.0/16", "write back {first}; another object of the kind ServiceCIDR"),
        (
            "server_args",
            {"cluster-domain": "drill.example"},
            "write back cluster.local, or make a new cluster",
        ),
        ("flannel_backend", "host-gw", "write back vxlan, or make a new cluster"),
    ],
)
def test_a_value_that_cannot_be_changed_is_refused_before_anything_is_changed(
    lab: Lab, changed: Change, key: str, value: Any, fix: str
) -> None:
    before = _starts(lab)
    note = lab.ssh("server-1", "cat /var/lib/busbar/first-values")
    said = " ".join(changed(_set(key, value), fails=True).split())
    assert f"k3s.{key}" in said and "cannot be changed: the cluster was made with" in said
    first = said.partition("was made with ")[2].partition(", the file says")[0]
    assert fix.format(first=first) in said
    assert "no changes made" in said
    # The fix, followed.
    changed(lambda _: None)
    assert _starts(lab) == before
    assert lab.ssh("server-1", "cat /var/lib/busbar/first-values") == note


@pytest.fixture
def no_pods(lab: Lab) -> Iterator[None]:
    """A policy of the site that admits no pod to the namespace of the measurement."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "busbar-validation"}}
    api = "admissionregistration.k8s.io/v1"
    lab.apply(
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "false", "message": "no pods in this drill"}],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {
                "policyName": POLICY,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": namespace},
            },
        },
    )
    yield
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        lab.kubectl(f"delete {kind} {POLICY} --ignore-not-found")


def test_a_policy_that_refuses_pods_is_named_by_verify_and_by_an_update(lab: Lab, no_pods: None) -> None:
    # Admission reads policies some seconds after they were made.
    eventually(lambda: POLICY in _verify(lab)[1], 30, "the policy is named")
    code, said = _verify(lab)
    assert code == 1
    assert "a Pod in namespace busbar-validation is not admitted" in " ".join(said.split())
    done = lab.up()
    assert done.returncode != 0 and POLICY in done.stdout + done.stderr
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        lab.kubectl(f"delete {kind} {POLICY}")
    eventually(lambda: _verify(lab)[0] == 0, 30, "the cluster is well again")


@pytest.mark.parametrize("part", ["kube-controller-manager", "kube-scheduler"])
def test_a_part_that_runs_nowhere_is_named_though_all_is_as_applied(lab: Lab, part: str) -> None:
    # In a real K3s the parts are one process, which cannot be stopped in parts.
    found = lab.ssh("server-1", f"pgrep -f '^k3s {part} ' || true")
    if not found:
        pytest.skip(f"{part} is no process of its own here")
    for server in SERVERS:
        lab.ssh(server, f"pkill -STOP -f '^k3s {part} '")
    try:
        time.sleep(STALE_SECONDS)
        code, said = _verify(lab)
        assert code == 1 and f"{part} has not renewed its Lease since" in " ".join(said.split())
    finally:
        for server in SERVERS:
            lab.ssh(server, f"pkill -CONT -f '^k3s {part} ' || true")
    # The one that had the Lease has lost it, and ends with its K3s, which systemd starts again.
    eventually(lambda: _verify(lab)[0] == 0, 180, "the cluster is well again")
