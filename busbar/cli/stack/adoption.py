"""`busbar adopt`: writes the state of a stack anew, from what its hosts and its cluster have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pulumi import automation as auto

from busbar import outputs
from busbar.cli.operation import operations_of
from busbar.cli.stack import events, keep, session
from busbar.cli.stack.adopters import Adopters, local_answer
from busbar.cli.stack.engine import open_stack, snapshot
from busbar.cli.stack.errors import StackError, reasons
from busbar.cli.stack.session import Session
from busbar.cli.stack.target import PARALLEL, Target
from busbar.cli.stackfile import login_of
from busbar.config import stackfile
from busbar.exits import DONE, FAILED
from busbar.operations import adoption
from busbar.operations.adoption import Found, Lost
from busbar.text import counted

_BEGUN = "adopting"
"""A file in the folder of the stack, while its state is being written."""
_INSTALLED = ("::command:", "$command:", "::kubernetes:", "$kubernetes:")


def adopt(target: Target) -> int:
    """Run `busbar adopt`: read the hosts, run the program against what they have, name what differs."""

    def run(s: Session) -> int:
        lost = _lost(target)
        stack = open_stack(s.engine, target, create=s.say)
        _refuse_known(stack, target)
        s.say(f"asking {counted(len(lost.hosts), 'host')}; nothing on them or in the cluster is changed")
        found = asyncio.run(adoption.read(lost, f"{stackfile.project_name(target.project)}/{target.name}"))
        adopters = Adopters(lost, found, target.project, local_answer(target.project, s.say))
        return write(s, stack, adopters)

    return session.run("adopt", target, run)


def write(s: Session, stack: auto.Stack, adopters: Adopters) -> int:
    """Write the state: all of it, or none. Returns the exit code."""
    begun = s.target.folder / _BEGUN
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.touch()
    _empty(stack)
    is_whole = False
    workspace = stack.workspace
    try:
        with adopters.serving(workspace) as providers:
            workspace.env_vars = {"PULUMI_DEBUG_PROVIDERS": providers, outputs.ADOPTING: "1"}
            rows, result, failure = s.update(stack, stack.up, parallel=PARALLEL)
        workspace.env_vars = {}
        if not failure and adopters.missing:
            # The engine drops what is not there, also where other resources depend on it.
            stack.refresh(target=adopters.missing, suppress_progress=True, color="never", show_secrets=False)
        is_whole = not failure
    finally:
        keep.keep_failed_steps((), s.target.folder)
        if not is_whole:
            _empty(stack)
        begun.unlink()
    if failure or result is None:
        s.fail(reasons(rows.errors, failure, printed=rows.printed), title="nothing was adopted")
        return FAILED
    keep.keep(keep.of(result.outputs), s.target.folder)
    _report(s, adopters.found, adopters.differences, map(events.name, adopters.missing))
    return DONE


def _lost(target: Target) -> Lost:
    """The stack of the file: that of a cluster, or of a capability with hosts of its own."""
    path = target.project / target.file
    if own := operations_of(path):
        return own.lost(path)
    file = stackfile.read(path)
    cluster = file.cluster()
    return adoption.of_cluster(cluster, login_of(file, cluster))


def _refuse_known(stack: auto.Stack, target: Target) -> None:
    """Raise StackError if the state has a host or an object. An update that preflight refused leaves less."""
    known = [urn for urn in snapshot(stack).resources if any(part in urn for part in _INSTALLED)]
    if known and not (target.folder / _BEGUN).exists():
        raise StackError(
            f"stack {target.name} has {counted(len(known), 'step')} in its state, and only a lost state is "
            f"adopted. Fix: `busbar up {target.name}`; a state that is of no use is removed by "
            f"`pulumi stack rm --force --preserve-config {target.name}`",
            exit_code=FAILED,
        )


def _empty(stack: auto.Stack) -> None:
    """Take everything out of the state."""
    if snapshot(stack).resources:
        deployment = stack.export_stack()
        found = deployment.deployment or {}
        deployment.deployment = {key: found[key] for key in ("manifest", "secrets_providers") if key in found}
        stack.import_stack(deployment)


def _report(s: Session, found: Found, differences: dict[str, str], missing: Iterable[str]) -> None:
    s.title(f"adopted: cluster {found.install_id}, {counted(len(found.hosts), 'host')}")
    rows = [("differs", f"{name}: {why}") for name, why in differences.items()]
    rows += [("missing", f"{name} is not on the cluster") for name in missing]
    older = "from before a rotation; a snapshot of etcd from that time cannot be restored without it"
    rows += [("lost", f"{name}: {older}") for name in found.secrets.lost]
    for kind, text in rows:
        s.say(f"{kind:8} {text}")
    name = s.target.name
    s.say(
        f"Next: `busbar up {name}` shows what it would change; `busbar verify {name}` asks hosts and Nodes."
    )
