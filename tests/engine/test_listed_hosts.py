"""`hosts_from: {stack}` on the real engine: the other stack's output, and the hosts that the state has."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api_server import ApiServer
from tests.support.clusters import VARIED_SECRETS, varied_site
from tests.support.engine import PROJECT, Project, throwaway_project
from tests.support.engine_site import CORE, EngineSite
from tests.support.host_lists import from_list, host_list

PROGRAM = """
    import json
    import pathlib

    import pulumi
    from pulumi_command import local

    from busbar.components.engine.stack import load_listed
    from busbar.config import ConfigError
    from busbar.config.stackfile import ROLES

    async def main():
        config = pulumi.Config()
        if pulumi.get_stack() == "machines":
            pulumi.export("hosts", config.require_object("hosts"))
            return
        given = {"stack": "organization/tiny/machines", "allow_removal": bool(config.get("removal"))}
        try:
            found = load_listed(
                {"hosts_from": given}, load=lambda data, **_: data, roles=ROLES, root=pathlib.Path.cwd()
            )
        except ConfigError as error:
            raise pulumi.RunError(str(error)) from None
        for host in found["hosts"]["workers"]:
            spec = pulumi.Output.secret(json.dumps({"host": {**host, "role": "worker"}}))
            removal = f"busbar-worker-removal@{host['name']}"
            local.Command(removal, delete=f"touch {host['name']}-gone", stdin=spec)

    pulumi.run(main)
"""


class Stacks(Project):
    """The stack `machines`, which exports hosts, and the stack `dev`, which has them."""

    def export(self, *names: str) -> None:
        hosts = [
            {"name": name, "role": "worker", "address": f"10.0.0.{number}", "port": 22}
            for number, name in enumerate(names, 1)
        ]
        listed = json.dumps({"version": 1, "hosts": hosts})
        self.pulumi("config", "set", "tiny:hosts", listed, stack="machines")
        code, text = self.pulumi("up", "--yes", "--skip-preview", stack="machines")
        assert code == 0, text

    @property
    def gone(self) -> set[str]:
        return {path.name.removesuffix("-gone") for path in self.folder.glob("*-gone")}


@pytest.fixture
def stacks(tmp_path: Path) -> Stacks:
    made = Stacks(tmp_path, throwaway_project(tmp_path, PROGRAM))
    for stack in ("machines", "dev"):
        assert made.pulumi("stack", "init", stack=stack)[0] == 0
    return made


def test_a_worker_that_has_left_the_other_stack_is_drained_only_where_that_is_allowed(stacks: Stacks) -> None:
    code, text = stacks.pulumi("preview")
    assert code != 0 and "'hosts' is not an output of stack organization/tiny/machines (it has: none)" in text
    stacks.export("gpu-1", "gpu-2")
    code, text = stacks.pulumi("up", "--yes")
    assert code == 0, text
    kept = json.loads((stacks.folder / ".busbar/dev/hosts.json").read_text())
    assert kept["source"] == "stack organization/tiny/machines" and kept["hosts"][0]["port"] == 22
    stacks.export("gpu-3", "gpu-1")
    for words in (["preview"], ["up", "--yes", "--skip-preview"]):
        code, text = stacks.pulumi(*words)
        assert code != 0 and "hosts_from: gpu-2: no longer in stack organization/tiny/machines." in text
    assert stacks.gone == set()
    assert json.loads((stacks.folder / ".busbar/dev/hosts.json").read_text()) == kept
    stacks.pulumi("config", "set", "tiny:removal", "true")
    code, text = stacks.pulumi("up", "--yes")
    assert code == 0, text
    assert stacks.gone == {"gpu-2"}


MACHINES = """
import json
import pulumi
pulumi.export("hosts", json.load(open("hosts.json")))
"""


def by_urn(site: EngineSite) -> dict[str, dict[str, Any]]:
    """Inputs, outputs and parents of all resources in the state; dependencies are there in any order."""
    found = site.export(CORE)["deployment"]["resources"]
    compared = ("type", "id", "inputs", "outputs", "parent", "provider", "protect")
    return {each["urn"]: {key: each.get(key) for key in compared} for each in found}


@pytest.mark.drill
def test_a_running_site_changes_nothing_when_its_hosts_come_from_elsewhere(
    tmp_path: Path, server: ApiServer
) -> None:
    site, cluster = EngineSite(tmp_path, server), varied_site()
    site.tell(cluster)
    site.create(CORE, {"busbar:cluster": cluster}, VARIED_SECRETS)
    assert site.up(CORE)[1] == ""
    site.put_objects(site.export(CORE))
    before = by_urn(site)
    file = site.stack_file(CORE)
    written = yaml.safe_load(file.read_text())
    other = tmp_path / "machines"
    other.mkdir()
    (other / "hosts.json").write_text(json.dumps(host_list(cluster["hosts"])))
    (other / "__main__.py").write_text(MACHINES)
    runtime = f"{{name: python, options: {{virtualenv: {Path(sys.prefix).resolve()}}}}}"
    (other / "Pulumi.yaml").write_text(f"name: machines\nruntime: {runtime}\n")
    for words in (["stack", "init", "prod"], ["up", "--yes", "--skip-preview"]):
        subprocess.run(["pulumi", *words, "--non-interactive"], cwd=other, env=site.variables(), check=True)
    kept = PROJECT / ".busbar" / "site" / "hosts.json"
    ways: Any = ({"file": str(other / "hosts.json")}, {"stack": "organization/machines/prod"})
    for given in ways:
        written["config"]["busbar:cluster"] = from_list(cluster, **given)
        file.write_text(yaml.safe_dump(written))
        steps, error = site.up(CORE)
        kept.unlink(missing_ok=True)
        assert error == "", error[-3000:]
        assert {step.operation for step in steps} == {"same"}
        assert by_urn(site) == before
