"""The collector's request follows from the configuration."""

from typing import Any

import pytest
from pydantic import ValidationError

from busbar.collect.spec import CollectSpec, collect_spec
from busbar.judge.nccl.expected.expectation import Expectation
from tests.support.kube_site import cluster, job


def question(**parts: Any) -> CollectSpec:
    site = cluster(**parts)
    made = collect_spec(site.validation, job(**parts), "nccl-h100-1", folder=".busbar/dev/h100")
    return CollectSpec.model_validate(made)


def test_the_expectation_is_the_pools_hardware_and_the_jobs_size() -> None:
    expected = Expectation.model_validate(question().expectation)
    assert (expected.nodes, expected.gpus_per_node, expected.rails, expected.rate_gbps) == (4, 8, 8, 400)
    assert expected.transport == "gpudirect-rdma"
    assert (expected.min_bytes, expected.max_bytes, expected.step_factor) == (512 << 20, 8 << 30, 2)
    assert expected.hosts == [f"nccl-h100-1-worker-{index}" for index in range(4)]


def test_what_the_pool_is_wins_over_what_the_profile_says_of_its_kind() -> None:
    asked = question(pool={"rails": 4}, validation={"profile": "h100-ib-8x400"})
    expected = Expectation.model_validate(asked.expectation)
    assert expected.rails == 4
    assert expected.algorithm == "ring"


def test_a_topology_file_that_was_asked_for_must_be_proved() -> None:
    assert question().expectation["topology_file"] is None
    asked = question(validation={"env": {"NCCL_TOPO_FILE": "/opt/h100.xml"}}).expectation
    assert asked["topology_file"] == "/opt/h100.xml"


def test_the_collector_gives_the_operator_a_minute_to_record_a_job_that_used_up_its_time() -> None:
    runs = job(validation={"deadline_seconds": 600}).deadline_seconds
    assert question(validation={"deadline_seconds": 600}).deadline_seconds == runs + 60


def test_a_request_without_any_time_to_wait_is_refused() -> None:
    asked = question().model_dump()
    assert CollectSpec.model_validate({**asked, "deadline_seconds": 0.5}).deadline_seconds == 0.5
    with pytest.raises(ValidationError, match="greater than 0"):
        CollectSpec.model_validate({**asked, "deadline_seconds": 0})
