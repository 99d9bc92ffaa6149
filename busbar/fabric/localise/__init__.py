"""Which node, rail or switch is slow: plans runs of nccl-tests on few nodes each, and scores their results.

Pure functions, no cluster. Three stages, each one job: `plan` gives the groups of a stage from what is known,
the caller runs them and adds their bandwidths to what is known, `score` says what is slow.
"""

from busbar.fabric.localise.groups import Group, Kind, Known, Places, Stage, expected_busbw
from busbar.fabric.localise.rounds import plan, plan_rails
from busbar.fabric.localise.score import score

__all__ = ["Group", "Kind", "Known", "Places", "Stage", "expected_busbw", "plan", "plan_rails", "score"]
