"""Names that are made from what they stand for."""

from __future__ import annotations

import math

import pytest

from busbar.manifests.names import digest, job_name


def test_the_order_of_the_keys_does_not_change_a_digest() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) != digest({"a": 2, "b": 1})


def test_a_value_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"tolerance": math.nan})


def test_the_name_of_a_worker_of_a_pool_with_a_long_name_is_a_dns_label() -> None:
    name = job_name("a" * 62 + "-b", {"nodes": 2})
    assert len(f"{name}-worker-99999") <= 63
    assert len(job_name("a" * 62, {})) + len("-worker-99999") == 63  # nothing more is cut off
    assert "--" not in name
