"""The rules of examples/policy, on the outputs of clusters."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from busbar.config import load
from busbar.outputs import ClusterOutputs, build_outputs
from busbar.outputs.contract import summarize
from tests.support.bash import programs
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

FOLDER = Path(__file__).parents[2] / "examples" / "policy"
NOW = datetime(2026, 11, 26, tzinfo=UTC)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import rules as found

    return found


def outputs(verdict: dict[str, Any], **changes: Any) -> dict[str, Any]:
    result = {**summarize(verdict), "measured_at": (NOW - timedelta(days=3)).isoformat(), **changes}
    return build_outputs(load(site()), cluster_id="a1", versions={}, facts={}, results={"h100": result})


def cluster(verdict: dict[str, Any], **changes: Any) -> ClusterOutputs:
    return ClusterOutputs.from_dict(outputs(verdict, **changes))


def test_a_cluster_that_has_not_passed_is_refused_with_its_reasons(rules: ModuleType) -> None:
    assert rules.not_passed(cluster(passing())) is None
    assert "has not passed its NCCL validation" in rules.not_passed(cluster(failing()))


@pytest.mark.parametrize(
    ("changes", "days", "says"),
    [
        ({}, 4, None),
        ({}, 2, "was measured 2026-11-23T00:00:00+00:00, more than 2 days ago"),
        ({"measured_at": None}, 4, "was measured at an unknown time"),
        ({"stale": ["k3s v1.35.6 -> v1.35.7"]}, 4, "pool h100 was measured before: k3s v1.35.6 -> v1.35.7"),
    ],
)
def test_a_verdict_that_is_old_or_from_before_a_change_is_refused(
    changes: dict[str, Any], days: int, says: str | None, rules: ModuleType
) -> None:
    found = rules.stale(cluster(passing(), **changes), days, NOW)
    assert found is None if says is None else says in found


def test_only_a_stack_with_a_provider_of_the_cluster_uses_it(rules: ModuleType) -> None:
    used = cluster(passing())
    for identifier, is_used in (("a1", True), ("b2", False)):
        resources = [("pulumi:pulumi:Stack", {}), (rules.PROVIDER, {"clusterIdentifier": identifier})]
        assert rules.uses(resources, used) is is_used
    assert not rules.uses([("other", {"clusterIdentifier": "a1"}), (rules.PROVIDER, {})], used)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A program on PATH, as a shell script."""

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda name, script: programs(tmp_path, {name: script})


def test_outputs_that_cannot_be_read_say_why(rules: ModuleType, program: Any, tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text(json.dumps(outputs(passing())))
    program(
        "pulumi",
        f'[ "$4 $5" = "--stack org/busbar/prod" ] && cat {tmp_path}/outputs || {{ echo no >&2; exit 1; }}',
    )
    assert rules.read("org/busbar/prod").cluster_id == "a1"
    with pytest.raises(rules.Unreadable, match="--stack org/busbar/other: no"):
        rules.read("org/busbar/other")
    program("pulumi", "echo {}")
    with pytest.raises(rules.Unreadable, match="contract_version is missing"):
        rules.read("org/busbar/prod")


@pytest.mark.parametrize(
    ("code", "accepted", "says"),
    [
        (0, "a1", None),
        (0, "b2", "accepts the cluster b2, and this is a1"),
        (2, "a1", "ended with 2: not decided: prod"),
        (0, None, "cannot be verified"),
    ],
)
def test_a_cluster_without_a_signed_acceptance_of_its_own_is_refused(
    code: int, accepted: str | None, says: str | None, rules: ModuleType, program: Any, tmp_path: Path
) -> None:
    program("busbar", f"echo not decided: prod; exit {code}")
    if accepted:
        (tmp_path / "acceptance.json").write_text(json.dumps({"cluster_id": accepted}))
    given = {"acceptance": str(tmp_path), "signers": str(tmp_path / "signers")}
    found = rules.not_accepted(cluster(passing()), given)
    assert found is None if says is None else says in found
    assert rules.not_accepted(cluster(passing()), {}) is None
    for key in given:
        half = rules.not_accepted(cluster(passing()), {key: given[key]})
        assert f"has only {key}. Fix: give acceptance and signers, or none" in half


def test_an_acceptance_without_a_cluster_id_accepts_no_cluster(
    rules: ModuleType, program: Any, tmp_path: Path
) -> None:
    program("busbar", "exit 0")
    (tmp_path / "acceptance.json").write_text('{"cluster_id": null}')
    measured = cluster(passing()).model_copy(update={"cluster_id": None})
    says = "accepts a cluster without an id, and this is busbar/"
    given = {"acceptance": str(tmp_path), "signers": str(tmp_path / "signers")}
    assert says in str(rules.not_accepted(measured, given))
