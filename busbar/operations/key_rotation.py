"""Rotates the key that Secrets are encrypted with in etcd: the steps on the servers (host/k3s-key.sh).

In each stage server 1 is first, and every server restarts with its result before the next stage begins, so
that all of them can read all Secrets at any time. Every step may be repeated, and so may the whole: after an
interruption the same command goes on in the stage that K3s is in.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbar.exits import Failed
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, Say, ScriptError, UnreachableError, on_each
from busbar.models import StrictModel

SCRIPT = "k3s-key"
STAGES = ("prepare", "rotate", "reencrypt")
PROVIDER = "aescbc"
STATUS_SECONDS = 240
# Time limit in seconds: all Secrets are written again, five per second, up to three times.
STAGE_SECONDS = 4 * 3600
FOLLOW_SECONDS = 1500


class KeyRotationError(Failed):
    """The rotation was refused, or stopped; the text has the state of the key, and the fix."""


class KeyStatus(StrictModel):
    """The key status of a server. `applied`: the stage of the running K3s. `stage`: the stage in etcd."""

    node: str
    enabled: bool
    stage: str
    applied: str
    hashes_match: bool


@dataclass(frozen=True)
class RotationPlan:
    """A checked rotation. `stages`: the remaining ones; fewer than all if an earlier rotation stopped."""

    servers: tuple[Host, ...]
    stages: tuple[str, ...]

    @property
    def resumed(self) -> bool:
        """Whether an earlier rotation was not finished."""
        return self.stages != STAGES


async def plan(inventory: Inventory, login: Login) -> RotationPlan:
    """Query every server and plan the rotation; changes nothing.

    Raises KeyRotationError (with all reasons), ValueError (unusable SSH key), ScriptError (bastion).
    """
    provider = inventory.cluster.k3s.server_args.get("secrets-encryption-provider", PROVIDER)
    if provider != PROVIDER:
        raise KeyRotationError(
            f"k3s.server_args.secrets-encryption-provider is {provider!r}: `k3s secrets-encrypt prepare` "
            f"supports {PROVIDER} only; no changes made. Fix: rotate by hand, after k3s etcd-snapshot save: "
            "k3s secrets-encrypt rotate-keys on one server, then restart K3s on the others. Secrets that "
            "those write before their restart are lost"
        )
    async with Hosts.open(login) as hosts:

        async def ask(server: Host) -> KeyStatus:
            facts = await hosts.run(server, SCRIPT, {"VERB": "status"}, seconds=STATUS_SECONDS)
            status = KeyStatus.model_validate(facts)
            if not status.enabled:
                raise ScriptError(f"{server.name}: Secrets are not encrypted in etcd there")
            return status

        answers = await on_each(inventory.servers, ask)
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        raise KeyRotationError("\n".join([*failed, "A rotation needs every server; no changes made"]))
    return RotationPlan(
        inventory.servers, remaining([each for each in answers if isinstance(each, KeyStatus)])
    )


def remaining(states: list[KeyStatus]) -> tuple[str, ...]:
    """The remaining stages, by the states of the servers (server 1 first); all if none was begun.

    They include a stage that was begun: server 1 restarts with it, and the others follow.
    """
    leader = states[0]
    if leader.stage == "start":
        return STAGES
    if leader.stage == "reencrypt_finished":
        is_finished = leader.applied == leader.stage and all(each.hashes_match for each in states)
        return STAGES if is_finished else STAGES[-1:]
    begun = leader.stage.partition("_")[0]
    if begun not in STAGES:
        raise KeyRotationError(
            f"{leader.node}: the key is in stage {leader.stage!r}, expected one of {', '.join(STAGES)}. "
            "Fix: see k3s secrets-encrypt status there"
        )
    return STAGES[STAGES.index(begun) :]


async def rotate(plan: RotationPlan, login: Login, say: Say) -> None:
    """Rotate the key. Raises KeyRotationError, ValueError (unusable SSH key), ScriptError (bastion)."""
    leader, *others = plan.servers
    async with Hosts.open(login, say) as hosts:
        for number, stage in enumerate(plan.stages, start=1):
            say(f"{stage} ({number} of {len(plan.stages)}): {leader.name}")
            try:
                await hosts.run(leader, SCRIPT, {"VERB": "stage", "STAGE": stage}, seconds=STAGE_SECONDS)
                for server in others:
                    say(f"{stage} ({number} of {len(plan.stages)}): restarting {server.name}")
                    values = {"VERB": "follow", "LEADER": leader.name}
                    await hosts.run(server, SCRIPT, values, seconds=FOLLOW_SECONDS)
            except (ScriptError, UnreachableError) as error:
                raise KeyRotationError(
                    f"{error}. The rotation stopped in stage {stage}; all servers can read all Secrets. "
                    "Fix: repair what is named above and run the same command again"
                ) from None
