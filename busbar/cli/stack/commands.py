"""`up`, also for `preview`, `destroy` and `status`. Each returns the exit code.

Misuse or Failed: nothing was started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer
from pulumi import automation as auto

from busbar import hooks, names
from busbar.capability import CANCEL_JOBS, Gate, notify, of_project
from busbar.cli.charts import Consumed, consumed, differences
from busbar.cli.engine import KNOWN_HOSTS
from busbar.cli.operation import operations_of
from busbar.cli.stack import ALL, CHARTS, Options, Target, copies, recovery, report, session
from busbar.cli.stack.engine import Snapshot, import_state, open_stack, refuse_changed, snapshot
from busbar.cli.stack.errors import reasons
from busbar.cli.stack.guard import check_removed, check_upgrades, guard_of
from busbar.cli.stack.rows import PlannedChanges, Rows, resource_name
from busbar.cli.stack.session import Session
from busbar.config import stackfile
from busbar.exits import DONE, FAILED, Misuse
from busbar.finding import STACK, Fix, with_fix
from busbar.helm import drift
from busbar.helm.drift import Difference
from busbar.kube.client import RestApi
from busbar.manifests.names import sha256
from busbar.operations import removal
from busbar.outputs import CLUSTER_GATE, GATE_FAILED
from busbar.preflight import facts
from busbar.text import listed

_SHOWN_STEPS = 10

# Preflight reads the machine-ids again, because a host may be another machine now.
_PREFLIGHT = ("-preflight", "-preflight-hosts")
# Steps that do not run on the host: a server prepares for another machine, and the API sets taints.
_NODES = ("-rejoin", "-nodes", "-taints")
_WITH_NODE = (names.CONTROL_PLANE, names.WORKER)
# A release that was uninstalled and is installed again may have the revision that it had.
_WAITS = (f"{names.GPU_OPERATOR}-gpus", f"{names.NETWORK_OPERATOR}-hcas")
_KUBECONFIG = f"-{names.CONTROL_PLANE}-kubeconfig"


def up(target: Target, options: Options) -> int:
    def run(s: Session) -> int:
        stack = open_stack(s.engine, target, create=s.say)
        state, written = snapshot(stack), target.written
        check_upgrades(target, state)
        again = _apply_again(s, state, options)
        on, changed = _changed_charts(s, state, options)
        if not options.skip_preview:
            plan, failure = _preview(s, stack, options, again)
            if failure:
                why = reasons(plan.errors, failure, printed=plan.printed)
                return s.fail(why, title="the preview failed; no changes made")
            ends = [{c.name for c in plan.changes if c.verb == verb} for verb in ("delete", "replace")]
            check_removed(target, state, ends, lambda: report.outputs_of(stack.outputs()).values)
            if not options.yes and (kept := stackfile.kept_in(target.project, target.name)).exists():
                os.environ[stackfile.LISTED] = sha256(kept.read_text(encoding="utf-8"))
        if options.only_preview:
            return DONE
        # Without changes the update only evaluates the outputs and the gate again.
        ask = not options.yes and (options.skip_preview or bool(plan.changes))
        if ask and not typer.confirm(f"\nPerform this update of {target.name}?"):
            s.say("no changes made")
            return FAILED
        if ask:
            refuse_changed(stack, target, state, written)
        s.title(s.command)
        if on.api:
            s.changing = True
            drift.apply(on.api, changed)
        rows, result, failure = s.update(
            stack,
            stack.up,
            refresh=options.refreshes,
            parallel=options.parallel,
            replace=again,
            # After a host has failed, steps that do not depend on it still run.
            continue_on_error=True,
        )
        # A second read of the outputs takes seconds in a large stack.
        outputs = report.outputs_of(result.outputs if result else stack.outputs())
        return _after_up(s, stack, rows, outputs, failure, state)

    if options.only_preview:
        return session.run("preview", target, run)
    return session.run("up", target, run, asks=not options.yes)


def _apply_again(s: Session, state: Snapshot, options: Options) -> list[str] | None:
    """The URNs of steps on hosts that run although nothing in them has changed."""
    failed = report.failed_steps(s.target.folder)
    if not failed and not options.converge:
        return None
    path = s.target.project / s.target.file
    off, new = stackfile.quarantined(path), _hosts_of(path) if options.converge else ()
    if repeated := [urn for urn in broken_off(state, failed) if names.host_of(resource_name(urn)) not in off]:
        steps = ", ".join(map(resource_name, repeated))
        s.say(f"{steps}: failed or interrupted in an earlier update, applied again")
    capability = of_project([stackfile.project_name(s.target.project) or ""])
    chosen = to_apply_again(state, options.converge, capability.waits if capability else (), new)
    if chosen:
        s.say(f"--converge applies again: {listed([*map(resource_name, chosen)], _SHOWN_STEPS)}")
        _pass_known(state, chosen, options.converge)
    return [*dict.fromkeys([*chosen, *repeated])]


def _pass_known(state: Snapshot, chosen: Collection[str], hosts: Collection[str]) -> None:
    """Tell preflight, which asks all hosts again, which others have passed: one that is down is left out."""
    for each in json.loads(state.text)["deployment"].get("resources") or []:
        text = (each.get("outputs") or {}).get("stdout")
        if each["urn"] in chosen and each["urn"].endswith(_PREFLIGHT) and isinstance(text, str):
            with suppress(ValueError):  # Then it is as in a first update.
                before = {name: known for name, known in facts.read(text).items() if name not in hosts}
                asked = {name: replace(known, fingerprint="") for name, known in before.items()}
                os.environ[KNOWN_HOSTS] = facts.pack(asked)


def _hosts_of(path: Path) -> set[str]:
    """The hosts in a stack file; none of a capability without hosts."""
    try:
        return {each.name for each in operations_of(path).host_keys(path)[1][1]}
    except Misuse:
        return set()


def _changed_charts(s: Session, state: Snapshot, options: Options) -> tuple[Consumed, list[Difference]]:
    """The cluster of another stack, and what `--converge` applies again there. Raises ApiError."""
    if not options.applies_charts:
        return Consumed(), []
    on = consumed(state.text, s.target.project / s.target.file)
    found = differences(on)
    for each in found:
        s.say(each.what if each.refused else f"--converge applies again: {each.what}")
    return on, [each for each in found if not each.refused]


def destroy(target: Target, options: Options) -> int:
    def run(s: Session) -> int:
        stack = open_stack(s.engine, target)
        state, written = snapshot(stack), target.written
        if not state.resources:
            s.say(f"stack {target.name} has no resources")
            return DONE
        guard = guard_of(target, state, lambda: report.outputs_of(stack.outputs()).values)
        if guard.gone:
            s.say(f"{guard.gone}, and so are the resources of this stack: only its state is emptied")
        else:
            guard.check()
            plan = PlannedChanges()
            s.title(f"{s.command}: preview")
            stack.preview_destroy(
                on_event=plan.on_event, suppress_progress=True, color="never", show_secrets=False
            )
            s.console.print(plan.render())
        if lost := _unrecorded(state):
            what = f"warning: an interrupted update created {lost}, which is not in the state and would stay"
            s.say(with_fix(what, Fix(command=("up", target.name), when="first, then destroy")))
        if not options.yes:
            answer = typer.prompt(f"\nThis removes all of it. Type the stack's name, {target.name}, to go on")
            if answer.strip() != target.name:
                s.say(f"{answer!r} is not {target.name!r}; no changes made")
                return FAILED
        refuse_changed(stack, target, state, written)
        if guard.gone:
            import_state(stack, state.emptied)
            report.remove_kept(target.folder)
            return DONE
        # Jobs may have started since the first question.
        guard.check(ends=True)
        os.environ[CANCEL_JOBS] = str(guard.may_end).lower()
        s.title(s.command)
        rows, _, failure = s.update(stack, stack.destroy, parallel=options.parallel, continue_on_error=True)
        if failure:
            s.title(rows.summary(failed=True))
            return s.fail_half_way(rows, failure)
        report.remove_kept(target.folder)
        s.title(rows.summary())
        report.show_uncleaned(s.console, snapshot(stack), target)
        return DONE

    return session.run("destroy", target, run, asks=not options.yes)


def status(target: Target, as_json: bool) -> int:
    def run(s: Session) -> int:
        return report.status(s.console, open_stack(s.engine, target), target, as_json=as_json)

    return session.run("status", target, run)


def _preview(
    s: Session, stack: auto.Stack, options: Options, again: list[str] | None
) -> tuple[PlannedChanges, str]:
    """Print and return the plan, with the engine's stderr if the preview failed, else ""."""
    plan = PlannedChanges()
    s.title(f"busbar preview {s.target.name}")
    try:
        stack.preview(
            on_event=plan.on_event,
            refresh=options.refreshes,
            parallel=options.parallel,
            replace=again,
            suppress_outputs=True,
            suppress_progress=True,
            color="never",
        )
    except auto.CommandError as error:
        if s.interrupts.count:
            raise
        return plan, s.engine.stderr or str(error)
    s.console.print(plan.render())
    return plan, ""


