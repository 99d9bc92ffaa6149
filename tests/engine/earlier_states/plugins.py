"""The providers command, random and kubernetes for states without hosts: every step succeeds.

`python plugins.py command|random|kubernetes [ENGINE_ADDRESS]`, from the checkout that PYTHONPATH names. What
is a change, and which change is a replacement, is decided as by the lab's plugins. An updated Command prints
what it printed before; a new one what answers.py says, with the modules of that checkout.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    # The plugins are those of this checkout, also where the program is of another.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from lab.offline.plugins.command.local import LocalCommand
from lab.offline.plugins.command.remote import RemoteCommand
from lab.offline.plugins.helm import charts
from lab.offline.plugins.helm import release as helm
from lab.offline.plugins.kubernetes import checkpoint
from lab.offline.plugins.kubernetes.kinds import Kinds
from lab.offline.plugins.kubernetes.object import KubernetesObject
from lab.offline.plugins.kubernetes.provider import KubernetesProvider
from lab.offline.plugins.kubernetes.settings import Settings
from lab.offline.plugins.random.provider import RandomProvider
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import Call, Resource
from lab.offline.plugins.sdk.serve import run
from lab.offline.plugins.sdk.values import Properties, Secret, mark_secrets_like, reveal

if __name__ == "__main__":
    sys.path.pop(0)
    for name in [each for each in sys.modules if each.partition(".")[0] in ("busbar", "tests")]:
        del sys.modules[name]  # answers.py imports those of the program's checkout

FOLDER = "BUSBAR_STATES_FOLDER"
"""The variable that names the folder of stack.Checkout."""


def told(folder: Path) -> Path:
    """The file of Checkout.tell: the arguments of `answers` in answers.py."""
    return folder / "told.json"


def _printed(call: Call, inputs: Properties) -> Properties:
    """What a new Command prints."""
    folder = Path(os.environ[FOLDER])
    module = runpy.run_path(str(Path(__file__).with_name("answers.py")))
    answer = module["answers"](**json.loads(told(folder).read_text()))
    found = answer(SimpleNamespace(typ=call.type, name=call.name, inputs=inputs))
    return {"stdout": str(found["stdout"]), "stderr": ""}


class _Remote(RemoteCommand):
    def run(self, call: Call, text: str, inputs: Properties, previous: Any) -> Properties:
        return dict(previous) or _printed(call, inputs)


class _Local(LocalCommand):
    def run(self, call: Call, text: str, inputs: Properties, previous: Any) -> Properties:
        return _moved(dict(previous), inputs) or _printed(call, inputs)


def _moved(previous: Properties, inputs: Properties) -> Properties:
    """What a collecting Command prints again, with the folder of now."""
    if text := str(previous.get("stdout") or ""):
        folder = json.loads(str(reveal(inputs).get("stdin") or "{}")).get("folder", "")
        previous["stdout"] = re.sub(r'"\.busbar/[^"]*(?=/verdict\.json")', f'"{folder}', text)
    return previous


class _Object(KubernetesObject):
    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        wanted = checkpoint.to_object(inputs)
        live = {**wanted, "metadata": {**wanted["metadata"], "uid": f"uid-{call.name}"}}
        state = checkpoint.store(wanted, live, inputs, wanted["apiVersion"], "pulumi-kubernetes-0")
        return checkpoint.full_name(live), state

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        return self.create(call, news)[1]

    def delete(self, call: Call, id: str, state: Properties) -> None: ...


class _Release(helm.Release):
    def _announce_crds(self, call: Call, plain: Properties) -> None: ...

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        plain = reveal(inputs)
        status = {"name": plain["name"], "namespace": plain["namespace"], "revision": 1, "status": "deployed"}
        state = {**inputs, "resourceNames": {}, "status": {**status, "version": plain["version"]}}
        state = {**mark_secrets_like(state, inputs), "__inputs": Secret(inputs)}
        return f"{plain['namespace']}/{plain['name']}", state

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        return self.create(call, news)[1]

    def delete(self, call: Call, id: str, state: Properties) -> None: ...


class _Command(Provider):
    name, version = "command", "1.2.1"

    def resource(self, type_token: str) -> Resource:
        return _Remote() if ":remote:" in type_token else _Local()


class _Kubernetes(KubernetesProvider):
    def configure(self, variables: dict[str, str], args: Properties) -> None:
        self._site: Any = SimpleNamespace(
            settings=Settings.read(variables),
            unreachable=None,
            default_namespace="default",
            kinds=Kinds(None),
        )

    def resource(self, type_token: str) -> Resource:
        return (_Release if type_token.endswith(":Release") else _Object)(self._site)


def _chart(_: Any, inputs: Properties) -> dict[str, Any]:
    """Chart.yaml of any chart: there is no repository here."""
    return {"version": inputs.get("version") or "0.0.0"}


PROVIDERS = {"command": _Command, "random": RandomProvider, "kubernetes": _Kubernetes}

if __name__ == "__main__":
    charts.metadata = _chart  # type: ignore[assignment]
    addresses = [each for each in sys.argv[2:] if not each.startswith("-")]
    run(PROVIDERS[sys.argv[1]](), addresses[0] if addresses else None)
