"""A finding says in which line of the stack file it is, and about which host."""

from pathlib import Path
from typing import Any

import pytest

from busbar.config.engine_yaml import located
from busbar.finding import Finding

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
def file(tmp_path: Path) -> Path:
    file = tmp_path / "Pulumi.mysite.yaml"
    file.write_text(FILE)
    return file


@pytest.mark.parametrize(
    ("path", "line", "place"),
    [
        (("name",), 5, "name"),
        (("hosts", "workers", 1, "address"), 10, "hosts.workers[1] (a100-2).address"),
        (("hosts", "workers", 0, "pool"), 8, "hosts.workers[0] (a100-1).pool"),
        (("hosts", "workers", 2, "address"), 12, "hosts.workers[2] (a100-3).address"),
        (("hosts", "workers", 3, "pool"), 15, "hosts.workers[3].pool"),
        (("pools", "a100", "labels", "example.com/rack.row"), 20, "pools.a100.labels.example.com/rack.row"),
        (("pools", "h100"), 16, "pools.h100"),
        (("busbar:sshKey",), 3, "busbar:sshKey"),
        (("ssh",), 4, "ssh"),
    ],
)
def test_a_finding_has_the_line_of_or_around_its_value(file: Path, path: Any, line: int, place: str) -> None:
    assert located(file, [Finding(path, "is wrong", "repair it", "'x'")], file.name) == [
        f"Pulumi.mysite.yaml:{line} {place}: 'x' is wrong. Fix: repair it"
    ]


def test_findings_of_one_cause_are_one(file: Path) -> None:
    findings = [Finding(("hosts", "workers", i, "pool"), "is not in pools", found="'big'") for i in range(4)]
    assert located(file, [Finding(("name",), "is empty"), *findings], file.name) == [
        "Pulumi.mysite.yaml:5 name: is empty",
        "Pulumi.mysite.yaml:8 hosts.workers[0] (a100-1).pool: 'big' is not in pools (3 more like it: "
        "lines 11, 13, 15)",
    ]


def test_two_findings_of_one_cause_are_both_printed(file: Path) -> None:
    findings = [Finding(("hosts", "workers", i, "pool"), "wrong") for i in range(2)]
    assert len(located(file, findings, file.name)) == 2


@pytest.mark.parametrize("text", ["a: [", "\0", "- 1", ""])
def test_a_file_that_is_no_stack_file_leaves_the_findings_as_they_are(tmp_path: Path, text: str) -> None:
    file = tmp_path / "Pulumi.x.yaml"
    file.write_text(text)
    assert located(file, [Finding(("Pulumi.x.yaml",), "is wrong")], "a/x.yaml") == ["a/x.yaml: is wrong"]
