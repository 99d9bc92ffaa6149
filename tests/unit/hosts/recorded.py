"""Runs whole host scripts below a folder; stand-ins for the programs they call record what these change.

A script is sent and started as on a real host; paths on the host are below the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from busbar.hosts import scripts

STAND_IN = Path(__file__).with_name("stand_in.sh")
PROGRAMS = (
    *("id", "sleep", "ps", "ss", "ip", "journalctl", "systemctl", "curl", "sysctl", "umount"),
    *("iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"),
    *("apt-get", "dpkg-query", "haproxy", "keepalived", "exportfs", "chown"),
    *("mktemp", "mv", "cp", "rm", "rmdir", "touch", "chmod"),
)
ON_HOST = re.compile(r"(?<![\w.}-])/(?=(?:etc|var|run|usr/local|usr/libexec|proc/self)(?:[/:]|\b))")
VERSION = "v1.35.6+k3s1"


class Host:
    """A host whose root folder is ROOT.

    MORE: bash with a function `more-NAME` for each program that it adds or replaces.
    """

    def __init__(self, root: Path, more: str = "") -> None:
        self.root = root
        self.wait_seconds = 1
        self.said: list[str] = []
        """The notes of the last run that succeeded."""
        for folder in ("usr/local/bin", "state/mirror", "etc", "run", "var/lib", "proc/self"):
            (root / folder).mkdir(parents=True)
        for name in {*PROGRAMS, *re.findall(r"^more-(\S+)\(\)", more, re.MULTILINE)}:
            (root / "usr/local/bin" / name).symlink_to(STAND_IN)
        self.write("etc/machine-id", "0123\n")
        self.write("proc/self/mounts", "")
        self.state("ip addr show", "2: eth0    inet 10.0.0.21/16 scope global eth0\n")
        self.state("peers", "")
        self.state("more.sh", more)

    def write(self, path: str, text: str) -> None:
        """A file on the host."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def text(self, path: str) -> str:
        """The content of a file on the host."""
        return (self.root / path).read_text()

    def program(self, name: str, text: str) -> None:
        """A program of this line of sh, in place of the one that stands in."""
        path = self.root / "usr/local/bin" / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def save(self) -> None:
        """Keep what is on the host, beside it, for `restore`."""
        shutil.copytree(self.root, self.root.with_suffix(".saved"), symlinks=True)

    def restore(self) -> Host:
        """The host with what was there at `save`."""
        shutil.rmtree(self.root)
        shutil.copytree(self.root.with_suffix(".saved"), self.root, symlinks=True)
        return self

    def state(self, name: str, text: str) -> None:
        """What a stand-in answers."""
        self.write(f"state/{name}", text)

    def release(self, version: str) -> dict[str, str]:
        """Publish this release of K3s; the values by which a script installs it."""
        start = f'BASH_ARGV0=k3s; source "{STAND_IN}"'
        binary = f"#!/bin/bash\nexec bash -c '{start}' k3s '{version}' \"$@\"\n"
        self.state(f"mirror/k3s-{version}", binary)
        digest = hashlib.sha256(binary.encode()).hexdigest()
        url = f"https://mirror/k3s-{version}"
        urls, digests = ((f"{name}_AMD64", f"{name}_ARM64") for name in ("URL", "SHA256"))
        return {"VERSION": version, **dict.fromkeys(urls, url), **dict.fromkeys(digests, digest)}

    def run(
        self, script: str, payload: Mapping[str, str], *, fails: str = "", **values: str
    ) -> subprocess.CompletedProcess[str]:
        """What the script prints, and how it ends.

        Commands that match the pattern `fails` fail; then the script waits `wait_seconds` at most.
        """
        text = ON_HOST.sub(f"{self.root}/", scripts.text(script))
        if fails:
            text = text.replace("$((SECONDS + ", f"$((SECONDS + {self.wait_seconds} + 0 * ")
        self.state("fails", f"{fails}\n" if fails else "")
        (self.root / "record").write_text("")
        (self.root / "state/sleeps").unlink(missing_ok=True)
        return subprocess.run(
            ["bash", "-c", text], input=scripts.payload_line(payload), capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "ROOT": str(self.root), **values}, timeout=300, check=False,
        )  # fmt: skip

    def error(self, script: str, payload: Mapping[str, str], *, fails: str = "", **values: str) -> str:
        """What a run says that must fail, in one line."""
        done = self.run(script, payload, fails=fails, **values)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        return done.stderr.splitlines()[-1]

    @property
    def steps(self) -> list[str]:
        """What the last run changed and asked, in order; a question that was repeated is there once."""
        lines = (self.root / "record").read_text().splitlines()
        return [line for before, line in zip(["", *lines], lines, strict=False) if line != before]

    def files(self) -> dict[str, str]:
        """Modes of the files on the host by path, without those of the stand-ins."""
        paths = {str(path.relative_to(self.root)): path for path in self.root.rglob("*")}
        left_out = ("record", "state", "etc/machine-id", "proc", "run/busbar.lock")
        return {
            f"/{name}": oct(path.stat().st_mode & 0o777)[2:]
            for name, path in sorted(paths.items())
            if path.is_file() and not path.is_symlink() and not name.startswith(left_out)
        }

    def facts(self, script: str, payload: Mapping[str, str], **values: str) -> dict[str, Any]:
        """The facts of a run that must succeed."""
        done = self.run(script, payload, **values)
        assert done.returncode == 0, done.stderr + "\n".join(self.steps)
        found = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(found, dict)
        self.said = [line.removeprefix(f"busbar: {found['node']}: ") for line in done.stderr.splitlines()]
        return found


def in_order(steps: Sequence[str], *phases: str | Collection[str]) -> None:
    """Assert that all steps of a phase are there, in any order, after those of the phase before it."""
    done = 0
    for phase in phases:
        names = [phase] if isinstance(phase, str) else [*phase]
        rest = list(steps[done:])
        missing = [name for name in names if name not in rest]
        assert not missing, f"not there after {list(steps[:done])}: {missing}; there is {rest}"
        done += max((rest.index(name) + 1 for name in names), default=0)


def changes(steps: Sequence[str]) -> list[str]:
    """The steps that write, remove, download or stop anything."""
    return [step for step in steps if re.match(r"(write|rm|touch|download|PUT) |.* (restart|stop) ", step)]
