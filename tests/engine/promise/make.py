"""Keeps what the promise of docs/sites.md is held to; `python -m tests.engine.promise.make` makes it anew.

state.json.xz is the state of a cluster of two workers that 1.0.0 has made, or until its tag any revision.
files.txt has the digests of what decides, after an update of that state by this revision, whether a service
restarts. The argument `files` makes only this.
"""

import hashlib
import json
import lzma
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import host_commands
from tests.support.api_server import ApiServer, api_server
from tests.support.clusters import VARIED_SECRETS, varied_site
from tests.support.engine_site import CORE, EngineSite, Step, plain, resources
from tests.unit.hosts.recorded import Host

STATE = Path(__file__).with_name("state.json.xz")
FILES = Path(__file__).with_name("files.txt")
K3S = ("k3s-server", "k3s-agent")
"""The scripts that write files beside their payload: they run on a simulated host."""
SERVICES = (*K3S, "haproxy", "nfs-server")
"""The scripts that restart a service where a file of it, or one of VALUES, is another."""
FOLDERS = ("/etc/rancher/", "/etc/systemd/")
KUBECONFIG = "/etc/rancher/k3s/k3s.yaml"  # K3s writes it
VALUES = re.compile(r"VERSION|IMAGES|SHA256_\w+|ROTATE_\w+")
# A script that is packed (busbar.hosts.scripts). The facts of preflight are packed too, and short.
_PACKED = re.compile(r"H4sI[\w+/=]{1000,}")
_PLACES = ("sourcePosition", "stackTrace", "created", "modified")


@dataclass(frozen=True)
class Update:
    """An update of the kept state: its steps, what the engine printed if it failed, and its end."""

    steps: list[Step]
    error: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def main() -> None:
    """Make both, or only the files."""
    with tempfile.TemporaryDirectory() as name, api_server(Path(name)) as server:
        if sys.argv[1:] != ["files"]:
            _make_state(EngineSite(Path(name) / "new", server))
        done = update(Path(name) / "kept", server)
        if done.error:
            raise SystemExit(done.error)
        FILES.write_text(digests(files_of(done.after, Path(name) / "hosts")))
    print(f"{STATE}: {STATE.stat().st_size} bytes\n{FILES}: {FILES.stat().st_size} bytes")


def update(folder: Path, server: ApiServer) -> Update:
    """Update the kept state with this revision, and the configuration with which it was made."""
    kept, site = json.loads(lzma.decompress(STATE.read_bytes())), EngineSite(folder, server)
    site.tell(kept["cluster"])
    site.create(CORE, {"busbar:cluster": kept["cluster"]}, kept["secrets"])
    site.load(CORE, kept["state"])
    steps, error = site.up(CORE)
    return Update(steps, error, kept["state"], site.export(CORE))


def _make_state(site: EngineSite) -> None:
    cluster = varied_site()
    site.tell(cluster)
    site.create(CORE, {"busbar:cluster": cluster}, VARIED_SECRETS)
    _, error = site.up(CORE)
    if error:
        raise SystemExit(error)
    kept = {"cluster": cluster, "secrets": VARIED_SECRETS, "state": _small(site.export(CORE), site)}
    text = json.dumps(kept, sort_keys=True)
    STATE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _small(state: Mapping[str, Any], site: EngineSite) -> dict[str, Any]:
    """The state with digests in place of the texts of scripts, and without the places of this machine."""
    text = json.dumps(state).replace(str(site.folder), "/site").replace(sys.prefix, "/venv")
    found: dict[str, Any] = json.loads(_PACKED.sub(_digest, text))
    for each in resources(found):
        for key in _PLACES:
            each.pop(key, None)
    return found


def _digest(packed: re.Match[str]) -> str:
    return hashlib.sha256(packed[0].encode()).hexdigest()


def digests(files: Mapping[str, str]) -> str:
    """A line per file or values."""
    shortened = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in files.items()}
    return "".join(f"{digest}  {name}\n" for name, digest in shortened.items())


def files_of(state: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The files by which a service restarts, as the steps of a state leave them on one host of each kind.

    `HOSTS: PATH` -> text.
    """
    steps: dict[tuple[str, str], dict[str, Any]] = {}
    for each in resources(state):
        inputs = plain(each.get("inputs", {}))
        values = host_commands.values_of(inputs.get("create") or "")
        script = values.get("BUSBAR_SCRIPT", "").rpartition("-")[0]
        if script in SERVICES:
            # Server 1 begins the cluster, and the others join it.
            kind = script, values.get("FIRST", "")
            steps.setdefault(kind, {})[values["NODE_NAME"]] = values, host_commands.files_of(inputs["stdin"])
    texts = []
    for (script, _), by_host in sorted(steps.items(), key=str):
        name = min(by_host)
        values, payload = by_host[name]
        decides = {key: value for key, value in sorted(values.items()) if VALUES.fullmatch(key)}
        texts.append((name, "values", "".join(f"{key}={value}\n" for key, value in decides.items())))
        files = _installed(folder / name, script, values, payload) if script in K3S else payload
        texts += [(name, path, text) for path, text in sorted(files.items())]
    hosts: dict[tuple[str, str], list[str]] = {}  # a file that is the same on several hosts is kept once
    for name, path, text in texts:
        if text:
            hosts.setdefault((path, text.rstrip()), []).append(name)
    return {f"{', '.join(names)}: {path}": text for (path, text), names in hosts.items()}


def _installed(
    root: Path, script: str, values: Mapping[str, str], payload: Mapping[str, str]
) -> dict[str, str]:
    """The files below FOLDERS, by path, after the script has run on a simulated host."""
    host = Host(root)
    host.state("ip addr show", f"2: eth0    inet {values['NODE_ADDRESS']}/16 scope global eth0\n")
    if values.get("FIRST") == "false":
        host.state("peers", values["PEERS"].replace(" ", "\n"))
    given = {**values, **host.release(values["VERSION"]), "IMAGES": "", "VERB": "install"}
    host.facts(script, payload, **given)
    return {
        path: (root / path[1:]).read_text().replace(str(root), "")
        for path in host.files()
        if path.startswith(FOLDERS) and path != KUBECONFIG
    }


if __name__ == "__main__":
    main()