def _after_up(
    s: Session, stack: auto.Stack, rows: Rows, outputs: report.Outputs, failure: str, before: Snapshot
) -> int:
    """Keep and show the outputs, keep a copy of the state, and print the next steps."""
    wrote = rows.outputs_written or not failure
    if wrote:
        report.keep_outputs(outputs, s.target.folder)
    if outputs.gate == CLUSTER_GATE and (kubeconfig := outputs.values.get(report.KUBECONFIG)):
        notify(lambda: RestApi(kubeconfig), s.say, outputs.values)
    if wrote:
        s.title("" if outputs.gate else "outputs")
        report.show_outputs(s.console, outputs, s.target)
    s.title(rows.summary(failed=bool(failure)), "")
    if not wrote and outputs.values:
        s.say(report.former(outputs, s.target.folder))
    if not rows.counts and not failure and outputs.gate:
        s.say(report.unchanged(outputs.gate, s.target))
    state = before
    if rows.counts or rows.resumes or removal.recorded(s.target.folder):
        state = snapshot(stack)
        report.show_uncleaned(s.console, state, s.target)
        if rows.resumes and not failure:
            _forget_completed(s, stack, state)
    copies.keep(s, before, state)
    if not failure:
        return _half_changed(s, rows.not_repeated) if rows.not_repeated else DONE
    gate = outputs.failed_gate
    if gate and rows.outputs_written and any(GATE_FAILED in error for error in rows.errors):
        return _gate_failed(s, outputs, gate)
    return s.fail_half_way(rows, failure)


