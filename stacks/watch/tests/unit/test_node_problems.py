"""Rules for the kernel's log: which lines they match, and what node-problem-detector makes of them."""

import json
import re

import pytest

from busbar.preflight.health_checks import FATAL_XIDS, XIDS_OF_PROGRAMS
from stacks.watch.package.config import Watch
from stacks.watch.package.node_problems import FILE, Rule, manifests, monitor, rules
from stacks.watch.tests.support import configured

RULES = {rule.reason: rule for rule in rules()}
# What Go's RE2 does not have, and Python's re has.
NOT_RE2 = re.compile(r"\(\?(?!:)|\\[1-9]|[*+?}]\+")


def reasons(line: str) -> set[str]:
    """The rules that match a line, as node-problem-detector does it: to the end of the line."""
    return {rule.reason for rule in RULES.values() if re.search(rule.pattern + r"\Z", line)}


def watch(**changes: object) -> Watch:
    return Watch.model_validate(configured(node_problem_detector={"enabled": True, **changes}))


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.reason)
def test_a_rule_alone_matches_its_lines_by_a_pattern_that_go_reads(rule: Rule) -> None:
    assert not NOT_RE2.search(rule.pattern)
    for line in rule.matches:
        assert reasons(line) == {rule.reason}
    for line in rule.leaves:
        assert rule.reason not in reasons(line)


@pytest.mark.parametrize(
    ("reason", "numbers"),
    [("XidHardware", FATAL_XIDS), ("XidMemory", {63, 92, 94}), ("XidOfProgram", XIDS_OF_PROGRAMS)],
)
def test_an_xid_is_the_hardware_s_or_a_program_s_as_preflight_says_or_of_a_memory_that_held(
    reason: str, numbers: dict[int, str] | set[int]
) -> None:
    found = {
        number
        for number in range(1, 200)
        if reason in reasons(f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, name=python, text")
    }
    assert found == set(numbers)


def test_every_rule_is_of_the_kernel_s_log_and_every_condition_can_be_set() -> None:
    made = monitor()
    assert (made["plugin"], made["logPath"], made["bufferSize"]) == ("kmsg", "/dev/kmsg", 1)
    assert made["lookback"] == "87600h", "a pod that starts again finds what was before it"
    permanent = {each["reason"]: each["condition"] for each in made["rules"] if each["type"] == "permanent"}
    assert permanent == {rule.reason: rule.condition for rule in RULES.values() if rule.condition}
    assert {*permanent.values()} == {each["type"] for each in made["conditions"]}
    assert (permanent["XidHardware"], permanent["CableError"]) == ("BusbarGPU", "BusbarRail")


def test_the_pod_reads_the_rules_and_the_log_of_every_worker_and_writes_nothing_there() -> None:
    found = {each["kind"]: each for each in manifests(watch(image="mirror.example.com/npd:1"))}
    assert json.loads(found["ConfigMap"]["data"][FILE]) == monitor()
    template = found["DaemonSet"]["spec"]["template"]
    pod, [container] = template["spec"], template["spec"]["containers"]
    assert container["image"] == "mirror.example.com/npd:1"
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert f"--config.system-log-monitor={mounts['rules']['mountPath']}/{FILE}" in container["args"]
    assert volumes["rules"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    assert mounts["kmsg"]["mountPath"] == monitor()["logPath"] == volumes["kmsg"]["hostPath"]["path"]
    assert all(each["readOnly"] for each in mounts.values())
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["tolerations"] == [{"operator": "Exists"}]
    # With other rules it starts again.
    assert len(template["metadata"]["annotations"]["busbar/rules"]) == 64
