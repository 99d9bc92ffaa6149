"""The rights of a run: those of the Role in docs/measuring.md are enough, and none of them is too many."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import busbar
from tests.support.kube_cluster import connected
from tests.unit.fabric.measure.authorized import Authorized, Right, rights_of
from tests.unit.fabric.measure.foreign import SETTINGS, gpu_node

PAGE = Path(__file__).parents[4] / "docs" / "measuring.md"
OWN_NAMESPACE = {"create", "get", "list", "delete"}


def documented() -> Iterator[Right]:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    roles = [each for each in yaml.safe_load_all(text) if each["kind"] in ("Role", "ClusterRole")]
    for role in roles:
        yield from rights_of(role)


RIGHTS = sorted(documented())
Command = Callable[..., Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """A command of `busbar nccl` on a cluster; time only passes while it waits."""
    monkeypatch.chdir(tmp_path)
    Path("h100.xml").write_text("<system/>")
    Path("settings.yaml").write_text(yaml.safe_dump(SETTINGS))
    Path("topology.yaml").write_text(yaml.safe_dump({**SETTINGS, "topology_file": "h100.xml"}))

    def typed(cluster: Authorized, *words: str) -> Any:
        connected(monkeypatch, cluster)
        return busbar("nccl", *words)

    return typed


def cluster_with(rights: Iterable[Right]) -> Authorized:
    made = Authorized(rights, *(gpu_node(name, gpus=1, product="") for name in ("gpu-1", "gpu-2")))
    made.add("/api/v1/namespaces/bench", {"metadata": {"name": "bench"}})
    return made


def run_in_bench(command: Command, cluster: Authorized, settings: str = "settings.yaml") -> Any:
    return command(cluster, "run", "--settings", settings, "--namespace", "bench")


def test_the_role_of_the_page_is_enough_for_a_pass_and_leaves_nothing(command: Command) -> None:
    cluster = cluster_with(RIGHTS)
    before = set(cluster.objects)
    for settings in ("settings.yaml", "topology.yaml"):
        run_in_bench(command, cluster, settings)
        done = run_in_bench(command, cluster)
        assert done.exit_code == 0, done.output
        assert set(cluster.objects) == before


def test_the_role_of_the_page_holds_no_right_that_neither_run_nor_clean_uses(command: Command) -> None:
    used: set[Right] = set()
    for settings, starts in (("topology.yaml", True), ("settings.yaml", False)):
        cluster = cluster_with(RIGHTS)
        cluster.runs = cluster.run_job if starts else lambda job: None
        run_in_bench(command, cluster, settings)
        assert command(cluster, "clean", "--namespace", "bench").exit_code == 0
        used |= cluster.used
    assert sorted(used) == RIGHTS


@pytest.mark.parametrize("missing", RIGHTS, ids=str)
def test_a_missing_right_is_named_and_nothing_is_created(command: Command, missing: Right) -> None:
    cluster = cluster_with({*RIGHTS} - {missing})
    done = run_in_bench(command, cluster)
    assert (done.exit_code, cluster.created) == (2, [])
    assert f"\n  {missing}\n" in done.stderr and done.stderr.count("\n  ") == 1
    assert "busbar docs measuring Rights" in done.stderr


def test_a_namespace_of_its_own_needs_the_rights_in_all_namespaces(command: Command) -> None:
    everywhere = {each._replace(namespace="") for each in RIGHTS}
    of_namespace = {Right(verb, "", "namespaces", "") for verb in OWN_NAMESPACE}
    words = ("run", "--settings", "settings.yaml")
    cluster = cluster_with(everywhere | of_namespace)
    assert command(cluster, *words).exit_code == 0
    for rights, missing in ((everywhere, "namespaces: create"), ({*RIGHTS} | of_namespace, "pods: create")):
        cluster = cluster_with(rights)
        done = command(cluster, *words)
        assert (done.exit_code, cluster.created) == (2, [])
        assert f"\n  {missing}\n" in done.stderr and "--namespace NAME" in done.stderr


def test_a_dry_run_needs_no_right_but_to_read_nodes(command: Command) -> None:
    cluster = cluster_with({each for each in RIGHTS if each.resource == "nodes"})
    assert command(cluster, "run", "--dry-run", "--settings", "settings.yaml").exit_code == 0
