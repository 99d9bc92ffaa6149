"""The verdict as a ConfigMap: what is stored, what is read back, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from busbar.collect.result import KEY, ResultStore
from busbar.kube.client import ApiError
from tests.support.kube_cluster import Cluster

CONFIG_MAPS = "/api/v1/namespaces/ns/configmaps"
LIMIT = 512 * 1024
EMPTY_BYTES = len('{"note":""}')


def store(api: Cluster, uid: str = "u-1", **expectation: Any) -> ResultStore:
    return ResultStore(api, "ns", "nccl", uid, expectation)


def test_a_stored_verdict_is_read_back() -> None:
    api = Cluster()
    store(api).write({"verdict": "pass"})
    assert store(api).read() == {"verdict": "pass"}


def test_a_verdict_that_is_not_stored_is_none() -> None:
    assert store(Cluster()).read() is None


def test_another_job_and_another_expectation_have_names_of_their_own() -> None:
    api = Cluster()
    names = {store(api).name, store(api, uid="u-2").name, store(api, rails=8).name, store(api, rails=4).name}
    assert len(names) == 4
    assert store(api, rails=8).name == store(api, rails=8).name


def test_the_text_is_the_same_for_the_same_verdict_whatever_the_order_of_its_keys() -> None:
    api = Cluster()
    store(api).write({"verdict": "pass", "checks": [{"status": "pass", "name": "job"}]})
    ((_, stored),) = api.created
    assert stored["data"][KEY] == '{"checks":[{"name":"job","status":"pass"}],"verdict":"pass"}'


@pytest.mark.parametrize("data", [None, {}, {KEY: ""}, {KEY: "{"}, {KEY: "[]"}, {KEY: '"pass"'}])
def test_a_config_map_without_a_verdict_in_it_is_none(data: Any) -> None:
    api = Cluster()
    api.objects[f"{CONFIG_MAPS}/{store(api).name}"] = {"data": data}
    assert store(api).read() is None


def test_the_first_verdict_stays() -> None:
    api = Cluster()
    store(api).write({"verdict": "fail"})
    store(api).write({"verdict": "pass"})
    assert store(api).read() == {"verdict": "fail"}


@pytest.mark.parametrize("action", ["read", "write"])
def test_an_api_that_refuses_is_an_error(action: str) -> None:
    api = Cluster()
    api.failures = [ApiError("GET /", 403, "forbidden")]
    with pytest.raises(ApiError, match="403"):
        store(api).read() if action == "read" else store(api).write({"verdict": "pass"})


def test_a_verdict_of_more_than_half_a_mebibyte_is_refused() -> None:
    api = Cluster()
    store(api).write({"note": "x" * (LIMIT - EMPTY_BYTES)})
    ((_, stored),) = api.created
    assert json.loads(stored["data"][KEY])
    with pytest.raises(ValueError, match=str(LIMIT + 1)):
        store(api, uid="u-2").write({"note": "x" * (LIMIT + 1 - EMPTY_BYTES)})
