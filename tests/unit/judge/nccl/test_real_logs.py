"""The real logs of the shared folder: each is read as its sidecar says, and no failure among them passes."""

import json

import pytest

from busbar.judge.nccl import Expectation, judge, judge_log, read_lines
from busbar.judge.nccl.expected import profiles
from tests.support import shared
from tests.unit.judge.nccl.reading import as_object, differences

pytestmark = pytest.mark.shared

DIAGNOSES = {
    "011": "hang", "013": "half-rate", "014": "no-transport-evidence", "027": "socket-fallback",
    "032": "not-compared", "051": "memory-registration", "062": "more-ranks-than-gpus",
    "066": "sharp-denied", "067": "wrong-values", "068": "mpi-not-effective", "069": "ib-retry-exceeded",
    "070": "ib-retry-exceeded", "071": "shm-too-small", "072": "ib-protection-error", "073": "memlock",
    "074": "memlock", "075": "no-gpudirect", "076": "mpi-not-effective", "077": "efa-peer-gone",
    "085": "mpi-not-effective",
}  # fmt: skip


@pytest.mark.parametrize("name", shared.log_names())
def test_a_real_log_is_read_as_its_sidecar_says_and_passes_no_profile_unless_it_is_usable(name: str) -> None:
    sidecar = json.loads(shared.log(name).with_suffix(".json").read_text())
    parsed = read_lines(shared.log_lines(name))
    assert differences(sidecar["expected"], as_object(parsed)) == []
    if sidecar["kind"] == "full" and sidecar["expected"]["usable_result"]:
        return
    for each in profiles.names():
        assert not judge_log(parsed, Expectation(profile=each, nodes=sidecar["nodes"])).passed, each


@pytest.mark.parametrize("prefix", DIAGNOSES)
def test_a_real_failure_is_named(prefix: str) -> None:
    verdict = judge(shared.log_lines(prefix), Expectation(profile="h100-ib-8x400", nodes=2))
    assert DIAGNOSES[prefix] in [d.name for d in verdict.diagnoses]
    assert not verdict.passed


@pytest.mark.parametrize("prefix", ["001", "004", "006", "008", "009", "013", "030", "084", "086", "087"])
def test_a_healthy_real_log_shows_no_fatal_failure(prefix: str) -> None:
    verdict = judge(shared.log_lines(prefix), Expectation())
    assert [d.name for d in verdict.diagnoses if d.severity == "fatal"] == []


def test_a_row_cut_by_a_message_keeps_its_root() -> None:
    run = as_object(read_lines(shared.log_lines("001")))["runs"][0]
    [cut] = [row for row in run["rows"] if row["size"] == 2097152]
    assert (cut["redop"], cut["root"], cut["at"]) == ("sum", -1, 334)
