"""The NCCL measurement on a running cluster: read its facts, plan, run, remove.

`require_rights` and `read_facts` ask the API. `plan` reads what is to be measured from a cluster that busbar
did not create, `plan_pool` from a pool of a stack; one planner then chooses the Nodes that can run it.
`measure` runs a plan and removes all that it has created, `clean` removes what a killed process has left.
"""

from busbar.fabric.measure.foreign import Request, plan, require_rights
from busbar.fabric.measure.plan import CannotMeasure, Plan, plan_pool, read_facts
from busbar.fabric.measure.run import LeftBehind, Preempted, clean, measure

__all__ = [
    "CannotMeasure",
    "LeftBehind",
    "Plan",
    "Preempted",
    "Request",
    "clean",
    "measure",
    "plan",
    "plan_pool",
    "read_facts",
    "require_rights",
]
