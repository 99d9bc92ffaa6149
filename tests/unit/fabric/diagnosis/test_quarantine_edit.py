"""`busbar.fabric.diagnosis.quarantine.edit`: one line of the stack file changes, and no comment is lost."""

from pathlib import Path

import pytest
import yaml

from busbar.config import ConfigError
from busbar.fabric.diagnosis.quarantine import edit

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = (ROOT / "Pulumi.h100.example.yaml").read_text()
# What people write: comments with other letters than ASCII, blank lines, {...}, and a reason over two lines.
TEXT = """\
# Höhle 3, Gestell Ä
config:
  busbar:cluster:
    hosts:
      workers:
        - name: gpu-1   # the first one

          address: 192.0.2.21
          quarantine: fan  # ticket 7
          # its rails are swapped
          pool: a
        - {name: gpu-2, address: 192.0.2.22, pool: a}   # spare
        - quarantine: >
            rail 3
            is slow

          # moved in May
          name: gpu-3
        - address: 192.0.2.24
          name: gpu-4"""


def quarantines(text: str) -> dict[str, str]:
    workers = yaml.safe_load(text)["config"]["busbar:cluster"]["hosts"]["workers"]
    return {each["name"]: each["quarantine"] for each in workers if "quarantine" in each}


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that are gone, and those that are new."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_the_line_comes_below_the_name_and_its_removal_gives_the_former_text() -> None:
    after = edit(EXAMPLE, "gpu-2", 'rail 3: "slow", run #7 {ä}')
    line = '          quarantine: "rail 3: \\"slow\\", run #7 {ä}"'
    assert changed(EXAMPLE, after) == ([], [line])
    assert after.splitlines()[after.splitlines().index(line) - 1] == "        - name: gpu-2"
    assert quarantines(after) == {"gpu-2": 'rail 3: "slow", run #7 {ä}'}
    assert edit(after, "gpu-2", None) == EXAMPLE


OF_1 = "          quarantine: fan  # ticket 7"
OF_2 = "        - {name: gpu-2, address: 192.0.2.22, pool: a}   # spare"
OF_3 = ["        - quarantine: >", "            rail 3", "            is slow"]


@pytest.mark.parametrize(
    ("worker", "gone", "written", "ended"),
    [
        ("gpu-1", [OF_1], ['          quarantine: "slow"  # ticket 7'], []),
        ("gpu-2", [], [OF_2.replace("gpu-2, ", 'gpu-2, quarantine: "slow", ')], []),
        ("gpu-3", OF_3, ['        - quarantine: "slow"'], ["        - "]),
        ("gpu-4", [], ['          quarantine: "slow"'], []),
    ],
)
def test_a_reason_is_written_and_ended_however_the_worker_is_written(
    worker: str, gone: list[str], written: list[str], ended: list[str]
) -> None:
    after, without = edit(TEXT, worker, "slow"), edit(TEXT, worker, None)
    assert changed(TEXT, after) == (gone or [OF_2] * (worker == "gpu-2"), written)
    assert (quarantines(after)[worker], edit(after, worker, "slow")) == ("slow", after)
    assert changed(TEXT, without) == (gone, ended)
    assert worker not in quarantines(without)


def test_of_a_worker_on_one_line_only_the_key_goes() -> None:
    held = edit(TEXT, "gpu-2", "slow, again")
    assert edit(held, "gpu-2", None) == TEXT
    first = TEXT.replace("{name: gpu-2, ", "{quarantine: fan, name: gpu-2, ")
    assert edit(first, "gpu-2", None) == TEXT
    assert quarantines(edit(first, "gpu-2", "slow"))["gpu-2"] == "slow"


def test_a_last_line_without_an_end_gets_one_and_can_be_removed() -> None:
    text = f"{TEXT}\n        - name: gpu-5"
    held = edit(text, "gpu-5", "slow")
    assert held == f'{text}\n          quarantine: "slow"\n'
    assert edit(held.rstrip("\n"), "gpu-5", None) == f"{text}\n"


def test_a_worker_that_is_not_there_is_refused_with_one_that_is() -> None:
    with pytest.raises(ConfigError, match=r"no worker is named 'gpu-22'; did you mean 'gpu-2'\?"):
        edit(TEXT, "gpu-22", "slow")
    with pytest.raises(ConfigError, match="no worker is named"):
        edit("config: {}", "gpu-2", "slow")
    with pytest.raises(ConfigError, match="no worker is named"):
        edit("config: {busbar:cluster: {hosts: {workers: [{name: [gpu-2]}, gpu-2]}}}", "gpu-2", None)


def test_keys_that_workers_share_are_left_to_a_person() -> None:
    shared = (
        "config:\n  busbar:cluster:\n    hosts:\n      workers:\n"
        "        - &first\n          name: gpu-1\n          quarantine: fan\n"
        "        - {<<: *first, name: gpu-2}\n"
    )
    for worker in ("gpu-1", "gpu-2"):
        with pytest.raises(ConfigError, match=rf"hosts.workers \({worker}\).quarantine: .*edit it by hand"):
            edit(shared, worker, None)
    assert quarantines(edit(shared, "gpu-2", "slow")) == {"gpu-1": "fan", "gpu-2": "slow"}


LISTED = """\
config:
  busbar:cluster:
    hosts_from:   # of the cloud
      stack: organization/machines/prod   # a stack of its own
      allow_removal: true
    pools: {}
"""
FLOW = "config:\n  busbar:cluster:\n    hosts_from: {file: h.json}  # a\n"


ONE = '{"gpu-1": "fan: \\"loud\\""}'
TWO = '{"gpu-1": "fan: \\"loud\\"", "gpu-2": "r 3"}'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LISTED, "      quarantine: QUARANTINES"),
        (FLOW, "    hosts_from: {file: h.json, quarantine: QUARANTINES}  # a"),
    ],
)
def test_quarantines_of_listed_hosts_end_with_the_former_text(text: str, line: str) -> None:
    first, second = (line.replace("QUARANTINES", each) for each in (ONE, TWO))
    one = edit(text, "gpu-1", 'fan: "loud"')
    assert changed(text, one)[1] == [first]
    two = edit(one, "gpu-2", "r 3")
    assert changed(one, two) == ([first], [second])
    assert edit(two, "gpu-2", None) == one
    assert edit(one, "gpu-1", None) == text
    assert edit(text, "gpu-1", None) == text


def test_quarantines_of_a_list_that_are_in_lines_of_their_own_keep_their_comments() -> None:
    text = LISTED.replace(
        "      allow_removal: true\n",
        "      quarantine:\n        gpu-1: fan   # ticket 7\n        # broken since May\n        gpu-2: >\n"
        "          rail\n          3\n",
    )
    assert changed(text, edit(text, "gpu-1", "slow")) == (
        ["        gpu-1: fan   # ticket 7"],
        ['        gpu-1: "slow"   # ticket 7'],
    )
    assert changed(text, edit(text, "gpu-1", None)) == (["        gpu-1: fan   # ticket 7"], [])
    assert changed(text, edit(text, "gpu-3", "slow")) == ([], ['        "gpu-3": "slow"'])
    gone = edit(edit(text, "gpu-2", None), "gpu-1", None)
    assert yaml.safe_load(gone)["config"]["busbar:cluster"]["hosts_from"] == {
        "stack": "organization/machines/prod"
    }
