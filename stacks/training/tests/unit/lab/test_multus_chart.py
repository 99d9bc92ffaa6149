"""The lab's chart of Multus takes what busbar sets."""

from __future__ import annotations

from pathlib import Path

from lab.tests.unit.images.test_charts import load, paths

TRAINING = Path(__file__).resolve().parents[3]


def test_every_value_that_is_set_for_multus_is_one_of_the_chart() -> None:
    ours = set(paths(load(TRAINING / "helm_values" / "rke2-multus.yaml")))
    theirs = set(paths(load(TRAINING / "lab" / "charts" / "rke2-multus" / "values.yaml")))
    assert ours - theirs == set()
