"""The tokens with which servers and agents join, and their rotations."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_random as random

from busbar import names
from busbar.hosts import k3s

TOKEN_LENGTH = 48
# Arguments that would make a new token if they changed in a later version, or in a provider's defaults.
TOKEN_ARGUMENTS = (
    *("length", "keepers", "overrideSpecial", "lower", "upper", "number", "numeric", "special"),
    *("minLower", "minUpper", "minNumeric", "minSpecial"),
)


class JoinTokens:
    """The tokens of the cluster of this name. `servers`, `agents`: numbers of rotations (`k3s.rotate`)."""

    def __init__(
        self, name: str, *, servers: int = 0, agents: int = 0, parent: pulumi.Resource | None = None
    ) -> None:
        opts = pulumi.ResourceOptions(parent=parent, ignore_changes=[*TOKEN_ARGUMENTS])
        self.server = _JoinToken([names.token("server", each, name) for each in range(servers + 1)], opts)
        self.agent = _JoinToken([names.token("agent", each, name) for each in range(agents + 1)], opts)
        self.install_id: pulumi.Output[str] = pulumi.Output.unsecret(self.server.first.apply(k3s.install_id))
        """Identifies this cluster on its hosts. It is not secret, and unchanged by rotations because it is
        derived from the first server token."""


class _JoinToken:
    """One RandomPassword, and one per rotation. All stay in the state: a snapshot needs that of its time."""

    def __init__(self, of_rotations: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        passwords = [create_password(name, opts) for name in of_rotations]
        self.first: pulumi.Output[str] = passwords[0].result
        """Secret; the first token, unchanged by rotations."""
        self.current: pulumi.Output[str] = passwords[-1].result
        """Secret; the token to join with."""


def create_password(name: str, opts: pulumi.ResourceOptions) -> random.RandomPassword:
    """A token; `opts` ignores the changes of TOKEN_ARGUMENTS."""
    # Letters and digits only: the token is also used in YAML and in K3s's own `user:password` form.
    # A token that changes with an argument would lock out every host. A rotation is a separate resource.
    return random.RandomPassword(name, length=TOKEN_LENGTH, special=False, opts=opts)
