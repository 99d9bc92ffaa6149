"""The tokens with which servers and agents join, and their rotations."""

from __future__ import annotations

import pulumi
import pulumi_random as random

TOKEN_LENGTH = 48
# Everything that would make a new token if it changed in a later version, or in a provider's defaults.
TOKEN_ARGUMENTS = (
    *("length", "keepers", "overrideSpecial", "lower", "upper", "number", "numeric", "special"),
    *("minLower", "minUpper", "minNumeric", "minSpecial"),
)


class JoinToken:
    """One RandomPassword, and one per rotation: all stay in the state, a snapshot needs that of its time."""

    def __init__(self, name: str, rotations: int, parent: pulumi.Resource) -> None:
        numbers = ["", *(f"-{number + 1}" for number in range(rotations))]
        passwords = [_create_password(f"{name}{number}", parent) for number in numbers]
        self.first: pulumi.Output[str] = passwords[0].result
        """Secret; the same after rotations."""
        self.current: pulumi.Output[str] = passwords[-1].result
        """Secret; the one to join with."""


def _create_password(name: str, parent: pulumi.Resource) -> random.RandomPassword:
    # Letters and digits only: the token also stands in YAML and in K3s's own `user:password` form.
    return random.RandomPassword(
        name,
        length=TOKEN_LENGTH,
        special=False,
        # A token changed by an argument would lock out every host. A rotation is another resource.
        opts=pulumi.ResourceOptions(parent=parent, ignore_changes=[*TOKEN_ARGUMENTS]),
    )
