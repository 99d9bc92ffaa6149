#!/usr/bin/env bash
# Functions of all host scripts. Nothing runs before the last line of the script that follows.
#
# A script gets values as environment variables, and on the first line of stdin a flat JSON object whose
# values are base64 (secrets, contents of files). It prints one JSON line of facts on stdout, and errors with
# their fix on stderr. By hand:
#   sudo NODE_NAME=worker-1 VERB=install ... bash host/k3s-agent.sh <<<'{"config":"...base64..."}'

# shellcheck disable=SC2034 # read by the other scripts
BUSBAR_LIB=1
STATE_DIR=/var/lib/busbar
K3S=/usr/local/bin/k3s
K3S_CONFIG_DIR=/etc/rancher/k3s
K3S_DATA_DIR=/var/lib/rancher/k3s
KUBECONFIG_FILE=$K3S_CONFIG_DIR/k3s.yaml
# Scripts that preflight has delivered (busbar/hosts/scripts.py).
DELIVERED_DIR=/run/busbar
LOCK_FILE=/run/busbar.lock
# kubectl caches the API's answers here; without it in ~/.kube, which no removal would delete.
export KUBECACHEDIR=/run/busbar-kubectl
LOCK_DEADLINE=300

# begin: the start of every script: strict mode, root, the payload, the error trap.
begin() {
  set -euo pipefail
  umask 022
  export LC_ALL=C PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  : "${NODE_NAME:=$(hostname)}" "${VERB:=install}"
  [[ $(id -u) == 0 ]] || die "not root" "run it as root or under sudo"
  # Set by the command that sent the script; by hand it is still on stdin.
  [[ -n ${PAYLOAD+set} ]] || IFS= read -r PAYLOAD || PAYLOAD='{}'
  trap 'on_error "$?" "$LINENO" "$BASH_COMMAND"' ERR
  set -E
}

# begin_verb VERB...: `begin`, and refuses another VERB.
begin_verb() {
  begin
  [[ " $* " == *" $VERB "* ]] || die "VERB=$VERB is unknown" "use one of: $*"
}

# truth COMMAND...: prints true where it succeeds, else false.
truth() {
  if "$@"; then printf true; else printf false; fi
}

# acquire_lock: waits for an earlier run on this host whose connection broke and which is still running. If its own connection
# breaks meanwhile it ends: nobody would read its facts, and the steps of the next update would queue behind it.
acquire_lock() {
  local asked_by
  exec 9>"$LOCK_FILE"
  asked_by=$(grandparent)
  flock -w "$LOCK_DEADLINE" 9 ||
    die "timed out after ${LOCK_DEADLINE} s: another busbar step is still running on this host" \
      "see it with: ps -eo pid,etimes,args | grep '[t]imeout -k'; wait for it or end it, and retry"
  [[ $(grandparent) == "$asked_by" ]] || die "the connection broke while it waited; no changes made" "retry"
}

# grandparent: the process that has started `timeout` with this script: another one once its SSH connection has ended.
grandparent() {
  awk '$1 == "PPid:" { print $2 }' "/proc/$PPID/status"
}

# Exit status of a subshell that has already reported its error.
EXIT_REPORTED=86

# die WHAT FIX: reports the error with the name of the host, and exits.
die() {
  trap - ERR
  printf 'busbar: %s: %s. Fix: %s\n' "${NODE_NAME:-$(hostname)}" "$1" "$2" >&2
  exit "$((BASH_SUBSHELL > 0 ? EXIT_REPORTED : 1))"
}

# on_error STATUS LINE COMMAND: a command failed unexpectedly.
on_error() {
  trap - ERR
  [[ $1 != "$EXIT_REPORTED" ]] || exit "$((BASH_SUBSHELL > 0 ? EXIT_REPORTED : 1))"
  die "line $2 of ${BUSBAR_SCRIPT:-$0} failed (status $1): ${3%%$'\n'*}" \
    "that command says why in the lines above; if it says nothing: journalctl -n 50 --no-pager on this host; then retry"
}

# machine: identifies the machine without disclosing its machine-id (man machine-id).
machine() {
  { cat /etc/machine-id 2>/dev/null; echo busbar; } | sha256sum | cut -c1-8
}

note() {
  printf 'busbar: %s: %s\n' "${NODE_NAME:-$(hostname)}" "$1" >&2
}

# payload NAME: the value on stdout; nothing if it is not set.
payload() {
  local encoded
  encoded=$(sed -n 's/.*"'"$1"'":"\([A-Za-z0-9+/=]*\)".*/\1/p' <<<"$PAYLOAD")
  [[ -z $encoded ]] || base64 -d <<<"$encoded"
}

# json TEXT: as a JSON string, with quotes.
json() {
  local text=$1
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  printf '"%s"' "${text//[$'\001'-$'\037']/}"
}

# fails COMMAND...: for `poll`.
fails() {
  ! "$@"
}

# poll SECONDS COMMAND...: repeats the command until it succeeds; fails at the deadline.
poll() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.5
  done
}

# local_address NAME_OR_ADDRESS: "INTERFACE ADDRESS" of the first of its addresses that this host has; else nothing.
local_address() {
  local wanted
  wanted=$({ getent ahosts "$1" || true; } | awk '{ print $1 }' | sort -u)
  # A name in /etc/hosts that leads to 127.0.1.1 (Debian) says nothing about the network.
  ip -o addr show | awk -v wanted="$wanted" '
    BEGIN { count = split(wanted, list, "\n"); for (i = 1; i <= count; i++) is_wanted[list[i]] = 1 }
    { split($4, part, "/"); sub(/@.*/, "", $2) }
    part[1] in is_wanted && part[1] !~ /^127\./ && part[1] != "::1" && !found++ { print $2, part[1] }'
}

# address_is_configured: whether the site sets node-ip itself, in a file beside busbar's.
address_is_configured() {
  grep -qsE '^["'\'']?(node-ip|flannel-iface)["'\'']?:' /etc/rancher/k3s/config.yaml.d/*.yaml
}

# private_files: those of K3s with tokens, keys or logins; not a registries.yaml of the site, or a k3s.yaml on a worker.
private_files() {
  local path
  for path in "$K3S_CONFIG_DIR"/{config,registries,k3s}.yaml "$K3S_DATA_DIR"/server/{token,agent-token} \
    "$K3S_DATA_DIR"/{agent,server/cred}/*.kubeconfig; do
    [[ $path != */registries.yaml || -s $STATE_DIR/registries.written ]] || continue
    [[ $path != */k3s.yaml || -e $K3S_DATA_DIR/server/token ]] || continue
    [[ ! -f $path ]] || printf '%s\n' "$path"
  done
}
