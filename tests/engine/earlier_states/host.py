"""A host in a folder, for the scripts that install K3s: the commands that they run are functions here."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60
# Absolute paths of a script, as far as they are not those of commands.
_PLACES = re.compile(r"(?<![\w./$}])/(etc|var|run|usr/local|usr/libexec)/(?!bin:|sbin:)")
_OUTSIDE = re.compile(r"/(etc|var|run)/")
_K3S = """\
#!/bin/bash
case "$*" in
  --version) echo 'k3s version v1.35.6+k3s1 (0)' ;;
  *kubeletVersion*) echo 'True|2100-01-01T00:00:00Z|v1.35.6+k3s1' ;;
  *'.status.conditions'*) echo ' Ready=True EtcdIsVoter=True ' ;;
  *'.metadata.labels'*) cat "$ROOT/labels" 2>/dev/null ;;
esac
"""
_COMMANDS = r"""
id() { echo 0; }
flock() { :; }
sysctl() { :; }
journalctl() { :; }
sleep() { :; }
ps() { echo 100; }
ip() { echo "1: eth0 inet $NODE_ADDRESS/24"; }
# Server 1 begins the cluster: nothing listens on the others. Its certificate has all names.
curl() {
  case "$*" in
    *"-o /dev/null"*) ;;
    */health) printf '{"health":"true"}' ;;
    */maintenance/status) printf '{"leader":"1"}' ;;
    */member/list) printf '{"members":[{"ID":"1","name":"%s-01234567"}]}' "$NODE_NAME" ;;
    */ping) [[ $FIRST != true ]] && printf pong || return 7 ;;
  esac
}
started() {
  echo "$1" >>"$ROOT/log"
  echo "$RANDOM" >"$ROOT/runs-$1"
  mkdir -p "$K3S_DATA_DIR"/{server/{db/etcd/member,tls},agent}
  echo "K10$(printf '%064d' 0)::server:token" >"$K3S_DATA_DIR/server/token"
  touch "$K3S_DATA_DIR/server/tls/server-ca.crt"
  echo yes >"$K3S_DATA_DIR/agent/kubelet.kubeconfig"
}
timeout() { while [[ $1 == -* ]]; do shift 2; done; shift; "$@"; }
systemctl() {
  case "$*" in
    *restart*) started "${*: -1}" ;;
    "show -p InvocationID --value "*) cat "$ROOT/runs-${*: -1}" 2>/dev/null || echo none ;;
    "show -p NRestarts --value "*) echo 0 ;;
    "show -p MainPID --value "*) echo 1 ;;
    "is-active --quiet "*) [[ -e $ROOT/runs-${*: -1} ]] ;;
    "is-failed --quiet "*) return 1 ;;
  esac
}
"""


@dataclass(frozen=True)
class FolderHost:
    """One host; `root` is its file system."""

    root: Path

    def install(self, script: str, values: Mapping[str, str], payload: str) -> list[str]:
        """Run a whole script with VERB=install; returns the services that it restarted.

        Raises AssertionError where it fails. Nothing outside `root` is written: root may run this test.
        """
        k3s, log = self.root / "usr/local/bin/k3s", self.root / "log"
        k3s.parent.mkdir(parents=True, exist_ok=True)
        k3s.write_text(_K3S)
        k3s.chmod(0o755)
        (self.root / "run").mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        digest = hashlib.sha256(k3s.read_bytes()).hexdigest()
        functions = self._inside(script).rstrip().removesuffix("\nmain")
        done = subprocess.run(
            ["bash", "-c", f"{functions}\n{_COMMANDS}\nPAYLOAD=$1\nmain", "bash", payload],
            env={
                "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                **values,
                **{"SHA256_AMD64": digest, "SHA256_ARM64": digest, "IMAGES": "", "VERB": "install"},
                "ROOT": str(self.root),
            },
            text=True, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return log.read_text().split("\n")[:-1] if log.exists() else []

    def _inside(self, script: str) -> str:
        """The script with its places below the root. Raises AssertionError where one may be outside."""
        moved = _PLACES.sub(rf"{self.root}/\1/", script)
        outside = [line for line in script.splitlines() if _OUTSIDE.search(_PLACES.sub("", line))]
        assert not outside, f"these lines would reach this machine itself: {outside}"
        return moved
