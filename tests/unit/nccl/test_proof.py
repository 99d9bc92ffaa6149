"""The proof of the transport cannot be fooled: what a mutated log no longer proves, it does not pass on."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbar.nccl import Expectation, judge
from tests.unit.nccl.mutants import AGAINST, EVERY, base

EXAMPLES = int(os.environ.get("BUSBAR_MUTANTS", "4"))
BOUNDED = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def want(profile: str) -> Expectation:
    return Expectation(profile=profile, nodes=2)


@pytest.mark.parametrize(("name", "profile"), EVERY)
def test_the_logs_that_are_mutated_pass(name: str, profile: str) -> None:
    assert judge(list(base(name)), want(profile)).reasons == []


@pytest.mark.parametrize("operator", AGAINST)
@pytest.mark.parametrize(("name", "profile"), EVERY)
@BOUNDED
@given(seed=st.integers(0, 2**63))
def test_a_log_that_lost_its_proof_does_not_pass(name: str, profile: str, operator: str, seed: int) -> None:
    lines = list(base(name))
    mutant = AGAINST[operator](lines, random.Random(seed))
    if mutant != lines:
        assert not judge(mutant, want(profile)).passed
