"""The entry of watch: everything that the core knows of this folder."""

from busbar.capability import Capability, Gate

GATE = Gate(
    version="watch_contract_version",
    passed="watch_passed",
    reasons="watch_reasons",
    title="monitoring is not complete",
    raised="check.run",
    summary="stacks.watch.package.outputs",
)
CAPABILITY = Capability(
    name="watch",
    help="Refresh the series of a monitored cluster.",
    commands="stacks.watch.package.commands",
    config="stacks.watch.package.config:CONFIG",
    gate=GATE,
    steps={
        "survey": "stacks.watch.package.check:survey",
        "write": "stacks.watch.package.series:write_now",
        "check": "stacks.watch.package.check:check",
    },
    ready="stacks.watch.package.check:ready",
    waits=("monitoring-check",),
    changed="stacks.watch.package.series:follow",
    repeat="busbar watch refresh STACK",
)
