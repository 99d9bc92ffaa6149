"""A policy pack for the stacks that use clusters of busbar: three rules, see README.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import rules
from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyPack,
    ReportViolation,
    StackValidationArgs,
    StackValidationPolicy,
)

Rule = Callable[[rules.ClusterOutputs, Mapping[str, Any]], str | None]
CLUSTERS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def policy(name: str, description: str, rule: Rule, **more: dict[str, Any]) -> StackValidationPolicy:
    """The rule on each of the clusters that the stack uses."""

    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        config = args.get_config()
        found = [(each.resource_type, each.props) for each in args.resources]
        for stack in config["clusters"]:
            try:
                cluster = rules.read(stack)
                if rules.uses(found, cluster) and (why := rule(cluster, config)):
                    report(f"{stack}: {why}")
            except rules.Unreadable as error:
                report(f"{stack}: {error}")

    schema = PolicyConfigSchema({"clusters": CLUSTERS, **more}, required=["clusters"])
    return StackValidationPolicy(name, description, validate, config_schema=schema)


PolicyPack(
    "busbar-fabric",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        policy(
            "passed",
            "The fabric of the cluster has passed its measurement.",
            lambda cluster, _: rules.not_passed(cluster),
        ),
        policy(
            "fresh",
            "The verdict is of the cluster as it is, and not too old.",
            lambda cluster, config: rules.stale(cluster, config.get("max_age_days", 90)),
            max_age_days={"type": "number", "default": 90},
        ),
        policy(
            "accepted",
            "The cluster was accepted by a known signer.",
            rules.not_accepted,
            acceptance={"type": "string"},
            signers={"type": "string"},
        ),
    ],
)
