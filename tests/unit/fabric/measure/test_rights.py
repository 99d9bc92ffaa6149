"""The rights of a run: those of the Role in docs/measuring.md are enough, and none of them is too many."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from busbar.kube.client import ApiError, JsonObject
from tests.support.cli import busbar
from tests.support.kube_cluster import connected
from tests.unit.fabric.measure.foreign import SETTINGS, Foreign, gpu_node

PAGE = Path(__file__).parents[4] / "docs" / "measuring.md"
OWN_NAMESPACE = {"create", "get", "list", "delete"}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER = "system:serviceaccount:bench:serviceaccount"


class Right(NamedTuple):
    """One verb on one resource, such as `pods/log`. `namespace`: empty for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.resource}{'.' + self.group if self.group else ''}: {self.verb}"


def rights_of(role: Mapping[str, Any]) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Right(verb, group, resource, namespace) for verb in rule["verbs"])


class Authorized(Foreign):
    """A cluster that allows what RBAC rules allow, as a real API server does.

    It answers 403 where no right allows a request. `used`: the rights by which requests were allowed.
    """

    def __init__(self, rights: Iterable[Right], *nodes: JsonObject) -> None:
        super().__init__(*nodes)
        self.rights = set(rights)
        self.used: set[Right] = set()

    def _right(self, wanted: Right) -> Right | None:
        return next((each for each in (wanted, wanted._replace(namespace="")) if each in self.rights), None)

    def _ask(self, method: str, verb: str, path: str) -> None:
        api, *parts = path.partition("?")[0].removeprefix("/").split("/")
        group = parts.pop(0) if api == "apis" else ""
        parts = parts[1:]
        if not parts:
            return  # Discovery is for everybody.
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 1:
            namespace = parts[1]
            parts = parts[2:] or parts
        resource = "/".join([parts[0], *parts[2:]])
        wanted = Right(verb, group, resource, namespace)
        if (found := self._right(wanted)) is None:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            reason = f'{resource} is forbidden: User "{USER}" cannot {verb} resource "{resource}" {where}'
            raise ApiError(f"{method} {path}", 403, reason)
        self.used.add(found)

    def get(self, path: str, **query: str) -> JsonObject:
        self._ask("GET", "get", path)
        return super().get(path, **query)

    def list(self, path: str, **query: str) -> list[JsonObject]:
        self._ask("GET", "list", path)
        return super().list(path, **query)

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if path == REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            right = Right(asked["verb"], asked.get("group", ""), resource, asked.get("namespace", ""))
            return {"status": {"allowed": self._right(right) is not None}}
        self._ask("POST", "create", path)
        return super().create(path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._ask("PATCH", "patch", path)
        return super().merge(path, body)

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        self._ask("DELETE", "delete", path)
        return super().delete(path, **preconditions)

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        self._ask("GET", "get", path)
        return super().stream(path, **query)


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
    # The log of the simulated job does not name the topology file.
    for settings, code in (("settings.yaml", 0), ("topology.yaml", 2)):
        done = run_in_bench(command, cluster, settings)
        assert done.exit_code == code, done.output
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