def _gate_failed(s: Session, outputs: report.Outputs, gate: Gate) -> int:
    found = outputs.values.get(gate.reasons) or ["the outputs give no reason"]
    name = outputs.values.get("cluster_name") or s.target.name
    s.fail([f"  - {reason}" for reason in found], title=f"{gate.title} for cluster {name}")
    s.say(f"Next: after the repair {report.next_run(gate, s.target)}, then `{s.command}`.")
    if report.has_hosts(gate):
        hooks.call("gate_failed", s.target.project / s.target.file, s.say)
    return FAILED


def _half_changed(s: Session, urns: list[str]) -> int:
    title = "an earlier update was interrupted in the middle of a change that this one did not repeat"
    s.fail([f"  - {resource_name(urn)}" for urn in urns], title=title)
    s.say(f"They may have parts of its configuration. Next: `{s.command}`, which repeats those of hosts.")
    return FAILED


def _forget_completed(s: Session, stack: auto.Stack, state: Snapshot) -> None:
    """Drop the records of interrupted steps that the successful update has repeated."""
    try:
        recovery.forget_completed(stack, state)
    except auto.CommandError:
        s.say(f"warning: the records of interrupted steps remain: {s.engine.stderr}")
        return
    if lost := _unrecorded(state):
        what = f"warning: an earlier update was interrupted while it created {lost}, which may exist"
        fix = f"remove it by hand, then `pulumi refresh --clear-pending-creates --stack {STACK}`"
        s.say(with_fix(what, fix))


def _unrecorded(state: Snapshot) -> str:
    """The names of interrupted creations that are not resources of the stack."""
    lost = [urn for urn, kind in state.pending if kind == "creating" and urn not in state.resources]
    return ", ".join(map(resource_name, lost))


def to_apply_again(
    state: Snapshot, hosts: Sequence[str], waits: Collection[str] = (), new: Collection[str] = ()
) -> list[str]:
    """The URNs of the resources that install `hosts`. The engine replaces them, which runs them again.

    Their replacement uninstalls nothing, because the removal of a host is a separate resource, which is not
    in the list. "cluster" and workers add the waits for what the charts bring, and servers the kubeconfig.
    `waits`: such waits of a capability. `new`: hosts that the update installs if the state lacks them.
    Raises Misuse for any other host that is not in the state.
    """
    urns = {resource_name(urn): urn for urn in state.resources}
    installed = names.installations(urns)
    if ALL in hosts:
        chosen = installed
    else:
        chosen = [name for host in hosts if host != CHARTS for name in _resources_of(host, installed, new)]
    components = [names.component_of(name) for name in chosen]
    before, after = list[str](), list[str]()
    if chosen:
        before = [name for name in urns if name.endswith(_PREFLIGHT)]
    if any(each.endswith(_WITH_NODE) for each in components):
        before += [name for step in _NODES for name in urns if name.endswith(f"-{names.CONTROL_PLANE}{step}")]
    # The cluster may have been made anew, with another CA.
    if any(each.endswith(names.CONTROL_PLANE) for each in components):
        after += [name for name in urns if name.endswith(_KUBECONFIG)]
    # A snapshot of etcd may bring back Nodes that are not configured any more.
    if {ALL, CHARTS} & {*hosts}:
        after += [name for name in urns if name.endswith("-stale-nodes")]
    # A Node that is made anew offers no devices at first.
    if {ALL, CHARTS} & {*hosts} or any(each.endswith(names.WORKER) for each in components):
        after += [name for name in urns if name.endswith(_WAITS) or name in waits]
    return [urns[name] for name in (*before, *chosen, *after)]


def broken_off(state: Snapshot, urns: Collection[str]) -> list[str]:
    """The `urns` that install a host, where an earlier update failed: the engine would do nothing there."""
    known = {resource_name(urn): urn for urn in state.resources}
    failed = {resource_name(urn) for urn in urns}
    return [known[name] for name in names.installations(known) if name in failed]


def _resources_of(host: str, installed: Sequence[str], new: Collection[str]) -> list[str]:
    found = [name for name in installed if names.host_of(name) == host]
    if not found and host not in new:
        known = ", ".join(dict.fromkeys(map(names.host_of, installed)))
        fix = f"name some of {known}; {CHARTS}; or {ALL}." if known else f"name {CHARTS} or {ALL}."
        raise Misuse(f"--converge {host}: the stack has no such host", fix)
    return found
