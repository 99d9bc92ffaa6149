"""`hosts_from`: hosts of a file and of another stack's output give the same resources as inline ones."""

import copy
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from busbar.cli.stackfile import load_stack
from busbar.components.engine import stack
from busbar.config import ConfigError, load, stackfile
from busbar.manifests.names import sha256
from tests.program.answers import healthy
from tests.program.harness import ROOT, Run, run_program
from tests.support.clusters import site
from tests.support.host_lists import STACK, Stacks, from_list, host_list

SITE = site(load_balancers=2, workers={"h100": 2, "a100": 1})
HOSTS = host_list(SITE["hosts"])


def state(cluster: Mapping[str, Any] = SITE) -> list[dict[str, Any]]:
    """The hosts that the state has after an update."""
    roles = {"load_balancers": "lb", "servers": "server", "workers": "worker"}
    return [{**host, "role": role} for key, role in roles.items() for host in cluster["hosts"][key]]


def without(*names: str) -> dict[str, Any]:
    return {"version": 1, "hosts": [host for host in HOSTS["hosts"] if host["name"] not in names]}


@pytest.fixture
def up(tmp_path: Path) -> Any:
    """Runs the program of a site in a folder of its own, with `hosts_from`."""

    def run(stacks: Stacks, *, preview: bool = False, **given: Any) -> Run:
        shutil.copy(ROOT / "__main__.py", tmp_path)
        return run_program(
            SITE,
            healthy(SITE),
            program=tmp_path / "__main__.py",
            config={"busbar:cluster": json.dumps(from_list(SITE, **given))},
            preview=preview,
            call=stacks,
        )

    return run


def registered(run: Run) -> dict[str, Any]:
    """All that is asked of the engine about each resource."""
    assert run.error is None
    return {
        urn: (each.raw, sorted(each.ahead), str(each.request.aliases), each.request.deletedWith)
        for urn, each in run.resources.items()
    }


def test_hosts_of_a_file_and_of_a_stack_give_the_same_resources_as_inline(up: Any, tmp_path: Path) -> None:
    inline = registered(run_program(SITE, healthy(SITE)))
    (tmp_path / "hosts.json").write_text(json.dumps(HOSTS))
    assert registered(up(Stacks({}, state()), file="hosts.json")) == inline
    assert registered(up(Stacks({"hosts": HOSTS}, state()), stack=STACK)) == inline


def test_the_first_preview_knows_the_hosts_of_the_other_stack(up: Any) -> None:
    run = up(Stacks({"hosts": HOSTS}, []), preview=True, stack=STACK)
    assert registered(run) == registered(run_program(SITE, healthy(SITE), preview=True))
    assert not run.messages


