#!/usr/bin/env bash
# Lets one operation at a time change the cluster: `busbar up`, `destroy` or `restore` runs this on the servers
# for as long as it lasts. The lock belongs to this process, so nothing of it outlives a busbar that was killed: its connection ends.
#
# Values: OPERATION (what runs and who started it)
# Facts, at once: {"holder"} (the OPERATION that holds the lock already, else empty)
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib

OPERATION_LOCK=/run/busbar-operation.lock

main() {
  local text
  begin
  exec 8<>"$OPERATION_LOCK"
  # The lock of a command that was just killed is free within a moment.
  if ! flock -w 5 8; then
    text=$(head -c 300 "$OPERATION_LOCK")
    # Without a text the other one has just taken it.
    holder "${text:-another operation}"
    return
  fi
  printf '%s\n' "$OPERATION" >"$OPERATION_LOCK"
  holder ""
  # Until stdin ends, with the connection. A machine that is gone closes none, but does not acknowledge these lines either:
  # the kernel gives the connection up, by default after 15 minutes (tcp(7), tcp_retries2).
  while IFS= read -r -t 20 _ || (($? > 128)); do printf '\n'; done
}

# holder TEXT: on a line of its own, whatever the login shell has printed before.
holder() {
  printf '\n{"holder":%s}\n' "$(json "$1")"
}

main
