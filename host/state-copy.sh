#!/usr/bin/env bash
# Copies of the state of the stack that has installed this host: `busbar up` keeps them here, and `busbar recover` reads them.
# Secrets in a copy are encrypted as in the state. The removal of the host removes its copies.
#
# VERB=keep: keeps the payload, and of the copies of this CHECKOUT the newest KEPT. VERB=list. VERB=read: NAME.
# Values: NAME (TIME-CHECKOUT), CHECKOUT, KEPT, INSTALL_ID (of the cluster in the state). Payload of keep: copy (a line of JSON about the copy, then the copy).
# Facts: {"install_id" (empty on a host without a mark),"rotated" (lines "KIND NUMBER"),"copies":[their lines of JSON]}; of read
#   {"copy"} (base64)
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner

main() {
  begin_verb keep list read
  COPIES_DIR=$STATE_DIR/state
  case $VERB in
    keep) acquire_lock && keep_copy && list_copies ;;
    list) list_copies ;;
    read) printf '{"copy":"%s"}\n' "$(base64 -w0 "$COPIES_DIR/$NAME")" ;;
  esac
}

# keep_copy: nothing on a host without a mark, whose removal would leave it there, or of another cluster, whose stack may find it.
keep_copy() {
  local old
  [[ -s $STATE_DIR/owner && $(owner_field install_id) == "$INSTALL_ID" ]] || return 0
  install -d -m 0700 "$COPIES_DIR"
  payload copy | write_file "$COPIES_DIR/$NAME" 0600
  # Names begin with the time, so the newest is the last.
  while read -r old; do rm -f "$old"; done < <(printf '%s\n' "$COPIES_DIR"/*"-$CHECKOUT" | sort | head -n "-$KEPT")
}

list_copies() {
  local path line copies=""
  for path in "$COPIES_DIR"/*; do
    # A file that is not a copy has no line of JSON.
    line=$(head -n 1 "$path" 2>/dev/null | grep '^{.*}$' || true)
    [[ -z $line ]] || copies+="${copies:+,}$line"
  done
  printf '{"install_id":%s,"rotated":%s,"copies":[%s]}\n' "$(json "$(owner_field install_id)")" \
    "$(json "$(cat "$STATE_DIR/rotated" 2>/dev/null || true)")" "$copies"
}

main
