"""Options of children that were at the top of the stack in earlier releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi


def adopted_by(
    parent: pulumi.Resource,
    depends_on: pulumi.Input[Sequence[pulumi.Resource]] = (),
    deleted_with: pulumi.Resource | None = None,
    **more: Any,
) -> pulumi.ResourceOptions:
    """Options of a child of `parent` that had no parent before, and of all resources below it; `more`:
    further ResourceOptions.

    Without the alias the engine would delete the former resources, and a host's `-removal` uninstalls it.
    """
    return pulumi.ResourceOptions(
        parent=parent,
        depends_on=depends_on,
        deleted_with=deleted_with,
        aliases=[pulumi.Alias(parent=pulumi.ROOT_STACK_RESOURCE)],
        **more,
    )
