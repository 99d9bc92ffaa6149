#!/usr/bin/env bash
# Removes a K3s agent; its Node is deleted through the API (busbar remove nodes). The only verb is VERB=remove. It is apart
# from the installation, which preflight delivers to every worker.
#
# Values: OWNER, INSTALL_ID, NODE_NAME. Facts: {"removed"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner k3s-lib k3s-remove

main() {
  begin
  [[ $VERB == remove ]] || die "VERB=$VERB is unknown" "use remove"
  acquire_lock
  remove_agent
}

remove_agent() {
  if may_remove; then k3s_uninstall k3s-agent; else removed false; fi
}

main
