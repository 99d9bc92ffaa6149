"""The hosts of a configuration as the contract `hosts`, and what the engine answers about stacks."""

import json
from collections.abc import Mapping
from typing import Any

import grpc
from pulumi.runtime import mocks

from busbar.config.stackfile import ROLES

STACK = "organization/machines/prod"


def host_list(hosts: Mapping[str, Any], roles: Mapping[str, str] = ROLES) -> dict[str, Any]:
    """The list with the hosts of a section `hosts`."""
    listed = []
    for role, key in roles.items():
        found = hosts.get(key.removesuffix("[]"), [])
        listed += [{**host, "role": role} for host in (found if isinstance(found, list) else [found])]
    return {"version": 1, "hosts": listed}


def from_list(cluster: Mapping[str, Any], roles: Mapping[str, str] = ROLES, **given: Any) -> dict[str, Any]:
    """The configuration with `hosts_from` in place of its lists of hosts."""
    keys = {key.removesuffix("[]") for key in roles.values()}
    rest = {key: value for key, value in cluster["hosts"].items() if key not in keys}
    others = {key: value for key, value in cluster.items() if key != "hosts"}
    return {**others, **({"hosts": rest} if rest else {}), "hosts_from": given}


class UnreadStackError(grpc.RpcError):  # type: ignore[misc]
    """The answer of the engine about a stack that it cannot read."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return f"invocation of pulumi:pulumi:readStackOutputs returned an error: {self.args[0]}"


class Stacks:
    """Answers for the functions by which a program reads stacks.

    `outputs`: those of STACK. `state`: the hosts that the program's own stack has, each with name, role and
    address. `torn`: how often the state is read while the engine writes it.
    """

    def __init__(
        self, outputs: Mapping[str, Any], state: list[Any], secrets: tuple[str, ...] = (), torn: int = 0
    ) -> None:
        self._outputs, self._state, self._secrets, self._torn = outputs, state, secrets, torn

    def __call__(self, args: mocks.MockCallArgs) -> dict[Any, Any]:
        if args.token == "pulumi:pulumi:readStackOutputs":
            if args.args["name"] != STACK:
                raise UnreadStackError('unknown stack "x"')
            return {"name": STACK, "outputs": dict(self._outputs), "secretOutputNames": [*self._secrets]}
        assert args.token == "pulumi:pulumi:readStackResourceOutputs", args.token
        if self._torn:
            self._torn -= 1
            raise UnreadStackError("failed to load checkpoint: EOF")
        removals = {
            f"urn:pulumi:test::busbar::x::busbar-{host['role']}-removal@{host['name']}": host
            for host in self._state
        }
        outputs = {
            urn: {"type": "command:local:Command", "outputs": {"stdin": json.dumps({"host": host})}}
            for urn, host in removals.items()
        }
        return {"name": args.args["stackName"], "outputs": outputs}
