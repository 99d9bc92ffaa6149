"""A site under the real engine, with the installed wheel: up to the first host that refuses."""

import os
import subprocess
from pathlib import Path

import yaml

from lab.engine.environment import environment
from tests.support.clusters import refusing, site
from tests.support.engine import require_engine
from tests.support.wheel import Installed


def test_an_update_of_a_site_reaches_its_hosts_and_names_those_that_refuse(
    installed_stack: Installed, tmp_path: Path
) -> None:
    engine = environment(tmp_path)
    require_engine(engine["PATH"])
    folder = tmp_path / "site"
    assert installed_stack.busbar("init", str(folder)).returncode == 0
    (folder / ".venv").symlink_to(installed_stack.folder)
    cluster = refusing(site(ssh={"key_file": "key"}))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    (folder / "Pulumi.site.yaml").write_text(yaml.safe_dump({"config": {"busbar:cluster": cluster}}))
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SSH_AUTH_SOCK")}
    done = subprocess.run(
        [installed_stack.folder / "bin/busbar", "up", "site", "--yes"],
        cwd=folder, env={**known, **engine},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "lb-1: root@127.0.1.1" in said and "refuses the connection" in said, said
    assert "Traceback" not in said, said
