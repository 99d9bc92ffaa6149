"""The Kubernetes API as host scripts see it, for tests: the file `nodes`; changes are lines of `log`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from busbar.hosts import scripts
from tests.unit.hosts.bash import run

# The Kubernetes API of these scripts: `nodes` is lines "name|machine|ready|etcd|created"; changes are logged.
API = r"""
applied() { # KEY: its lines in the manifest
  awk -v key="  $1: |-" '/^  [^ ]/ { on = $0 == key; next } on { sub(/^ +/, ""); print }' \
    "$ROOT/applied" 2>/dev/null || true
}
api() {
  shift
  local name
  case "$*" in
    "get nodes -o jsonpath={range .items[*]}{.metadata.name}|"*)
      awk -F'|' '{ print $1 "|" $2 "|" ($4 ? "true" : "") "|" $5 }' "$ROOT/nodes" ;;
    "get nodes -o jsonpath={range .items[*]}{.metadata.annotations."*) cut -d'|' -f2 "$ROOT/nodes" ;;
    "get nodes -l node-role"*"-o name") awk -F'|' '$4 { print "node/" $1 }' "$ROOT/nodes" ;;
    "get nodes -l node-role"*"type=="*) awk -F'|' '$4 { print $1, $3 }' "$ROOT/nodes" ;;
    "get nodes -l node-role"*) awk -F'|' '$4 { print $1 }' "$ROOT/nodes" ;;
    "apply -f -")
      cat >"$ROOT/applied"
      sed -n 's/^log //p' "$ROOT/applied" >>"$ROOT/log" ;;
    "get configmap "*data.servers*) applied servers ;;
    "get --raw /readyz") [[ -z $API_SERVER || " ${DEAD:-} " != *" $API_SERVER "* ]] ;;
    "get node "*)
      name=$3
      case "$*" in
        *removed-node-name*) grep -s "^$name removed" "$ROOT/log" || true ;;
        *"type=="*) awk -F'|' -v name="$name" '$1 == name { print $3 }' "$ROOT/nodes" ;;
        *node-role*) awk -F'|' -v name="$name" '$1 == name && $4 { print "true" }' "$ROOT/nodes" ;;
        *busbar/machine*) awk -F'|' -v name="$name" '$1 == name { print $2 }' "$ROOT/nodes" ;;
        *metadata.name*) awk -F'|' -v name="$name" '$1 == name { print $1 }' "$ROOT/nodes" ;;
      esac ;;
    "annotate node "*) echo "$3 removed by ${API_SERVER:-this server}" >>"$ROOT/log" ;;
    "create configmap "*" --dry-run=client -o yaml") echo "log $3: $(cat "${6#*taints=}")" ;;
    "delete node "*)
      echo "$3 deleted" >>"$ROOT/log"
      sed -i "/^$3|/d" "$ROOT/nodes" ;;
    "delete namespace "*" --ignore-not-found --wait=false") echo "namespace $3 deleted" >>"$ROOT/log" ;;
    "-n kube-system delete secret "*" --ignore-not-found "*) echo "$5" >>"$ROOT/secrets" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
systemctl() {
  case $* in "is-active k3s") echo "${STATE:-}" ;; is-active* | daemon-reload) ;; *) return 1 ;; esac
}
TEARDOWN=$ROOT/teardown
LEAVING=$ROOT/leaving
sleep() { :; }
NOT_READY_DEADLINE=0 MEMBER_DEADLINE=0
"""


def cluster(root: Path, *nodes: str) -> None:
    (root / "nodes").write_text("".join(f"{node}\n" for node in nodes))
    (root / "log").touch()
    (root / "busbar").mkdir(exist_ok=True)


def performed(
    root: Path, script: str, call: str, payload: dict[str, str] | None = None, **values: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The outcome, and what was changed in the cluster."""
    line = scripts.stdin(script, payload or {}).partition("\n")[0]
    done = run(
        script,
        f"STATE_DIR={root}/busbar; begin_verb() {{ :; }}; {API}\n{call}",
        PAYLOAD=line,
        ROOT=str(root),
        **{"VERB": "remove", **values},
    )
    return done, (root / "log").read_text().splitlines()
