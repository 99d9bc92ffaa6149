"""The records of measurements in a cluster: what is stored, read back, refused, and what stays."""

from typing import Any

import pytest

from busbar.collect import result
from busbar.collect.result import KEY, RECORD, Results, after_quarantine, former_result
from busbar.judge.archive import Record
from busbar.kube.client import JsonObject
from busbar.manifests import mpijob
from busbar.outputs.contract import summarize
from tests.support.kube_site import job as configured
from tests.support.verdicts import passing, record, unknown
from tests.unit.fabric.measure.foreign import Foreign

MAPS = "/api/v1/namespaces/ns/configmaps"
ALL = ("worker-1", "worker-2", "worker-3", "worker-4")


def job() -> JsonObject:
    made = mpijob.render(configured())
    made["metadata"]["namespace"] = "ns"
    return made


def test_a_record_is_read_back_with_its_verdict_by_the_uid_of_its_job() -> None:
    store = Results(Foreign(), "ns")
    store.write(record(), passing())
    found, verdict = store.read("u-1") or pytest.fail("none")
    assert (found.model_dump_json(), verdict) == (record().model_dump_json(), passing())
    assert store.read("u-2") is None


@pytest.mark.parametrize("data", [None, {}, {KEY: "{}"}, {KEY: "[]", RECORD: "{}"}, {KEY: "{", RECORD: "{"}])
def test_a_config_map_without_record_and_verdict_is_none(data: Any) -> None:
    api = Foreign()
    name = Results(api, "ns").address("u-1").partition("/")[2]
    metadata = {"name": name, "labels": {"busbar/history": "h100"}}
    api.add(f"{MAPS}/{name}", {"metadata": metadata, "data": data})
    assert Results(api, "ns").read("u-1") is None
    assert Results(api, "ns").all() == []


def test_a_verdict_that_fits_into_no_config_map_is_refused() -> None:
    with pytest.raises(ValueError, match="the limit is"):
        Results(Foreign(), "ns").write(record(), {"note": "x" * result.MAX_BYTES})


def test_the_newest_records_of_a_pool_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "RECORDS", 2)
    store = Results(Foreign(), "ns")
    store.write(record(9, pool="b200"), passing())
    for number in range(1, 5):
        store.write(record(number), passing())
    assert [each["record"]["job_uid"] for each in store.all("h100")] == ["u-4", "u-3"]
    assert len(store.all()) == 3
    for number in range(5, 9):
        store.write(record(number, kind="idle"), passing())
    stay = ["u-8", "u-7", "u-4", "u-3"]
    assert [each["record"]["job_uid"] for each in store.all("h100")] == stay, "a timer deletes no update"


def test_the_last_update_of_the_pool_is_the_former_result() -> None:
    api = Foreign()
    assert former_result(api, job()) is None
    for number, more in ((1, {}), (2, {"kind": "measure"}), (3, {"pool": "b200"})):
        Results(api, "ns").write(record(number, **more), passing())
    address = Results(api, "ns").address("u-1")
    assert former_result(api, job()) == summarize(passing(), record=record(1), config_map=address)


def test_an_update_without_evidence_leaves_no_former_result() -> None:
    api = Foreign()
    Results(api, "ns").write(record(1), passing())
    Results(api, "ns").write(record(2), unknown())
    assert former_result(api, job()) is None


def released(*records: Record) -> bool:
    """Whether a quarantine of the job's workers has ended since the last update, by these records."""
    api = Foreign()
    for each in records:
        Results(api, "ns").write(each, passing())
    return after_quarantine(api, job()) is not None


def test_a_worker_that_was_measured_before_the_last_update_was_in_quarantine() -> None:
    assert released(record(1, *ALL), record(2, *ALL[:3]))
    assert not released(record(1, *ALL[:3]), record(2, *ALL[:3])), "worker-4 is new"
    assert not released(record(1, *ALL), record(2, *ALL)), "something else has changed"
    assert not released()


def test_the_job_of_the_last_update_is_wanted_again_after_a_quarantine_in_which_it_was_kept() -> None:
    assert released(record(1, *ALL, settings={"job": job()["metadata"]["name"]}))
