#!/usr/bin/env bash
# VERB=remove tells a server that its whole cluster is being removed: its removal then does not leave etcd, which would
# need a majority of the servers. It is forgotten with the removal, an installation, after an hour, or by VERB=install:
# the cluster stays. Changes nothing else.
# Facts: {"node"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib k3s-api

main() {
  begin
  case $VERB in
    remove) touch "$TEARDOWN" ;;
    install) rm -f "$TEARDOWN" ;;
    *) die "VERB=$VERB is unknown" "use install or remove" ;;
  esac
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

main
