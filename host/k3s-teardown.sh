#!/usr/bin/env bash
# Tells a server that its whole cluster is being removed: its removal then does not leave etcd, which would need a
# majority of the servers. Changes nothing else, and is forgotten with the removal, an installation, or after an hour.
# Facts: {"node"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || for part in lib k3s-api; do
  source "$(dirname "${BASH_SOURCE[0]}")/$part.sh"
done

main() {
  begin
  touch "$TEARDOWN"
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

main