def test_a_state_that_the_engine_is_writing_is_read_again(up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = 2
    assert registered(up(Stacks({"hosts": HOSTS}, state(), torn=torn), stack=STACK))
    monkeypatch.setattr(stack, "READ_SECONDS", 0)
    run = up(Stacks({"hosts": HOSTS}, state(), torn=torn), stack=STACK)
    assert "the state of this stack cannot be read: failed to load checkpoint: EOF" in str(run.error)


GONE = (
    f"no longer in stack {STACK}. The update would drain and uninstall what is missing there. Fix: put them "
    "back; to remove them,"
)
# Each row: the outputs and states of the stacks, the configuration, and the printed error.
REFUSED: list[tuple[Stacks, dict[str, Any], str]] = [
    *((Stacks(outputs, state()), {},
       f"hosts_from.output: 'hosts' is not an output of stack {STACK} (it has: {names}), and without a list ")
      for outputs, names in (({"host": HOSTS, "id": 1}, "host, id"), ({}, "none"))),
    (Stacks({"hosts": HOSTS}, state(), secrets=("hosts",)), {},
     f"hosts_from.output: 'hosts' is a secret of stack {STACK}, and a list of hosts has none. Fix: export "),
    (Stacks({}, state()), {"stack": "x"},
     'hosts_from: the outputs of stack x cannot be read: unknown stack "x". Fix: name it as '),
    (Stacks({"hosts": {**HOSTS, "version": 2}}, state()), {}, f"version (in stack {STACK}): 2 is not "),
    (Stacks({"hosts": without("gpu-1", "gpu-2", "gpu-3")}, state()), {},
     f"hosts_from: gpu-1, gpu-2, gpu-3: {GONE} set hosts_from.allow_removal: true"),
    (Stacks({"hosts": without("gpu-1", "gpu-2", "gpu-3")}, state()), {"allow_removal": True},
     f"hosts.workers (in stack {STACK}): missing: Hosts with GPUs and HCAs."),
    (Stacks({"hosts": without("server-2", "server-3", "gpu-2")}, state()), {"allow_removal": True},
     f"hosts_from: server-2, server-3: {GONE} for one update list the hosts in the file instead"),
]  # fmt: skip


@pytest.mark.parametrize(("stacks", "given", "said"), REFUSED)
@pytest.mark.parametrize("preview", [True, False])
def test_a_stack_without_a_usable_list_is_refused_and_nothing_is_registered(
    up: Any, tmp_path: Path, stacks: Stacks, given: dict[str, Any], said: str, preview: bool
) -> None:
    run = up(stacks, preview=preview, **{"stack": STACK, **given})
    [error] = str(run.error).splitlines()[1:]
    assert error.startswith(said)
    assert [each.type for each in run.resources.values()] == ["pulumi:pulumi:Stack"]
    assert not (tmp_path / ".busbar").exists()


def test_a_list_that_is_another_one_than_the_preview_has_shown_is_refused(
    up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not up(Stacks({"hosts": HOSTS}, state()), stack=STACK, preview=True).error
    shown = (tmp_path / ".busbar/test/hosts.json").read_text()
    monkeypatch.setenv(stackfile.LISTED, sha256(shown))
    assert not up(Stacks({"hosts": HOSTS}, state()), stack=STACK).error
    run = up(Stacks({"hosts": without("gpu-2")}, state()), stack=STACK, allow_removal=True)
    said = f"hosts_from: the list of stack {STACK} has changed since the preview was shown. Fix: run"
    assert said in str(run.error)
    assert (tmp_path / ".busbar/test/hosts.json").read_text() == shown


def test_a_quarantine_beside_the_list_is_one_of_the_worker(up: Any) -> None:
    reason = "rail 3 is slow"
    inline = copy.deepcopy(SITE)
    inline["hosts"]["workers"][1]["quarantine"] = reason
    run = up(Stacks({"hosts": HOSTS}, state()), stack=STACK, quarantine={"gpu-2": reason})
    assert registered(run) == registered(run_program(inline, healthy(inline)))


def test_commands_read_the_list_of_the_last_run_without_the_other_stack(
    up: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Pulumi.test.yaml"
    file.write_text(json.dumps({"config": {"busbar:cluster": from_list(SITE, stack=STACK)}}))
    with pytest.raises(ConfigError, match=r"was not read yet: .* Fix: busbar preview test, which reads it"):
        stackfile.read(file).cluster()
    up(Stacks({"hosts": HOSTS}, state()), stack=STACK)
    kept = tmp_path / ".busbar" / "test" / "hosts.json"
    os.utime(kept, (time.time() - 7200, time.time() - 7200))
    _, cluster = load_stack(str(file))
    assert cluster == load(SITE)
    assert capsys.readouterr().err == f"hosts: as read 2 h ago, {kept}\n"
    other = from_list(SITE, stack=STACK, output="machines")
    file.write_text(json.dumps({"config": {"busbar:cluster": other}}))
    with pytest.raises(ConfigError, match=f"hosts.json is of 'stack {STACK}'"):
        load_stack(str(file))
