#!/usr/bin/env bash
# What all host scripts share. Only functions: nothing runs until the last line of the script behind it.
#
# A script gets values as environment variables, and on the first line of stdin a flat JSON object whose
# values are base64 (secrets, contents of files). It prints one JSON line of facts on stdout; problems go to
# stderr with what to do about them. By hand:
#   sudo NODE_NAME=worker-1 VERB=install ... bash host/k3s-agent.sh <<<'{"config":"...base64..."}'

# shellcheck disable=SC2034 # read by the scripts behind it
BUSBAR_LIB=1
# shellcheck disable=SC2034
STATE_DIR=/var/lib/busbar
LOCK_FILE=/run/busbar.lock
LOCK_DEADLINE=300

# begin: the frame of every script: strict mode, root, the payload, and one busbar at a time on this host.
begin() {
  set -euo pipefail
  umask 022
  export LC_ALL=C PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  : "${NODE_NAME:=$(hostname)}" "${VERB:=install}"
  [[ $(id -u) == 0 ]] || die "not root" "run it as root or under sudo"
  # Set by the launcher that read it; by hand it is still on stdin.
  [[ -n ${PAYLOAD+set} ]] || IFS= read -r PAYLOAD || PAYLOAD='{}'
  trap 'unforeseen "$?" "$LINENO" "$BASH_COMMAND"' ERR
  set -E
}

# one_at_a_time: a former run that was cut off may still be at work; wait for it instead of racing it.
one_at_a_time() {
  exec 9>"$LOCK_FILE"
  flock -w "$LOCK_DEADLINE" 9 ||
    die "another busbar step still runs on this host after ${LOCK_DEADLINE} s" \
      "look with: fuser -v $LOCK_FILE; end it or wait, then run again"
}

# A subshell that has said why it ended.
SAID_WHY=86

# die WHAT CURE: the end, with a sentence that names the host.
die() {
  trap - ERR
  printf 'busbar: %s: %s. To do: %s\n' "${NODE_NAME:-$(hostname)}" "$1" "$2" >&2
  exit "$((BASH_SUBSHELL > 0 ? SAID_WHY : 1))"
}

# unforeseen STATUS LINE COMMAND: a command failed where no failure was expected.
unforeseen() {
  trap - ERR
  [[ $1 != "$SAID_WHY" ]] || exit "$((BASH_SUBSHELL > 0 ? SAID_WHY : 1))"
  die "line $2 of ${BUSBAR_SCRIPT:-$0} failed (status $1): ${3%%$'\n'*}" \
    "see the lines above; the step may be run again"
}

note() {
  printf 'busbar: %s: %s\n' "${NODE_NAME:-$(hostname)}" "$1" >&2
}

# payload NAME: the value on stdout; nothing where the name is not there.
payload() {
  local encoded
  encoded=$(sed -n 's/.*"'"$1"'":"\([A-Za-z0-9+/=]*\)".*/\1/p' <<<"$PAYLOAD")
  [[ -z $encoded ]] || base64 -d <<<"$encoded"
}

# json TEXT: as a JSON string, with its quotes.
json() {
  local text=$1
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  text=${text//$'\t'/\\t}
  printf '"%s"' "${text//[$'\001'-$'\037']/}"
}

# poll SECONDS COMMAND...: until the command succeeds; fails at the deadline.
poll() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.5
  done
}
