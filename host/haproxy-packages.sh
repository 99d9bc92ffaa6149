#!/usr/bin/env bash
# Installs the packages of a load balancer. haproxy.sh does so too, but only once server 1 has made the CA: on a new
# machine apt may take as long as K3s. Safe to run again.
#
# Values: OWNER, INSTALL_ID, NODE_NAME, VIRTUAL_IP (empty with one load balancer).
# Facts: {"node"}
# shellcheck source=/dev/null
[[ -n ${BUSBAR_LIB:-} ]] || source "$(dirname "${BASH_SOURCE[0]}")/parts.sh" lib lib-install owner packages

main() {
  begin
  acquire_lock
  claim_host "load balancer"
  install_package haproxy
  [[ -z $VIRTUAL_IP ]] || install_package keepalived
  printf '{"node":%s}\n' "$(json "$NODE_NAME")"
}

main
