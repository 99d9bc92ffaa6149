"""The tokens with which servers and agents join, and their rotations."""

from __future__ import annotations

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
    """The tokens of the cluster of this name. `servers`, `agents`: numbers of rotations (`k3s.rotate`).

    Those before a rotation stay in the state: a snapshot needs the token of its time.
    """

    def __init__(
        self, name: str, *, servers: int = 0, agents: int = 0, parent: pulumi.Resource | None = None
    ) -> None:
        opts = pulumi.ResourceOptions(parent=parent, ignore_changes=[*TOKEN_ARGUMENTS])

        def made(kind: str, rotations: int) -> list[pulumi.Output[str]]:
            of_rotations = [names.token(kind, each, name) for each in range(rotations + 1)]
            return [create_password(each, opts).result for each in of_rotations]

        of_servers = made("server", servers)
        self.server = of_servers[-1]
        """Secret; the token with which servers join."""
        self.agent = made("agent", agents)[-1]
        """Secret; the token with which agents join."""
        self.install_id: pulumi.Output[str] = pulumi.Output.unsecret(of_servers[0].apply(k3s.install_id))
        """Identifies this cluster on its hosts; not secret. It is made of the first server token."""


def create_password(name: str, opts: pulumi.ResourceOptions) -> random.RandomPassword:
    """A token; `opts` ignores the changes of TOKEN_ARGUMENTS."""
    # Letters and digits only: the token is also used in YAML and in K3s's own `user:password` form.
    # A token that changes with an argument would lock out every host. A rotation is a separate resource.
    return random.RandomPassword(name, length=TOKEN_LENGTH, special=False, opts=opts)
