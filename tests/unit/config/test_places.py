"""A finding says in which line of the stack file it is, and about which host."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.config.places import located

FILE = """\
encryptionsalt: v1:abc
config:
  busbar:sshKey: plain
  busbar:cluster:
    name: mysite
    hosts:
      workers:
        - {name: a100-1, address: 10.0.0.1, pool: big}
        - name: a100-2
          address: 10.0.0.300
          pool: big
        - name: a100-3
          pool: big
        - address: 10.0.0.4
          pool: big
    pools:
      a100:
        labels:
          example.com/rack: "1"
          example.com/rack.row: "#"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "Pulumi.mysite.yaml"
    file.write_text(FILE)
    return file


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        ("name: 7 is not a text", "Pulumi.mysite.yaml:5 name: 7 is not a text"),
        (
            "hosts.workers[1].address: '10.0.0.300' is not an address",
            "Pulumi.mysite.yaml:10 hosts.workers[1] (a100-2).address: '10.0.0.300' is not an address",
        ),
        ("hosts.workers[0].pool: wrong", "Pulumi.mysite.yaml:8 hosts.workers[0] (a100-1).pool: wrong"),
        (
            "hosts.workers[2].address: missing",
            "Pulumi.mysite.yaml:12 hosts.workers[2] (a100-3).address: missing",
        ),
        ("hosts.workers[3].pool: wrong", "Pulumi.mysite.yaml:15 hosts.workers[3].pool: wrong"),
        (
            "pools.a100.labels.example.com/rack.row: '#' is not a label",
            "Pulumi.mysite.yaml:20 pools.a100.labels.example.com/rack.row: '#' is not a label",
        ),
        ("pools.h100: no worker is in it", "Pulumi.mysite.yaml:16 pools.h100: no worker is in it"),
        ("busbar:sshKey: is not a secret", "Pulumi.mysite.yaml:3 busbar:sshKey: is not a secret"),
        ("ssh: missing", "Pulumi.mysite.yaml:4 ssh: missing"),
        ("Pulumi.mysite.yaml: is not UTF-8", "Pulumi.mysite.yaml: is not UTF-8"),
    ],
)
def test_a_finding_has_the_line_of_its_value_or_of_what_is_around_it(
    path: Path, finding: str, said: str
) -> None:
    assert located(path, [finding]) == [said]


def test_findings_of_one_cause_are_one(path: Path) -> None:
    findings = [f"hosts.workers[{i}].pool: 'big' is not in pools" for i in range(4)]
    assert located(path, ["name: empty", *findings]) == [
        "Pulumi.mysite.yaml:5 name: empty",
        "Pulumi.mysite.yaml:8 hosts.workers[0] (a100-1).pool: 'big' is not in pools (3 more like it: "
        "lines 11, 13, 15)",
    ]


def test_two_findings_of_one_cause_are_both_printed(path: Path) -> None:
    assert len(located(path, [f"hosts.workers[{i}].pool: wrong" for i in range(2)])) == 2


@pytest.mark.parametrize("text", ["a: [", "\0", "- 1", ""])
def test_a_file_that_is_no_stack_file_leaves_the_findings_as_they_are(tmp_path: Path, text: str) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(text)
    assert located(file, ["config: missing"]) == ["config: missing"]
